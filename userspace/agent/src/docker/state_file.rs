//! The file with the networks and pools of Docker.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use docker::State;
use tokio::task::spawn_blocking;

/// The file with the networks and pools of Docker. Each change replaces it as a whole.
#[derive(Clone, Debug)]
pub(crate) struct StateFile(PathBuf);

impl StateFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Reads the state; empty without a file. A damaged file is an error: with empty pools, the
    /// addresses of running containers would be given out again.
    pub(crate) fn read(&self) -> Result<State> {
        let shown = self.0.display();
        let text = match ipam::small_files::read(&self.0) {
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

    /// Replaces the file. The earlier one stays whole until the new one is on the disk.
    pub(crate) async fn write(&self, state: &State) -> io::Result<()> {
        let (path, text) = (self.0.clone(), state.to_json());
        let written = spawn_blocking(move || replace(&path, text.as_bytes())).await;
        written.map_err(io::Error::other)?.map_err(|error| {
            let shown = self.0.display();
            io::Error::new(error.kind(), format!("cannot write {shown}: {error}"))
        })
    }
}

fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&draft)?;
    file.write_all(contents)?;
    file.sync_data()?;
    crash::point_at("docker-state");
    fs::rename(&draft, path)
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
}
