//! The file with the networks and pools of Docker.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, anyhow};
use docker::State;
use tokio::task::spawn_blocking;

/// The file with the networks and pools of Docker. Each change replaces it as a whole.
#[derive(Clone, Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    /// Whether an uninstall has removed the file; locked while the file is changed.
    is_removed: Arc<Mutex<bool>>,
}

impl StateFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            is_removed: Arc::default(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the state; empty without a file. A damaged file is an error: with empty pools, the
    /// addresses of running containers would be given out again.
    pub(crate) fn read(&self) -> Result<State> {
        let shown = self.path.display();
        let text = match ipam::small_files::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(State::default()),
            Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
        };
        State::parse(&text).map_err(|why| {
            anyhow!(
                "docker-state: {shown} is damaged: {why}. Remove it if no network of Docker has the \
                 driver viaduct"
            )
        })
    }

    /// Replaces the file. The earlier one stays whole until the new one is on the disk. A change
    /// that was written is still there after a power loss.
    pub(crate) async fn write(&self, state: &State) -> io::Result<()> {
        let (file, text) = (self.clone(), state.to_json());
        let written = spawn_blocking(move || file.replace(text.as_bytes())).await;
        written.map_err(io::Error::other)?.map_err(|error| {
            let shown = self.path.display();
            io::Error::new(error.kind(), format!("cannot write {shown}: {error}"))
        })
    }

    fn replace(&self, contents: &[u8]) -> io::Result<()> {
        let is_removed = self
            .is_removed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *is_removed {
            return Err(io::Error::other("Viaduct is uninstalled"));
        }
        replace(&self.path, contents)
    }

    /// Removes the file, and what an interrupted write has left. Later writes fail: a call that
    /// dockerd has made during the uninstall must not bring the file back.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let mut is_removed = self
            .is_removed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *is_removed = true;
        match fs::remove_file(draft(&self.path)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::remove_file(&self.path)
    }
}

/// Returns the file that replaces the one at `path` when it is complete.
fn draft(path: &Path) -> PathBuf {
    path.with_extension("draft")
}

fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let draft = draft(path);
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&draft)?;
    file.write_all(contents)?;
    file.sync_data()?;
    crash::point_at("docker-state");
    fs::rename(&draft, path)?;
    sync_directory_of(path)
}

/// Syncs the directory that contains `path`, so that a renamed file keeps its name.
fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_state_of_docker_is_read_as_it_was_written_and_a_damaged_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("docker.json");
        let file = StateFile::new(path.clone());
        assert_eq!(file.read().unwrap(), State::default());
        file.write(&State::default()).await.unwrap();
        assert_eq!(file.read().unwrap(), State::default());
        fs::write(&path, "{").unwrap();
        let error = file.read().unwrap_err().to_string();
        assert!(error.contains("damaged"), "{error}");
    }

    #[test]
    fn the_directory_of_the_state_file_is_synced_also_for_a_name_without_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        sync_directory_of(&directory.path().join("docker.json")).unwrap();
        sync_directory_of(Path::new("docker.json")).unwrap();
        let error = sync_directory_of(&directory.path().join("none/docker.json")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn no_late_call_brings_a_removed_state_of_docker_back() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::new(directory.path().join("docker.json"));
        file.write(&State::default()).await.unwrap();
        fs::write(draft(file.path()), "{").unwrap();
        file.clone().remove().unwrap();
        let error = file.write(&State::default()).await.unwrap_err();
        assert!(error.to_string().contains("uninstalled"), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        assert_eq!(file.remove().unwrap_err().kind(), ErrorKind::NotFound);
    }
}
