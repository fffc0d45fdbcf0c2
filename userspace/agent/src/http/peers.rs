//! Routes of the API for peers, and their view.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{PeerCount, PeerSetting, PeerSourceSetting, PeerView};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use cni::Error;
use engine::{PeersStatus, StalePeers};
use model::{Peer, PeerName, printable};
use planner::PeerState;

use crate::app::App;
use crate::clock;
use crate::config::peers;
use crate::http::failure::Failure;

/// Returns the peers with their states.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    let turn = app.answers.turn().await?;
    Ok(turn.json(&views(&app.handle.status().peers)).await?)
}

/// Replaces the list of peers.
pub(crate) async fn replace(State(app): State<Arc<App>>, body: Body) -> Result<Response, Failure> {
    let wanted = app.request_memory.read::<Vec<PeerSetting>>(body).await?;
    let wanted = peers::validate(&wanted.value)
        .map_err(|error| Error::invalid_config(format!("{error:#}")))?;
    app.handle.set_peers(wanted, clock::now()).await?;
    list(State(app)).await
}

/// Longest name of a program, and longest error of it, in bytes.
const MAX_PROGRAM: usize = 64;
const MAX_ERROR: usize = 1024;

/// Sets whether the program that sends the list has its own source. The reconciliation emits the
/// event.
pub(crate) async fn set_source(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Json<PeerSourceSetting>, Failure> {
    let wanted = app.request_memory.read::<PeerSourceSetting>(body).await?;
    let now = clock::now();
    app.handle
        .set_peers_stale(stale(&wanted.value, now)?)
        .await?;
    app.handle.reconcile(now);
    Ok(Json(wanted.value))
}

/// Returns why the list may be out of date; `None` if it is current. `now` is in seconds since
/// 1970.
fn stale(source: &PeerSourceSetting, now: u64) -> Result<Option<StalePeers>, Error> {
    let PeerSourceSetting {
        program,
        error,
        seconds,
    } = source;
    for (key, text, most) in [
        ("program", Some(program), MAX_PROGRAM),
        ("error", error.as_ref(), MAX_ERROR),
    ] {
        let Some(text) = text else { continue };
        if text.is_empty() || text.len() > most {
            let length = text.len();
            return Err(Error::decode(format!(
                "{key} has {length} bytes instead of 1 to {most}"
            )));
        }
    }
    Ok(error.as_ref().map(|error| StalePeers {
        program: printable(program).into_owned(),
        since: clock::rfc3339(now.saturating_sub(*seconds)),
        error: printable(error).into_owned(),
    }))
}

/// Returns the number of peers in each state that occurs.
pub(crate) fn counts(status: &PeersStatus) -> Vec<PeerCount> {
    let count = |state: &PeerState| {
        let of_state = status.states.iter().filter(|peer| peer.state == *state);
        PeerCount {
            state: state.word().to_owned(),
            peers: u64::try_from(of_state.count()).unwrap_or(u64::MAX),
        }
    };
    let counts = PeerState::ALL.iter().map(count);
    counts.filter(|count| count.peers > 0).collect()
}

fn views(status: &PeersStatus) -> Vec<PeerView> {
    let mut problems: BTreeMap<&PeerName, Vec<String>> = BTreeMap::new();
    for problem in &status.problems {
        if let Some(peer) = problem.peer() {
            problems.entry(peer).or_default().push(problem.to_string());
        }
    }
    let peers = status.peers.iter().flat_map(|peers| peers.list());
    let views = peers.zip(&status.states).map(|(peer, state)| PeerView {
        state: state.state.word().to_owned(),
        via: texts(&state.next_hops),
        tunnel: state.tunnel.map(|address| address.to_string()),
        problems: problems.get(peer.name()).cloned().unwrap_or_default(),
        ..view(peer)
    });
    views.collect()
}

fn view(peer: &Peer) -> PeerView {
    PeerView {
        name: peer.name().to_string(),
        prefixes: texts(peer.prefixes()),
        addresses: texts(peer.addresses()),
        ..PeerView::default()
    }
}

fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(error: Option<&str>) -> PeerSourceSetting {
        PeerSourceSetting {
            program: "viaduct-kube".to_owned(),
            error: error.map(ToOwned::to_owned),
            seconds: 90,
        }
    }

    #[test]
    fn a_source_that_is_lost_is_reported_with_its_time_and_its_error_on_one_line() {
        assert_eq!(stale(&source(None), 0).unwrap(), None);
        let setting = source(Some("nodes:\nrefused"));
        let lost = stale(&setting, 1_700_000_090).unwrap().unwrap();
        assert_eq!(lost.since, "2023-11-14T22:13:20Z");
        assert_eq!(lost.error, "nodes:\\nrefused");
        assert_eq!(
            stale(&source(Some("x")), 1).unwrap().unwrap().since,
            "1970-01-01T00:00:00Z"
        );
    }

    #[test]
    fn texts_without_an_end_are_refused() {
        let long = "x".repeat(MAX_ERROR + 1);
        assert!(stale(&source(Some(&long)), 0).is_err());
        assert!(stale(&source(Some("")), 0).is_err());
        let unnamed = PeerSourceSetting::default();
        assert!(stale(&unnamed, 0).is_err());
    }
}
