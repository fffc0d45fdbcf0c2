//! Cache of results, one JSON file for each attachment.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};

use cni::{Cached, Error};
use model::{ContainerId, IfName};

use crate::Invoker;

impl Invoker {
    /// Writes a cache file: a draft first, which is then renamed.
    pub(crate) fn cache_result(&self, cached: &Cached) -> Result<(), Error> {
        let name = Cached::file_name(&cached.network, &cached.container_id, &cached.ifname);
        let path = self.cache.join(name);
        let draft = path.with_extension(format!("draft-{}", std::process::id()));
        let write = || {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.cache)?;
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&draft)?
                .write_all(cached.to_json().as_bytes())?;
            fs::rename(&draft, &path)
        };
        write().map_err(|error| Error::io(format!("{}: {}", path.display(), error.kind())))
    }

    /// Returns the cached result of an attachment; `None` if there is none or it cannot be parsed.
    pub fn cached_result(
        &self,
        network: &str,
        id: &ContainerId,
        ifname: &IfName,
    ) -> Option<Cached> {
        let path = self.cache.join(Cached::file_name(network, id, ifname));
        Cached::parse(&ipam::small_files::read(path).ok()?).ok()
    }

    /// Returns the cached results of a network, sorted by container and interface.
    pub fn cached_of_network(&self, network: &str) -> Result<Vec<Cached>, Error> {
        let mut all = self.all_cached()?;
        all.retain(|cached| cached.network == network);
        Ok(all)
    }

    /// Returns all cached results, sorted by container and interface. Files that cannot be parsed
    /// are left out.
    pub fn all_cached(&self) -> Result<Vec<Cached>, Error> {
        let entries = match fs::read_dir(&self.cache) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io(format!("{}: {error}", self.cache.display()))),
            Ok(entries) => entries,
        };
        let mut all: Vec<Cached> = entries
            .filter_map(|entry| ipam::small_files::read(entry.ok()?.path()).ok())
            .filter_map(|text| Cached::parse(&text).ok())
            .collect();
        all.sort_by(|a, b| (&a.container_id, &a.ifname).cmp(&(&b.container_id, &b.ifname)));
        Ok(all)
    }

    /// Removes the cache file of an attachment. A missing file is success.
    pub(crate) fn remove_cached(
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
