//! Metrics of peers: how many are in each state, and how many are reached in each way.

use engine::PeersStatus;
use planner::{PeerState, PeerStatus};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Way {
    way: &'static str,
}

const ROUTE: Way = Way { way: "route" };
const TUNNEL: Way = Way { way: "tunnel" };

/// Registers `peers`, with a value for every state, and `peers_reached`, with one for every way.
pub(super) fn register(registry: &mut Registry, status: &PeersStatus) {
    let peers: Family<Labels, Gauge> = Family::default();
    for state in PeerState::ALL {
        let state = state.word();
        peers.get_or_create(&Labels { state }).set(0);
    }
    let reached: Family<Way, Gauge> = Family::default();
    for way in [ROUTE, TUNNEL] {
        reached.get_or_create(&way).set(0);
    }
    for peer in &status.states {
        let state = peer.state.word();
        peers.get_or_create(&Labels { state }).inc();
        if let Some(way) = way_to(peer) {
            reached.get_or_create(&way).inc();
        }
    }
    registry.register("peers", "Other nodes by state", peers);
    let help = "Other nodes to which routes of this agent lead, by way";
    registry.register("peers_reached", help, reached);
}

/// Returns the way to a peer; `None` without a route of ours. One whose families are reached in two
/// ways has a tunnel.
fn way_to(peer: &PeerStatus) -> Option<Way> {
    match peer.state {
        PeerState::Routed | PeerState::Partial => {
            Some(if peer.tunnel.is_some() { TUNNEL } else { ROUTE })
        }
        PeerState::ThisNode | PeerState::Unreachable | PeerState::Refused | PeerState::Unrouted => {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn peers_are_counted_by_state_and_those_with_routes_by_way() {
        let peer = |state, is_tunnelled: bool| PeerStatus {
            state,
            next_hops: Box::default(),
            tunnel: is_tunnelled.then(|| [192, 0, 2, 9].into()),
        };
        let status = PeersStatus {
            states: vec![
                peer(PeerState::Routed, false),
                peer(PeerState::Routed, true),
                peer(PeerState::Partial, true),
                peer(PeerState::Unreachable, false),
                peer(PeerState::ThisNode, false),
            ],
            ..PeersStatus::default()
        };
        let mut registry = Registry::default();
        register(&mut registry, &status);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "peers{state=\"routed\"} 2",
            "peers{state=\"refused\"} 0",
            "peers_reached{way=\"route\"} 1",
            "peers_reached{way=\"tunnel\"} 2",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
