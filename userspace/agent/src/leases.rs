//! host-local's leases on disk, beside ours: what others have is not given, and what we give can be read by them.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use cni::{Error, Header};
use lease_files::{LeaseFolder, Owner};
use model::{Attachment, AttachmentKey, ContainerId, IfName, Intent};

/// The leases of a network that a configuration declares.
pub(crate) struct Leases {
    folder: LeaseFolder,
    /// Whether the configuration says where they are: then somebody wants to find ours there.
    kept: bool,
}

impl Leases {
    /// None for the agent's own network, whose addresses nobody else gives, and for those whose addresses only somebody
    /// else gives.
    pub(crate) fn of(header: &Header) -> Option<Self> {
        let data_dir = header.data_dir.as_deref();
        let gives = header.declares_network && header.ipam_plugin.is_none();
        gives.then(|| Self {
            folder: LeaseFolder::new(data_dir, &header.name),
            kept: data_dir.is_some_and(Path::is_absolute),
        })
    }

    /// Tells the engine what others have, and which address they gave last. What the attachment itself had is free: the
    /// records say whether it still is attached. So is what we have written: nothing of ours is known by its file alone.
    pub(crate) fn note(&self, intent: &mut Intent) -> Result<(), Error> {
        let failed = |error| self.failed(&error);
        let taken = self.folder.taken_by_others().map_err(failed)?;
        let others = taken.into_iter().filter(|(_, owner)| *owner != intent.key);
        intent.requested.taken = others.collect();
        intent.requested.last_reserved = self.folder.last_reserved().map_err(failed)?;
        Ok(())
    }

    /// Writes down what an attachment has got.
    pub(crate) fn keep(&self, attachment: &Attachment) -> Result<(), Error> {
        if !self.kept {
            return Ok(());
        }
        let owner = owner(&attachment.key);
        let keep = || {
            let locked = self.folder.lock()?;
            locked.release(&owner)?;
            for (set, assigned) in attachment.addresses.iter().enumerate() {
                let address = assigned.address.address;
                locked.note(address, &owner)?;
                locked.put_last_reserved(set, address)?;
            }
            io::Result::Ok(())
        };
        keep().map_err(|error| self.failed(&error))
    }

    /// Releases what an attachment had, whoever wrote it down.
    pub(crate) fn release(&self, key: &AttachmentKey) {
        if !self.folder.exists() {
            return;
        }
        let locked = self.folder.lock();
        if let Err(error) = locked.and_then(|locked| locked.release(&owner(key))) {
            tracing::warn!(%key, %error, "a lease on disk stays behind");
        }
    }

    /// Who has addresses by a file.
    pub(crate) fn owners(&self) -> Result<BTreeSet<Owner>, Error> {
        let leases = self.folder.leases().map_err(|error| self.failed(&error))?;
        Ok(leases.into_values().collect())
    }

    /// Releases what these have.
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
        Error::io(format!("host-local's leases: {error}"))
            .with_details(format!("{:?}", self.folder))
    }
}

/// Whether the lease is of one of these; a file that does not tell the interface is of all that its container has.
pub(crate) fn is_known<'a>(
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
