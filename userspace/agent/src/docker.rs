//! Docker's network driver and IPAM driver, on a socket of their own: dockerd calls them for
//! networks of the driver viaduct.
//!
//! dockerd creates a network once, and expects it after every start and boot. So networks and
//! pools are in a file that outlasts both; endpoints are attachments with records, as all others.

mod driver;
mod ipam;
mod ports;
mod router;
mod state_file;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use tokio::sync::watch;

use crate::app::App;
use crate::config::DockerFiles;
use crate::http::connections;
use crate::http::socket::Socket;
use driver::Driver;
pub(crate) use state_file::StateFile;

/// Maximum number of connections: dockerd keeps a few open.
const MAX_CONNECTIONS: usize = 64;

/// Where the drivers are served.
#[derive(Debug)]
pub(crate) struct DockerListener(PathBuf);

impl DockerListener {
    /// Checks the directory of the socket, which is Docker's.
    pub(crate) fn of(files: &DockerFiles) -> Result<Self> {
        let directory = files.socket.parent().unwrap_or(&files.socket);
        if !directory.is_dir() {
            bail!(
                "docker-socket: there is no directory {}: create it before the agent starts, or choose another \
                 socket and name it in /etc/docker/plugins/viaduct.spec",
                directory.display()
            );
        }
        Ok(Self(files.socket.clone()))
    }

    /// Reads the state, makes the networks, and starts to listen; must be called inside a tokio
    /// runtime.
    pub(crate) async fn open(self, app: &Arc<App>) -> Result<Served> {
        let Self(socket) = self;
        let state = app.installation.docker.clone();
        let state = state.context("docker-socket without docker-state")?;
        let driver = Driver::open(Arc::clone(app), state).await?;
        let listener = Socket::bind(&socket).context("docker-socket")?;
        tracing::info!(socket = %socket.display(), "serving Docker's network driver and IPAM driver");
        Ok(Served { driver, listener })
    }
}

/// The drivers, and the socket on which dockerd calls them.
pub(crate) struct Served {
    driver: Driver,
    listener: Socket,
}

/// Serves the drivers until the agent stops, if they are configured.
pub(crate) async fn serve(served: Option<Served>, stopped: watch::Receiver<bool>) {
    let Some(Served { driver, listener }) = served else {
        return;
    };
    let router = router::router(Arc::new(driver), stopped.clone());
    connections::serve_at_most(MAX_CONNECTIONS, listener, router, stopped).await;
}

/// Opens the drivers, if they are configured.
pub(crate) async fn open(
    listener: Option<DockerListener>,
    app: &Arc<App>,
) -> Result<Option<Served>> {
    match listener {
        Some(listener) => Ok(Some(listener.open(app).await?)),
        None => Ok(None),
    }
}
