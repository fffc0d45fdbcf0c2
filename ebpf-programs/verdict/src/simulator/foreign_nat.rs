//! Tests of flows of other NATs on the node, which leave with the node's addresses.

use std::collections::BTreeSet;

use abi::FlowFlags;
use proptest::prelude::*;

use super::example::{INTERFACE, node, other_pod, pod, remote, world};
use super::frame::{Body, Frame, flag};
use super::{Place, Simulator};
use crate::node::Socket;
use crate::outcome::Verdict;

/// A flow of another NAT or of a pod, to one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sent {
    /// 0: another NAT; 1 and 2: the pods.
    from: usize,
    family: usize,
    kind: usize,
    port: u16,
}

fn sent() -> impl Strategy<Value = Sent> {
    (0..3_usize, 0..2_usize, 0..3_usize, 0..3_u16).prop_map(|(from, family, kind, port)| Sent {
        from,
        family,
        kind,
        port: 40_000 + port,
    })
}

impl Sent {
    /// Returns a request with this port or identifier, or the reply to it.
    fn body(&self, port: u16, is_reply: bool) -> Body {
        let address = remote()[self.family];
        match (self.kind, is_reply) {
            (0, false) => Body::Tcp(port, 443, flag::SYN, vec![]),
            (0, true) => Body::Tcp(443, port, flag::SYN | flag::ACK, vec![]),
            (1, false) => Body::Udp(port, 443, vec![]),
            (1, true) => Body::Udp(443, port, vec![]),
            (_, false) => Body::echo_request(&address, port),
            (_, true) => Body::echo_reply(&address, port),
        }
    }

    /// Sends the first packet; returns the port or identifier that leaves.
    fn leave(&self, simulator: &mut Simulator) -> u16 {
        let source = [node(), pod(), other_pod()][self.from][self.family];
        let frame = Frame::new(source, remote()[self.family], self.body(self.port, false));
        let (verdict, packet) = simulator.run(Place::UplinkOut, INTERFACE, &frame.bytes());
        assert_eq!(verdict, Verdict::Pass);
        let at = [34, 54][self.family] + if self.kind == 2 { 4 } else { 0 };
        u16::from_be_bytes([packet[at], packet[at + 1]])
    }

    /// Checks that the reply to the packet that has left reaches its sender unchanged.
    fn is_answered(&self, simulator: &mut Simulator, port: u16) {
        let (them, us) = (remote()[self.family], node()[self.family]);
        let reply = Frame::new(them, us, self.body(port, true));
        let (verdict, packet) = simulator.run(Place::UplinkIn, INTERFACE, &reply.bytes());
        assert_eq!(verdict, Verdict::Pass);
        let to = [node(), pod(), other_pod()][self.from][self.family];
        let expected = reply.becoming(them, to, self.body(self.port, true));
        assert_eq!(packet, expected.bytes(), "{self:?} by {port}");
    }
}

proptest! {
    /// No two flows leave with the same tuple, and each reply reaches its own flow: whatever
    /// another NAT has in use is never given to a pod, and the reverse.
    #[test]
    fn flows_of_pods_and_of_another_nat_are_kept_apart(
        all in prop::collection::vec(sent(), 1..60),
    ) {
        let mut simulator = Simulator::new(world());
        let mut open = std::collections::BTreeMap::new();
        for sent in &all {
            let port = sent.leave(&mut simulator);
            prop_assert_eq!(*open.entry(*sent).or_insert(port), port, "{:?} moves", sent);
        }
        let used: BTreeSet<_> = open
            .iter()
            .map(|(sent, port)| (sent.family, sent.kind, *port))
            .collect();
        prop_assert_eq!(used.len(), open.len(), "two flows leave with one tuple");
        for (sent, port) in &open {
            sent.is_answered(&mut simulator, *port);
        }
    }
}

fn nodes_packet() -> Frame {
    let body = Body::Tcp(40_000, 443, flag::SYN, vec![]);
    Frame::new(node()[0], remote()[0], body)
}

#[test]
fn packets_of_a_socket_of_the_node_make_no_flow() {
    let mut simulator = Simulator::new(world());
    simulator.world.sent_by_socket = true;
    simulator.run(Place::UplinkOut, INTERFACE, &nodes_packet().bytes());
    assert!(simulator.world.flows.is_empty());

    // The kernel does not say which socket has sent the packet, but one has its tuple.
    simulator.world.sent_by_socket = false;
    let reply = abi::Tuple {
        source: remote()[0],
        destination: node()[0],
        source_port: abi::Port::new(443),
        destination_port: abi::Port::new(40_000),
        protocol: abi::protocol::TCP,
        reserved: [0; 3],
    };
    simulator.world.sockets.insert(reply, Socket::Connected);
    simulator.run(Place::UplinkOut, INTERFACE, &nodes_packet().bytes());
    assert!(simulator.world.flows.is_empty());

    simulator.world.sockets.clear();
    simulator.run(Place::UplinkOut, INTERFACE, &nodes_packet().bytes());
    let flows = &simulator.world.flows;
    assert_eq!(flows.len(), 2);
    assert!(flows.values().all(|flow| flow.flags & FlowFlags::NODE != 0));
}

#[test]
fn flows_of_other_nats_beyond_their_quota_pass_without_an_entry() {
    let mut simulator = Simulator::new(world());
    simulator.world.settings.flow_quota = 10;
    for port in 0..50 {
        let body = Body::Tcp(40_000 + port, 443, flag::SYN, vec![]);
        let frame = Frame::new(node()[0], remote()[0], body);
        let (verdict, packet) = simulator.run(Place::UplinkOut, INTERFACE, &frame.bytes());
        assert_eq!((verdict, packet), (Verdict::Pass, frame.bytes()));
    }
    assert_eq!(simulator.world.flows.len(), 20);
}
