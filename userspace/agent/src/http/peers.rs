//! Routes of the API for peers, and their view.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{PeerCount, PeerSetting, PeerView};
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use cni::Error;
use engine::PeersStatus;
use model::{Peer, PeerName};
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
