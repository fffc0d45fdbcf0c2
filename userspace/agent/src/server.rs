//! Serving, from the moment that the socket appears to the moment that the last answer has been given.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::requests::App;
use crate::socket::Socket;
use crate::{events, pod_cidr_file, routes, upkeep};

/// How long clients may take to read their answers after the agent was told to stop.
const GRACE: Duration = Duration::from_secs(30);

/// Serves on the socket at `path` until SIGTERM or SIGINT, then finishes what runs.
pub(crate) async fn serve(path: &Path, pod_cidr_file: Option<PathBuf>, app: App) -> Result<()> {
    let stopped = stop_signal(app.stop.clone())?;
    let app = Arc::new(app);
    // What DELs free must be free before the first ADD, and nobody can ask before there is a socket.
    app.replay().await;
    upkeep::start(Arc::clone(&app)).context("cannot listen for changes of the node")?;
    if let Some(file) = pod_cidr_file {
        pod_cidr_file::watch(file, app.handle.clone())?;
    }
    tokio::spawn(events::follow(app.handle.clone(), Arc::clone(&app.events)));
    let socket = Socket::bind(path)?;
    let told = until_stopped(stopped.clone());
    let server = axum::serve(socket, routes::router(app)).with_graceful_shutdown(told);
    tracing::info!(socket = %path.display(), "serving");
    tokio::select! {
        ended = server.into_future() => ended.context("cannot serve"),
        () = grace_is_over(stopped) => {
            tracing::warn!("a client did not take its answer");
            Ok(())
        }
    }
}

/// Becomes true at the first SIGTERM or SIGINT; later ones change nothing (BEHAVIOURS A6).
fn stop_signal(stop: watch::Sender<bool>) -> Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    let stopped = stop.subscribe();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        stop.send_replace(true);
    });
    Ok(stopped)
}

async fn until_stopped(mut stopped: watch::Receiver<bool>) {
    // The sender goes only after it has sent.
    let _sent = stopped.wait_for(|stopped| *stopped).await;
}

async fn grace_is_over(stopped: watch::Receiver<bool>) {
    until_stopped(stopped).await;
    tokio::time::sleep(GRACE).await;
}
