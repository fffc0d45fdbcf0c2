//! Remembered results, one file for each attachment.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};

use cni::{Cached, Error};
use model::{ContainerId, IfName};

use crate::Invoker;

impl Invoker {
    /// Writes an attachment down.
    pub(crate) fn remember(&self, cached: &Cached) -> Result<(), Error> {
        let name = Cached::file_name(&cached.network, &cached.container_id, &cached.ifname);
        let path = self.cache.join(name);
        let draft = path.with_extension(format!("draft-{}", std::process::id()));
        let write = || {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.cache)?;
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o600);
            options
                .open(&draft)?
                .write_all(cached.to_json().as_bytes())?;
            fs::rename(&draft, &path)
        };
        write().map_err(|error| Error::io(format!("{}: {}", path.display(), error.kind())))
    }

    /// What is remembered of one attachment.
    pub fn recall(&self, network: &str, id: &ContainerId, ifname: &IfName) -> Option<Cached> {
        let path = self.cache.join(Cached::file_name(network, id, ifname));
        Cached::parse(&small_files::read(path).ok()?).ok()
    }

    /// Everything that is remembered of a network, by container and interface.
    pub fn remembered(&self, network: &str) -> Result<Vec<Cached>, Error> {
        let mut all = self.all_remembered()?;
        all.retain(|cached| cached.network == network);
        Ok(all)
    }

    /// Everything that is remembered, by container and interface.
    pub fn all_remembered(&self) -> Result<Vec<Cached>, Error> {
        let entries = match fs::read_dir(&self.cache) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io(format!("{}: {error}", self.cache.display()))),
            Ok(entries) => entries,
        };
        let mut all: Vec<Cached> = entries
            .filter_map(|entry| small_files::read(entry.ok()?.path()).ok())
            .filter_map(|text| Cached::parse(&text).ok())
            .collect();
        all.sort_by(|a, b| (&a.container_id, &a.ifname).cmp(&(&b.container_id, &b.ifname)));
        Ok(all)
    }

    /// Forgets an attachment.
    pub(crate) fn forget(
        &self,
        network: &str,
        id: &ContainerId,
        ifname: &IfName,
    ) -> Result<(), Error> {
        let path = self.cache.join(Cached::file_name(network, id, ifname));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io(format!("{}: {}", path.display(), error.kind())))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
