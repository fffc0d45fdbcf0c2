//! Spool of DELs that arrive while no agent runs: the plugin writes them, and the agent executes
//! them before it serves again.
//!
//! A failing DEL makes a runtime retry without end, and a lost DEL leaves its address and ports in
//! use (behaviours A1, C3). Therefore the plugin stores it next to the agent's socket, in one file
//! for each attachment and plugin: a repeated DEL replaces its file. Number, total size and length
//! of the files are bounded. Like the agent's records the directory does not survive a reboot, and
//! neither do the attachments that the DELs are for.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::{CniRequest, MAX_REQUEST};

/// Maximum number of files, a multiple of the pods of a node.
const MAX_FILES: usize = 4096;
/// Maximum total size in bytes. The directory is on a tmpfs, so this is memory.
const MAX_BYTES: u64 = 32 << 20;

const SUFFIX: &str = ".json";

/// Why a DEL could not be spooled.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The spool has reached its maximum number of files or bytes.
    #[error("spool {} is full: {files} requests of {bytes} bytes are waiting for the agent", folder.display())]
    Full {
        /// Path of the spool directory.
        folder: PathBuf,
        /// Number of files in the directory.
        files: usize,
        /// Total size of the files in bytes.
        bytes: u64,
    },
    /// The directory or the file could not be written.
    #[error("cannot write to {}: {}", path.display(), source.kind())]
    Io {
        /// Path of the directory or of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

/// The spool directory.
#[derive(Clone, Debug)]
pub struct Spool {
    folder: PathBuf,
}

/// A spooled DEL.
#[derive(Debug)]
pub struct Spooled {
    /// Path of the file.
    pub path: PathBuf,
    /// The request, or the reason why the file cannot be parsed.
    pub request: Result<CniRequest, String>,
}

impl Spool {
    /// Returns the spool of the agent that listens on `socket`: the directory `spool` next to it.
    pub fn for_socket(socket: &Path) -> Self {
        let parent = socket.parent().unwrap_or(Path::new("/"));
        Self {
            folder: parent.join("spool"),
        }
    }

    /// Writes a DEL to its file and syncs file and directory. `network` is the name in its
    /// configuration.
    pub fn put(&self, network: &str, request: &CniRequest) -> Result<(), SpoolError> {
        let make = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder);
        make.map_err(|source| failed(&self.folder, source))?;
        let path = self.folder.join(name(network, request));
        self.check_capacity(&path)?;
        let draft = path.with_extension(format!("draft-{}", std::process::id()));
        let written = write(&draft, request).and_then(|()| fs::rename(&draft, &path));
        if let Err(source) = written {
            // If this fails as well, the draft counts against the limits and is never executed.
            let _left = fs::remove_file(&draft);
            return Err(failed(&path, source));
        }
        let folder = File::open(&self.folder).and_then(|folder| folder.sync_all());
        folder.map_err(|source| failed(&self.folder, source))
    }

    /// Refuses a further file beyond the limits. The file at `path`, which would be replaced, does
    /// not count.
    fn check_capacity(&self, path: &Path) -> Result<(), SpoolError> {
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

    /// Returns all spooled DELs; none if the directory does not exist.
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

    /// Removes the file of a DEL that has been executed; a missing file is a success.
    pub fn remove(&self, spooled: &Spooled) -> io::Result<()> {
        ignore_not_found(fs::remove_file(&spooled.path))
    }

    /// Removes all DELs, and the directory if it contains nothing else.
    pub fn clear(&self) -> io::Result<()> {
        for (path, _) in self.files()? {
            let name = path.extension().unwrap_or_default().to_string_lossy();
            if name == "json" || name.starts_with("draft-") {
                ignore_not_found(fs::remove_file(&path))?;
            }
        }
        match fs::remove_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => ignore_not_found(removed),
        }
    }

    /// Returns the files with their lengths in bytes, sorted by name.
    fn files(&self) -> io::Result<Vec<(PathBuf, u64)>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry?;
            // Removed since it was listed: the agent has executed the DEL.
            let length = entry.metadata().map_or(0, |found| found.len());
            files.push((entry.path(), length));
        }
        files.sort();
        Ok(files)
    }
}

/// Returns the file name, which depends on network, plugin, container and interface only. It starts
/// with the container ID, for operators.
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
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(&serde_json::to_vec(request)?)?;
    file.sync_all()
}

fn read(path: &Path, length: u64) -> Result<CniRequest, String> {
    if length > MAX_REQUEST as u64 {
        return Err(format!(
            "file of {length} bytes: the maximum is {MAX_REQUEST}"
        ));
    }
    let text = fs::read(path).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

fn ignore_not_found(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
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
        let spool = Spool::for_socket(&folder.path().join("v.sock"));
        (folder, spool)
    }

    /// behaviour A1
    #[test]
    fn a_repeated_del_replaces_its_spool_file_and_others_stay() {
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
    fn a_draft_or_invalid_spool_file_is_never_executed() {
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
    fn a_full_spool_refuses_new_dels_by_count_and_by_bytes_but_not_a_repeated_one() {
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
    fn a_cleared_spool_is_gone_unless_it_contains_foreign_files() {
        let (folder, spool) = spool();
        spool.clear().unwrap();
        let inside = folder.path().join("spool");
        for foreign in [false, true] {
            spool.put("net", &request("a", "")).unwrap();
            fs::write(inside.join("a.draft-7"), "").unwrap();
            if foreign {
                fs::write(inside.join("notes"), "").unwrap();
            }
            spool.clear().unwrap();
            assert!(spool.waiting().unwrap().is_empty());
            assert_eq!(inside.exists(), foreign);
        }
    }

    #[test]
    fn spool_error_names_the_directory_that_cannot_be_created() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("spool"), "in the way").unwrap();
        let spool = Spool::for_socket(&folder.path().join("v.sock"));
        let refused = spool.put("net", &request("a", "")).unwrap_err();
        let folder = folder.path().display().to_string();
        assert!(refused.to_string().contains(&folder), "{refused}");
    }
}
