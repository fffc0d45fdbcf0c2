//! host-local's leases on disk, beside ours: what others have is not given, and what we give can be read by them.

use std::io;
use std::path::Path;

use cni::{Error, Header};
use lease_files::{LeaseFolder, Owner};
use model::{Attachment, AttachmentKey, Intent};

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

    /// Tells the engine what others have. What the attachment itself had is free: the records say whether it still is
    /// attached.
    pub(crate) fn note(&self, intent: &mut Intent) -> Result<(), Error> {
        let taken = self.folder.taken().map_err(|error| self.failed(&error))?;
        let others = taken.into_iter().filter(|(_, owner)| *owner != intent.key);
        intent.requested.taken = others.collect();
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
                locked.reserve(address, &owner)?;
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

    fn failed(&self, error: &io::Error) -> Error {
        Error::io(format!("host-local's leases: {error}"))
            .with_details(format!("{:?}", self.folder))
    }
}

fn owner(key: &AttachmentKey) -> Owner {
    Owner {
        container_id: key.container_id.to_string(),
        ifname: Some(key.ifname.to_string()),
    }
}
