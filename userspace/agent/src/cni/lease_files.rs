//! Lease files of the reference plugin host-local: addresses leased there are not assigned again,
//! and the agent writes its own leases in the same format.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use cni::{Error, Header};
use ipam::lease_files::{self, LeaseFolder, Owner};
use model::{Attachment, AttachmentKey, ContainerId, IfName, Intent, Network};

use crate::cni::foreign_files::FileAccess;

/// The lease files of a network.
pub(crate) struct HostLocalLeases {
    folder: LeaseFolder,
    access: FileAccess,
    /// Whether the agent writes lease files: only if the configuration sets `dataDir`.
    writes: bool,
}

impl HostLocalLeases {
    /// Returns the lease files of the network in a configuration. `None` for the default network,
    /// whose addresses only the agent assigns, and for a network with another `ipam` plugin, which
    /// assigns them.
    pub(crate) fn of(header: &Header, access: &FileAccess) -> Option<Self> {
        let data_dir = header.data_dir.as_deref();
        let gives = header.declares_network && header.ipam_plugin.is_none();
        gives.then(|| Self {
            folder: LeaseFolder::new(data_dir, &header.name),
            access: access.clone(),
            writes: data_dir.is_some_and(Path::is_absolute),
        })
    }

    /// Adds to the intent the addresses that host-local has leased, and the address that it
    /// assigned last. Excluded are the attachment's own leases, because the records show whether it
    /// is still attached, and leases that the agent has written, because each of them has a record
    /// as long as it is in use.
    pub(crate) async fn read_into(&self, intent: &mut Intent) -> Result<(), Error> {
        let read =
            |folder: &LeaseFolder| Ok((folder.taken_by_host_local()?, folder.last_reserved()?));
        let (taken, last_reserved) = self.run(read).await?;
        let others = taken.into_iter().filter(|(_, owner)| *owner != intent.key);
        intent.requested.taken = others.collect();
        intent.requested.last_reserved = last_reserved;
        Ok(())
    }

    /// Writes the addresses of an attachment, each with the index of the range set that it is from;
    /// nothing if the configuration sets no `dataDir`. The order of the attachment's addresses is
    /// another one: IPv4 first.
    pub(crate) async fn write(
        &self,
        network: &Network,
        attachment: &Attachment,
    ) -> Result<(), Error> {
        if !self.writes {
            return Ok(());
        }
        let owner = owner(&attachment.key);
        let addresses: Vec<IpAddr> = attachment
            .addresses
            .iter()
            .map(|assigned| assigned.address.address)
            .collect();
        let last_reserved = ipam::last_reserved(network, &attachment.addresses);
        let write = move |folder: &LeaseFolder| {
            let locked = folder.lock()?;
            locked.release(&owner)?;
            for address in addresses {
                locked.mirror(address, &owner)?;
            }
            last_reserved
                .into_iter()
                .try_for_each(|(set, address)| locked.put_last_reserved(set, address))
        };
        self.run(write).await
    }

    /// Removes the lease files of an attachment, whether written by the agent or by host-local. A
    /// failure is logged only.
    pub(crate) async fn release(&self, key: &AttachmentKey) {
        let owner = owner(key);
        let release = move |folder: &LeaseFolder| {
            if folder.exists() {
                folder.lock()?.release(&owner)?;
            }
            Ok(())
        };
        if let Err(error) = self.run(release).await {
            tracing::warn!(%key, %error, "cannot remove host-local's lease file: its address stays leased");
        }
    }

    /// Returns the owners of all lease files.
    pub(crate) async fn owners(&self) -> Result<BTreeSet<Owner>, Error> {
        let leases = self.run(LeaseFolder::leases).await?;
        Ok(leases.into_values().collect())
    }

    /// Removes the lease files of these owners.
    pub(crate) async fn collect(&self, owners: Vec<Owner>) -> Result<(), Error> {
        if owners.is_empty() {
            return Ok(());
        }
        let collect = move |folder: &LeaseFolder| {
            let locked = folder.lock()?;
            owners
                .iter()
                .try_for_each(|owner| locked.release(owner).map(drop))
        };
        self.run(collect).await
    }

    /// Runs `work` off the API's thread: the path of the folder comes from a configuration.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LeaseFolder) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let folder = self.folder.clone();
        let done = self
            .access
            .run("ipam.dataDir", self.folder.path(), move || work(&folder))
            .await?;
        done.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::io(format!("cannot access host-local's lease files: {error}"))
            .with_details(format!("{:?}", self.folder))
    }
}

/// Adds to the intent the addresses that host-local has leased in any network. For networks that
/// containers of other software share: its pods keep running where the agent starts with their
/// CIDR.
pub(crate) async fn read_all_into(access: &FileAccess, intent: &mut Intent) -> Result<(), Error> {
    let read = || {
        let mut all = Vec::new();
        for folder in lease_files::folders(None)? {
            all.extend(folder.taken_by_host_local()?);
        }
        io::Result::Ok(all)
    };
    let folder = Path::new(lease_files::DEFAULT_DATA_DIR);
    let failed = |error| Error::io(format!("cannot read host-local's lease files: {error}"));
    let all = access.run("ipam.dataDir", folder, read).await?;
    let others = all
        .map_err(failed)?
        .into_iter()
        .filter(|(_, owner)| *owner != intent.key);
    intent.requested.taken.extend(others);
    Ok(())
}

/// Returns whether a lease belongs to one of these interfaces. A lease file without an interface
/// name matches all interfaces of its container.
pub(crate) fn is_valid_owner<'a>(
    owner: &Owner,
    mut known: impl Iterator<Item = (&'a ContainerId, &'a IfName)>,
) -> bool {
    known.any(|(container_id, ifname)| {
        let named = owner.ifname.as_deref().unwrap_or(ifname.as_str());
        owner.container_id == container_id.as_str() && named == ifname.as_str()
    })
}

fn owner(key: &AttachmentKey) -> Owner {
    Owner {
        container_id: key.container_id.to_string(),
        ifname: Some(key.ifname.to_string()),
    }
}
