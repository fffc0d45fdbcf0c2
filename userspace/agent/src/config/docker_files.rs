//! Where Docker's drivers are served, and where their state is.

use std::path::PathBuf;

use anyhow::Result;

use super::{optional_path, path};

/// The networks and addresses of Docker, by default.
const STATE: &str = "/var/lib/viaduct/docker.json";

/// Where Docker's drivers are served, and where their state is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DockerFiles {
    pub(crate) socket: PathBuf,
    pub(crate) state: PathBuf,
}

impl DockerFiles {
    /// Returns the files; `None` without a socket.
    pub(super) fn of(socket: Option<PathBuf>, state: Option<PathBuf>) -> Result<Option<Self>> {
        let state = path("docker-state", state, STATE)?;
        let socket = optional_path("docker-socket", socket)?;
        Ok(socket.map(|socket| Self { socket, state }))
    }
}
