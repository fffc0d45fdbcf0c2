//! Peers: their routes and prefixes follow the list, and survive the agent.

use ::model::Peers;
use kernel::fake::Errno;
use planner::PeerState;
use steps::{PEER_ROUTE_PROTOCOL, Step};

use super::*;
use crate::{AttachedPods, UpdateOutcome};

impl Node {
    fn set_peers(&mut self, peers: &str) -> UpdateOutcome {
        let peers: Peers = peers.parse().unwrap();
        self.engine().set_peers(peers, NOW).unwrap()
    }

    /// Returns the routes of ours, as `prefix via gateway`.
    fn peer_routes(&self) -> Vec<String> {
        let routes = self.fake.snapshot().routes;
        let ours = routes
            .into_iter()
            .filter(|one| one.protocol == PEER_ROUTE_PROTOCOL);
        let mut texts: Vec<String> = ours
            .map(|one| format!("{} via {}", one.destination, one.gateway.unwrap()))
            .collect();
        texts.sort();
        texts
    }

    /// Returns the prefixes that are not masqueraded.
    fn kept(&self) -> Vec<String> {
        let entries = self.fake.snapshot().entries;
        let kept = entries
            .into_iter()
            .filter_map(|(key, entry)| match (key, entry) {
                (
                    EntryKey::Prefix(prefix),
                    Entry::Prefix {
                        no_masquerade: true,
                        ..
                    },
                ) => Some(prefix.to_string()),
                _ => None,
            });
        kept.collect()
    }

    fn peer_states(&mut self) -> Vec<PeerState> {
        let status = self.engine().status();
        status.peers.states.iter().map(|one| one.state).collect()
    }

    fn degraded_words(&mut self) -> Vec<&'static str> {
        let status = self.engine().status();
        status
            .degraded
            .iter()
            .map(|one| one.reason().word())
            .collect()
    }
}

const TWO: &str = "b 10.2.0.0/24,fd00:2::/64 192.0.2.20,2001:db8::20\nc 10.3.0.0/24 192.0.2.30\n";

#[test]
fn peers_get_routes_and_keep_them_and_lose_them_with_the_list() {
    let mut node = Node::start();
    assert_eq!(node.set_peers(TWO), UpdateOutcome::Updated);
    assert_eq!(node.set_peers(TWO), UpdateOutcome::Unchanged);
    let both = [
        "10.2.0.0/24 via 192.0.2.20",
        "10.3.0.0/24 via 192.0.2.30",
        "fd00:2::/64 via 2001:db8::20",
    ];
    assert_eq!(node.peer_routes(), both);
    assert_eq!(node.kept(), ["10.2.0.0/24", "10.3.0.0/24", "fd00:2::/64"]);
    assert_eq!(node.peer_states(), [PeerState::Routed; 2]);

    // Without its source, a restarted agent has the stored list.
    let report = node.restart();
    assert_eq!(report.items, [], "nothing is left to do");
    assert_eq!(node.peer_routes(), both);

    assert_eq!(
        node.set_peers("b 10.4.0.0/24 192.0.2.21\n"),
        UpdateOutcome::Updated
    );
    assert_eq!(node.peer_routes(), ["10.4.0.0/24 via 192.0.2.21"]);
    assert_eq!(node.kept(), ["10.4.0.0/24"]);
    node.set_peers("");
    assert!(node.peer_routes().is_empty() && node.kept().is_empty());
}

#[test]
fn removed_routes_to_peers_are_added_again_and_a_route_that_fails_is_reported() {
    let mut node = Node::start();
    node.set_peers(TWO);
    node.fake
        .remove_routes(|route| route.protocol == PEER_ROUTE_PROTOCOL);
    let is_routes = |step: &Step| matches!(step, Step::ChangeRoutes(_));
    node.fake.fail_next(is_routes, Errno::ENETDOWN);
    node.engine().reconcile(NOW);
    assert!(node.peer_routes().is_empty());
    assert_eq!(node.degraded_words(), ["repair-failed"]);
    assert_eq!(node.peer_states(), [PeerState::Unreachable; 2]);
    node.engine().reconcile(NOW);
    assert_eq!(node.peer_states(), [PeerState::Routed; 2]);
    assert_eq!(node.peer_routes().len(), 3);
    assert_eq!(node.degraded_words(), Vec::<&str>::new());
}

/// The kernel refuses a route: the list is in effect anyway, and the pods' ADDs succeed.
#[test]
fn a_route_to_a_peer_that_fails_prevents_neither_the_list_nor_an_add() {
    let mut node = Node::start();
    let is_routes = |step: &Step| matches!(step, Step::ChangeRoutes(_));
    node.fake.fail_next(is_routes, Errno::ENETDOWN);
    node.fake.fail_next(is_routes, Errno::ENETDOWN);
    assert_eq!(node.set_peers(TWO), UpdateOutcome::Updated);
    assert_eq!(node.degraded_words(), ["repair-failed"]);
    let intent = node.intent("c1");
    node.add(&intent).unwrap();
    node.engine().reconcile(NOW);
    assert_eq!(node.peer_routes().len(), 3);
}

#[test]
fn an_agent_that_dies_at_any_step_leaves_nothing_that_its_next_start_does_not_mend() {
    for steps in 0.. {
        let mut node = Node::start();
        node.set_peers("b 10.9.0.0/24 192.0.2.40\n");
        node.fake.crash_after(steps);
        let peers: Peers = TWO.parse().unwrap();
        let finished = node.engine().set_peers(peers, NOW).is_ok() && !node.fake.is_crashed();
        node.fake.restart();
        node.restart();
        assert_eq!(node.peer_routes().len(), 3, "after {steps} steps");
        assert_eq!(
            node.kept(),
            ["10.2.0.0/24", "10.3.0.0/24", "fd00:2::/64"],
            "after {steps} steps"
        );
        if finished {
            assert!(steps > 2, "the list takes several steps");
            return;
        }
    }
}

#[test]
fn problems_with_peers_are_degradations_by_name() {
    let mut node = Node::start();
    let lines = (0..12).map(|n| format!("far{n} 10.{}.0.0/24 203.0.113.{n}", 20 + n));
    let far = lines.collect::<Vec<_>>().join("\n");
    node.set_peers(&format!("{far}\nown 10.1.0.0/28,10.5.0.0/24 192.0.2.10\n"));
    assert_eq!(node.degraded_words(), ["peer-conflict", "peer-not-on-link"]);
    let texts: Vec<String> = node
        .engine()
        .status()
        .degraded
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(texts[0], "peer own has the address 192.0.2.10 of this node");
    assert!(
        texts[1].starts_with("peer far0 has no IPv4 address on a link of this node; "),
        "{texts:?}"
    );
    assert!(
        texts[1].ends_with("; and 2 more: viaductctl peers"),
        "{texts:?}"
    );
}

#[test]
fn routes_follow_the_addresses_of_the_node() {
    let mut node = Node::start();
    node.set_peers("b 10.2.0.0/24 198.51.100.2\n");
    assert_eq!(node.degraded_words(), ["peer-not-on-link"]);
    node.fake.add_address("eth0", "198.51.100.1/24");
    node.engine().reconcile(NOW);
    assert_eq!(node.peer_routes(), ["10.2.0.0/24 via 198.51.100.2"]);
    assert_eq!(node.degraded_words(), Vec::<&str>::new());
}

#[test]
fn an_uninstall_removes_exactly_the_routes_of_ours() {
    let mut node = Node::start();
    node.fake
        .add_route("10.7.0.0/24", Some("192.0.2.7"), "eth0");
    node.set_peers(TWO);
    node.for_uninstall()
        .uninstall(AttachedPods::Refuse)
        .unwrap();
    assert!(node.peer_routes().is_empty());
    let foreign = "10.7.0.0/24".parse().unwrap();
    let left = node.fake.snapshot().routes;
    assert!(left.iter().any(|route| route.destination == foreign));
}
