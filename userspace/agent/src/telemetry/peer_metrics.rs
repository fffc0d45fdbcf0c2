//! Metrics of peers: how many are in each state.

use engine::PeersStatus;
use planner::PeerState;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    state: &'static str,
}

/// Registers `peers`, with a value for every state.
pub(super) fn register(registry: &mut Registry, status: &PeersStatus) {
    let peers: Family<Labels, Gauge> = Family::default();
    for state in PeerState::ALL {
        let state = state.word();
        peers.get_or_create(&Labels { state }).set(0);
    }
    for peer in &status.states {
        let state = peer.state.word();
        peers.get_or_create(&Labels { state }).inc();
    }
    registry.register("peers", "Other nodes by state", peers);
}
