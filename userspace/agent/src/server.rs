//! Serving, from the moment that the socket appears to the moment that the last answer has been given.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use api::EventOutcome;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::events::{self, News as EventNews};
use crate::reload::Reload;
use crate::requests::App;
use crate::service::{self, News};
use crate::socket::Place;
use crate::{connections, pod_cidr_file, refusals, routes, upkeep, view};

/// Serves at `place` until SIGTERM or SIGINT, then finishes what runs.
pub(crate) async fn serve(
    place: Place,
    pod_cidr_file: Option<PathBuf>,
    reload: Reload,
    app: App,
) -> Result<()> {
    let stopped = stop_signal(app.stop.clone())?;
    let hangup = signal(SignalKind::hangup()).context("cannot catch SIGHUP")?;
    let app = Arc::new(app);
    // What DELs free must be free before the first ADD, and nobody is answered before there is a socket.
    app.replay().await;
    upkeep::start(Arc::clone(&app)).context("cannot listen for changes of the node")?;
    if let Some(file) = pod_cidr_file {
        pod_cidr_file::watch(file, app.handle.clone())?;
    }
    let happened = |action| EventNews::new(action, "agent", EventOutcome::Done, view::VERSION);
    app.events.tell(happened("start"));
    tokio::spawn(events::follow(app.handle.clone(), Arc::clone(&app.events)));
    tokio::spawn(refusals::follow(Arc::clone(&app)));
    let socket = place.listen()?;
    tracing::info!(socket = %socket.path().display(), "serving");
    service::tell(News::Ready);
    service::start_watchdog(app.handle.clone());
    tokio::spawn(follow_reloads(hangup, reload, Arc::clone(&app)));
    let router = routes::router(Arc::clone(&app), stopped.clone());
    connections::serve(socket, router, stopped).await;
    app.events.tell(happened("stop"));
    Ok(())
}

/// Becomes true at the first SIGTERM or SIGINT, or when `stop` does; later ones change nothing (behaviour A6).
fn stop_signal(stop: watch::Sender<bool>) -> Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    let stopped = stop.subscribe();
    let mut asked = stopped.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            // Over the socket.
            _ = asked.wait_for(|stopped| *stopped) => {}
        }
        tracing::info!("stopping");
        service::tell(News::Stopping);
        stop.send_replace(true);
    });
    Ok(stopped)
}

/// Takes the configuration again at each SIGHUP. Several that come together are as one.
async fn follow_reloads(mut hangup: Signal, mut reload: Reload, app: Arc<App>) {
    while hangup.recv().await.is_some() {
        service::tell(News::Reloading);
        match reload.run(&app).await {
            Ok(reloaded) => {
                tracing::info!(taken = ?reloaded.taken, "the configuration was taken again");
                if !reloaded.later.is_empty() {
                    tracing::warn!(keys = ?reloaded.later, "changed, and holds from the next start on");
                }
                let keys = reloaded.taken.join(", ");
                let done = EventNews::new("reload", "agent", EventOutcome::Done, keys);
                app.events.tell(done);
                service::tell(News::Status("the configuration was taken again"));
            }
            Err(error) => {
                tracing::error!("the configuration stays as it was: {error:#}");
                let why = format!("{error:#}");
                let failed = EventNews::new("reload", "agent", EventOutcome::Failed, why);
                app.events.tell(failed);
                service::tell(News::Status(
                    "the configuration stays as it was: see the log",
                ));
            }
        }
        service::tell(News::Ready);
    }
}
