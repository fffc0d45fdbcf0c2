//! Server: starts background tasks and socket, serves the API until a stop signal, and handles
//! reloads.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use api::EventOutcome;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::events::{self, NewEvent};
use crate::installation::Directories;
use crate::reload::Reload;
use crate::requests::App;
use crate::service_manager::{self, Notification};
use crate::socket::ListenAddress;
use crate::{
    background, clock, connections, installation, pod_cidr_file, refused_flows, routes, view,
};

/// Files of other software that the agent follows.
pub(crate) struct WatchedFiles {
    pub(crate) pod_cidr_file: Option<PathBuf>,
    pub(crate) installation: Directories,
    /// Whether the default network is in use before any request needs it.
    pub(crate) expects_pod_cidr: bool,
}

/// Serves at `place` until SIGTERM or SIGINT, then finishes running requests.
pub(crate) async fn serve(
    place: ListenAddress,
    files: WatchedFiles,
    reload: Reload,
    app: App,
) -> Result<()> {
    let stopped = stop_signal(app.stop.clone())?;
    let hangup = signal(SignalKind::hangup()).context("cannot catch SIGHUP")?;
    let app = Arc::new(app);
    // Before the socket exists: spooled DELs free addresses and ports that the first ADD may need.
    app.replay().await;
    background::start(Arc::clone(&app)).context("cannot monitor links, addresses and routes")?;
    if files.expects_pod_cidr || files.pod_cidr_file.is_some() {
        app.handle.want_default_network(clock::now()).await;
    }
    if let Some(file) = files.pod_cidr_file {
        pod_cidr_file::watch(file, app.handle.clone())?;
    }
    let happened = |action| NewEvent::new(action, "agent", EventOutcome::Done, view::VERSION);
    app.events.emit(happened("start"));
    tokio::spawn(events::follow_reports(
        app.handle.clone(),
        Arc::clone(&app.events),
    ));
    installation::watch(files.installation, app.handle.clone());
    tokio::spawn(refused_flows::poll(Arc::clone(&app)));
    let socket = place.listen()?;
    tracing::info!(socket = %socket.path().display(), "agent started: serving the API");
    service_manager::notify(Notification::Ready);
    service_manager::start_watchdog(app.handle.clone());
    tokio::spawn(follow_reloads(hangup, reload, Arc::clone(&app)));
    let router = routes::router(Arc::clone(&app), stopped.clone());
    connections::serve(socket, router, stopped).await;
    app.events.emit(happened("stop"));
    Ok(())
}

/// Returns a value that becomes `true` at the first SIGTERM or SIGINT, or with `stop`; further
/// signals have no effect (behaviour A6).
fn stop_signal(stop: watch::Sender<bool>) -> Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    let stopped = stop.subscribe();
    let mut uninstalled = stopped.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            // An uninstall over the API.
            _ = uninstalled.wait_for(|stopped| *stopped) => {}
        }
        tracing::info!("agent stopping: running requests are finished");
        service_manager::notify(Notification::Stopping);
        stop.send_replace(true);
    });
    Ok(stopped)
}

/// Reloads the configuration at each SIGHUP. Several signals at once are one reload.
async fn follow_reloads(mut hangup: Signal, mut reload: Reload, app: Arc<App>) {
    while hangup.recv().await.is_some() {
        service_manager::notify(Notification::Reloading);
        match reload.run(&app).await {
            Ok(reloaded) => {
                tracing::info!(keys = ?reloaded.applied, "configuration reloaded: changed keys are in effect");
                if !reloaded.needs_restart.is_empty() {
                    let keys = reloaded.needs_restart;
                    tracing::warn!(
                        ?keys,
                        "configuration reloaded: changed keys need a restart of the agent"
                    );
                }
                let keys = reloaded.applied.join(", ");
                let done = NewEvent::new("reload", "agent", EventOutcome::Done, keys);
                app.events.emit(done);
                service_manager::notify(Notification::Status("configuration reloaded"));
            }
            Err(error) => {
                tracing::error!("reload failed, configuration unchanged: {error:#}");
                let why = format!("{error:#}");
                let failed = NewEvent::new("reload", "agent", EventOutcome::Failed, why);
                app.events.emit(failed);
                service_manager::notify(Notification::Status(
                    "reload failed, configuration unchanged: see the log",
                ));
            }
        }
        service_manager::notify(Notification::Ready);
    }
}
