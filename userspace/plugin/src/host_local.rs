//! IPAM plugin host-local: allocates addresses from ranges and keeps leases in files.
//!
//! Needs no agent: the files are the state, as in the reference plugin, which may use the same
//! files before, after and at the same time.

use std::io::{self, ErrorKind};

use cni::{Dns, Environment, Error, Header, IpamRequest, IpamVerb, PluginResult, Pool};
use ipam::lease_files::{LeaseFolder, Locked, Owner};
use ipam::{AddressRefusal, Leases};
use model::{Assigned, AttachmentKey};

/// Executes a command and returns the text for standard output.
pub(crate) fn execute(environment: &Environment, config: &str) -> Result<String, Error> {
    let request = IpamRequest::read(environment, config)?;
    let header = &request.header;
    let folder = LeaseFolder::new(header.data_dir.as_deref(), &header.name);
    match &request.verb {
        IpamVerb::Add(pool, key) => add(header, &folder, pool, key),
        IpamVerb::Del(key) => del(&folder, key),
        IpamVerb::Check(key) => check(&folder, key),
        IpamVerb::Gc(None) => Ok(String::new()),
        IpamVerb::Gc(Some(valid)) => {
            let is_valid = |owner: &Owner| {
                valid.iter().any(|key| {
                    key.container_id.as_str() == owner.container_id
                        && (owner.ifname.is_none()
                            || owner.ifname.as_deref() == Some(key.ifname.as_str()))
                })
            };
            collect(&folder, is_valid)
        }
        IpamVerb::Status(pool) => status(&folder, pool),
    }
}

fn add(
    header: &Header,
    folder: &LeaseFolder,
    pool: &Pool,
    key: &AttachmentKey,
) -> Result<String, Error> {
    // First, because a failure after the first lease would have to be undone.
    let dns = dns(pool)?;
    let locked = folder.lock().map_err(|error| failed(&error))?;
    let leases = leases(folder).map_err(|error| failed(&error))?;
    let chosen = ipam::choose(&pool.network, &leases, &pool.requested, key)
        .map_err(|refusal| refused(&refusal))?;
    if let Err(error) = reserve(&locked, &chosen, key) {
        return Err(failed(&error));
    }
    let result = PluginResult::of_addresses(&chosen, &pool.ipam.routes, &dns);
    result.to_json(header.version)
}

fn leases(folder: &LeaseFolder) -> io::Result<Leases> {
    Ok(Leases {
        taken: folder.taken()?,
        last_reserved: folder.last_reserved()?,
        ..Leases::default()
    })
}

/// Writes the leases of all chosen addresses. After a failure, releases all leases of the owner.
fn reserve(locked: &Locked<'_>, chosen: &[Assigned], key: &AttachmentKey) -> io::Result<()> {
    let owner = owner(key);
    for (set, assigned) in chosen.iter().enumerate() {
        let address = assigned.address.address;
        let reserved = locked.reserve(address, &owner);
        if let Err(error) = reserved.and_then(|()| locked.put_last_reserved(set, address)) {
            let _left = locked.release(&owner);
            return Err(error);
        }
    }
    Ok(())
}

fn del(folder: &LeaseFolder, key: &AttachmentKey) -> Result<String, Error> {
    if folder.exists() {
        let locked = folder.lock().map_err(|error| failed(&error))?;
        locked
            .release(&owner(key))
            .map_err(|error| failed(&error))?;
    }
    Ok(String::new())
}

fn check(folder: &LeaseFolder, key: &AttachmentKey) -> Result<String, Error> {
    let leases = folder.leases().map_err(|error| failed(&error))?;
    let wanted = owner(key);
    let found = leases.values().any(|owner| {
        owner.container_id == wanted.container_id
            && (owner.ifname.is_none() || owner.ifname == wanted.ifname)
    });
    if found {
        return Ok(String::new());
    }
    Err(Error::check_failed(format!(
        "host-local: Failed to find address added by container {}",
        key.container_id
    )))
}

fn collect(folder: &LeaseFolder, is_valid: impl Fn(&Owner) -> bool) -> Result<String, Error> {
    if !folder.exists() {
        return Ok(String::new());
    }
    let locked = folder.lock().map_err(|error| failed(&error))?;
    let leases = folder.leases().map_err(|error| failed(&error))?;
    let mut failures = Vec::new();
    for owner in leases.values().filter(|owner| !is_valid(owner)) {
        let released = locked.release(owner);
        failures.extend(released.err().map(|error| error.to_string()));
    }
    if failures.is_empty() {
        return Ok(String::new());
    }
    Err(Error::io(failures.join("; ")))
}

fn status(folder: &LeaseFolder, pool: &Pool) -> Result<String, Error> {
    let taken = folder.taken().map_err(|error| failed(&error))?;
    let leases = Leases {
        taken,
        ..Leases::default()
    };
    let probe = AttachmentKey {
        network: pool.network.name.clone(),
        container_id: "status"
            .parse()
            .map_err(|_| Error::internal("status is not a valid name"))?,
        ifname: "status"
            .parse()
            .map_err(|_| Error::internal("status is not a valid name"))?,
    };
    let chosen = ipam::choose(&pool.network, &leases, &[], &probe);
    chosen.map_err(|refusal| Error::not_available(refusal.to_string()))?;
    Ok(String::new())
}

fn dns(pool: &Pool) -> Result<Dns, Error> {
    let Some(path) = &pool.ipam.resolv_conf else {
        return Ok(Dns::default());
    };
    let text = ipam::small_files::read(path).map_err(|error| {
        let why = reason(&error);
        Error::io(format!("ipam.resolvConf: {}: {why}", path.display()))
    })?;
    Ok(Dns::of_resolv_conf(&text))
}

fn owner(key: &AttachmentKey) -> Owner {
    Owner {
        container_id: key.container_id.to_string(),
        ifname: Some(key.ifname.to_string()),
    }
}

fn refused(refusal: &AddressRefusal) -> Error {
    let text = refusal.to_string();
    match refusal {
        AddressRefusal::GatewayRequested { .. } | AddressRefusal::RequestsLeft { .. } => {
            Error::invalid_config(text)
        }
        AddressRefusal::Exhausted { .. }
        | AddressRefusal::AddressTaken { .. }
        | AddressRefusal::DuplicateAllocation { .. }
        | AddressRefusal::NoRanges { .. }
        | AddressRefusal::AddressOfNode { .. } => Error::taken(text),
    }
}

fn failed(error: &io::Error) -> Error {
    let why = if error.kind() == ErrorKind::AlreadyExists {
        "another process has leased an address in the meantime".to_owned()
    } else {
        reason(error)
    };
    Error::io(format!("cannot change lease files: {why}"))
}

/// Returns the text of an error, without the kernel's: containerd takes some of its texts for
/// "already removed" (behaviour C3).
fn reason(error: &io::Error) -> String {
    let own = error.get_ref().map(ToString::to_string);
    own.unwrap_or_else(|| error.kind().to_string())
}
