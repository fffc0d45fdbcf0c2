//! DELs that the agent was not there for: written by the plugin, executed by the agent before it serves again.
//!
//! A DEL that fails makes a runtime ask again for ever, and a DEL that is forgotten leaves an address and ports taken
//! (behaviours A1, C3). So it is written down beside the agent's socket, one file for each attachment and plugin: a DEL
//! that comes again replaces itself. Files, bytes and lengths are bounded. Like the agent's own records the folder does
//! not outlive a reboot, and neither does what the DELs are about.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::{CniRequest, MAX_REQUEST};

/// Many times the pods of a node.
const MAX_FILES: usize = 4096;
/// The folder is on a tmpfs: this is memory.
const MAX_BYTES: u64 = 32 << 20;

const SUFFIX: &str = ".json";

/// Why a DEL could not be written down.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// There are too many already.
    #[error("{} is full: {files} requests of {bytes} bytes wait for the agent", folder.display())]
    Full {
        /// The folder.
        folder: PathBuf,
        /// Files in it.
        files: usize,
        /// Their bytes.
        bytes: u64,
    },
    /// The folder or the file could not be written.
    #[error("cannot write to {}: {}", path.display(), source.kind())]
    Io {
        /// The folder or the file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The folder of DELs that wait.
#[derive(Clone, Debug)]
pub struct Spool {
    folder: PathBuf,
}

/// A DEL that waits.
#[derive(Debug)]
pub struct Spooled {
    /// Its file.
    pub path: PathBuf,
    /// The request, or why the file holds none.
    pub request: Result<CniRequest, String>,
}

impl Spool {
    /// The folder that belongs to the agent which listens on `socket`.
    pub fn beside(socket: &Path) -> Self {
        let parent = socket.parent().unwrap_or(Path::new("/"));
        Self {
            folder: parent.join("spool"),
        }
    }

    /// Writes a DEL down so that it survives a crash. `network` is the name in its configuration.
    pub fn put(&self, network: &str, request: &CniRequest) -> Result<(), SpoolError> {
        let make = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder);
        make.map_err(|source| failed(&self.folder, source))?;
        let path = self.folder.join(name(network, request));
        self.admit(&path)?;
        let draft = path.with_extension(format!("draft-{}", std::process::id()));
        let written = write(&draft, request).and_then(|()| fs::rename(&draft, &path));
        if let Err(source) = written {
            // A draft is counted and never executed.
            let _left = fs::remove_file(&draft);
            return Err(failed(&path, source));
        }
        let folder = File::open(&self.folder).and_then(|folder| folder.sync_all());
        folder.map_err(|source| failed(&self.folder, source))
    }

    fn admit(&self, path: &Path) -> Result<(), SpoolError> {
        let files = self
            .files()
            .map_err(|source| failed(&self.folder, source))?;
        let (files, bytes) = files
            .iter()
            .filter(|(other, _)| other != path)
            .fold((0, 0), |(files, bytes), (_, length)| {
                (files + 1, bytes + length)
            });
        if files < MAX_FILES && bytes < MAX_BYTES {
            return Ok(());
        }
        let folder = self.folder.clone();
        Err(SpoolError::Full {
            folder,
            files,
            bytes,
        })
    }

    /// Everything that waits. That there is no folder means that nothing does.
    pub fn waiting(&self) -> io::Result<Vec<Spooled>> {
        let read = self
            .files()?
            .into_iter()
            .filter(|(path, _)| path.extension().is_some_and(|end| end == "json"))
            .map(|(path, length)| Spooled {
                request: read(&path, length),
                path,
            });
        Ok(read.collect())
    }

    /// Forgets a DEL that has been executed.
    pub fn remove(&self, spooled: &Spooled) -> io::Result<()> {
        match fs::remove_file(&spooled.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The files and their lengths, by name.
    fn files(&self) -> io::Result<Vec<(PathBuf, u64)>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry?;
            // Gone since it was listed: the agent has executed it.
            let length = entry.metadata().map_or(0, |found| found.len());
            files.push((entry.path(), length));
        }
        files.sort();
        Ok(files)
    }
}

/// The same for the same attachment and plugin. The beginning is for people.
fn name(network: &str, request: &CniRequest) -> String {
    let CniRequest {
        plugin,
        container_id,
        ifname,
        ..
    } = request;
    let mut digest = DefaultHasher::new();
    (network, plugin, container_id, ifname).hash(&mut digest);
    let start: String = container_id
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(64)
        .collect();
    format!("{start}-{:016x}{SUFFIX}", digest.finish())
}

fn write(path: &Path, request: &CniRequest) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path)?;
    file.write_all(&serde_json::to_vec(request)?)?;
    file.sync_all()
}

fn read(path: &Path, length: u64) -> Result<CniRequest, String> {
    if length > MAX_REQUEST as u64 {
        return Err(format!("it has {length} bytes"));
    }
    let text = fs::read(path).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

fn failed(path: &Path, source: io::Error) -> SpoolError {
    let path = path.to_owned();
    SpoolError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(container: &str, plugin: &str) -> CniRequest {
        CniRequest {
            version: String::new(),
            plugin: plugin.to_owned(),
            traceparent: String::new(),
            container_id: container.to_owned(),
            netns: String::new(),
            ifname: "eth0".to_owned(),
            args: String::new(),
            path: "/opt/cni/bin".to_owned(),
            config: serde_json::value::RawValue::from_string("{}".to_owned()).unwrap(),
            ipam: None,
        }
    }

    fn spool() -> (tempfile::TempDir, Spool) {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::beside(&folder.path().join("v.sock"));
        (folder, spool)
    }

    /// behaviour A1
    #[test]
    fn a_del_that_comes_again_replaces_itself_and_others_stay() {
        let (_folder, spool) = spool();
        assert!(spool.waiting().unwrap().is_empty(), "no folder, no DEL");
        for (network, container, plugin) in [
            ("net", "a", ""),
            ("net", "a", ""),
            ("net", "a", "portmap"),
            ("net", "b", ""),
            ("other", "a", ""),
        ] {
            spool.put(network, &request(container, plugin)).unwrap();
        }
        let waiting = spool.waiting().unwrap();
        assert_eq!(waiting.len(), 4);
        for one in waiting {
            assert!(one.request.is_ok());
            spool.remove(&one).unwrap();
            spool.remove(&one).unwrap();
        }
        assert!(spool.waiting().unwrap().is_empty());
    }

    #[test]
    fn what_is_half_written_or_no_request_is_never_executed() {
        let (folder, spool) = spool();
        spool.put("net", &request("a", "")).unwrap();
        let inside = folder.path().join("spool");
        fs::write(inside.join("x.draft-7"), "{").unwrap();
        fs::write(inside.join("y.json"), "{").unwrap();
        let waiting = spool.waiting().unwrap();
        let good = waiting.iter().filter(|one| one.request.is_ok()).count();
        assert_eq!((waiting.len(), good), (2, 1));
    }

    #[test]
    fn a_full_folder_refuses_by_count_and_by_bytes_but_not_what_is_in_it_already() {
        let (folder, spool) = spool();
        spool.put("net", &request("a", "")).unwrap();
        let inside = folder.path().join("spool");
        let large = File::create(inside.join("large.json")).unwrap();
        large.set_len(MAX_BYTES).unwrap();
        let refused = spool.put("net", &request("b", "")).unwrap_err();
        assert!(matches!(refused, SpoolError::Full { .. }), "{refused}");
        fs::remove_file(inside.join("large.json")).unwrap();
        for number in 1..MAX_FILES {
            fs::write(inside.join(format!("{number}.json")), "{}").unwrap();
        }
        let refused = spool.put("net", &request("b", "")).unwrap_err();
        assert!(refused.to_string().contains("4096 requests"), "{refused}");
        spool.put("net", &request("a", "")).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_said_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("spool"), "in the way").unwrap();
        let spool = Spool::beside(&folder.path().join("v.sock"));
        let refused = spool.put("net", &request("a", "")).unwrap_err();
        let folder = folder.path().display().to_string();
        assert!(refused.to_string().contains(&folder), "{refused}");
    }
}
