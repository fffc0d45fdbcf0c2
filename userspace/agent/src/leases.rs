//! Lease files of the reference plugin host-local: addresses leased there are not assigned again,
//! and the agent writes its own leases in the same format.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use cni::{Error, Header};
use ipam::lease_files::{LeaseFolder, Owner};
use model::{ContainerId, IfName, Intent};

/// The lease files of a network.
pub(crate) struct HostLocalLeases {
    pub(crate) folder: LeaseFolder,
    /// Data directory in which the agent writes its leases: only if the configuration sets
    /// `dataDir`.
    written: Option<PathBuf>,
}

impl HostLocalLeases {
    /// Returns the lease files of the network in a configuration. `None` for the default network,
    /// whose addresses only the agent assigns, and for a network with another `ipam` plugin, which
    /// assigns them.
    pub(crate) fn of(header: &Header) -> Option<Self> {
        let data_dir = header.data_dir.as_deref();
        let gives = header.declares_network && header.ipam_plugin.is_none();
        gives.then(|| Self {
            folder: LeaseFolder::new(data_dir, &header.name),
            written: data_dir
                .filter(|directory| directory.is_absolute())
                .map(Path::to_path_buf),
        })
    }

    /// Adds to the intent the addresses that host-local has leased, and the address that it
    /// assigned last. Excluded are the attachment's own leases, because the records show whether it
    /// is still attached, and leases that the agent has written, because each of them has a record
    /// as long as it is in use.
    pub(crate) fn read_into(&self, intent: &mut Intent) -> Result<(), Error> {
        let failed = |error| self.failed(&error);
        let taken = self.folder.taken_by_host_local().map_err(failed)?;
        let others = taken.into_iter().filter(|(_, owner)| *owner != intent.key);
        intent.requested.taken = others.collect();
        intent.requested.last_reserved = self.folder.last_reserved().map_err(failed)?;
        Ok(())
    }

    /// Returns the data directory, if the agent writes its leases there.
    pub(crate) fn written_directory(self) -> Option<PathBuf> {
        self.written
    }

    /// Returns the owners of all lease files.
    pub(crate) fn owners(&self) -> Result<BTreeSet<Owner>, Error> {
        let leases = self.folder.leases().map_err(|error| self.failed(&error))?;
        Ok(leases.into_values().collect())
    }

    /// Removes the lease files of these owners.
    pub(crate) fn collect<'a>(&self, owners: impl Iterator<Item = &'a Owner>) -> Result<(), Error> {
        let mut owners = owners.peekable();
        if owners.peek().is_none() {
            return Ok(());
        }
        let mut collect = || {
            let locked = self.folder.lock()?;
            owners.try_for_each(|owner| locked.release(owner).map(drop))
        };
        collect().map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::io(format!("cannot access host-local's lease files: {error}"))
            .with_details(format!("{:?}", self.folder))
    }
}

/// Adds to the intent the addresses that host-local has leased in any network. For networks that
/// containers of other software share: its pods keep running where the agent starts with their
/// CIDR.
pub(crate) fn read_all_into(intent: &mut Intent) -> Result<(), Error> {
    let read = || {
        for folder in ipam::lease_files::folders(None)? {
            let taken = folder.taken_by_host_local()?.into_iter();
            let others = taken.filter(|(_, owner)| *owner != intent.key);
            intent.requested.taken.extend(others);
        }
        io::Result::Ok(())
    };
    let mut read = read;
    read().map_err(|error| Error::io(format!("cannot read host-local's lease files: {error}")))
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
