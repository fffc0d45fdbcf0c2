//! Tests of TCP state: segments that fit the connection change it, forged ones do not.

use abi::{Flow, FlowFlags, Timeouts, protocol};
use proptest::prelude::*;

use super::{SUSPECTED, WINDOW};
use crate::flow::{is_finished, timeout};
use crate::outcome::Verdict;
use crate::simulator::example::{HOSTPORT, INTERFACE, POD_PORT, node, pod, remote, world};
use crate::simulator::frame::{Body, Frame, flag};
use crate::simulator::{Place, Simulator};

const PORT: u16 = 40_000;
const RST_ACK: u8 = flag::RST | flag::ACK;
const FIN_ACK: u8 = flag::FIN | flag::ACK;
const SYN_ACK: u8 = flag::SYN | flag::ACK;
/// Packets of each direction that make entries in the flow cache.
const MANY: u32 = 20;

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}
use Side::{Client, Server};

/// One connection through the simulated node: of a pod to the world, or of the world to a hostport.
struct Connection {
    simulator: Simulator,
    family: usize,
    published: bool,
    /// The next sequence numbers of client and server.
    next: [u32; 2],
}

impl Connection {
    fn new(family: usize, published: bool) -> Self {
        Self {
            simulator: Simulator::new(world()),
            family,
            published,
            next: [1_000, 0xffff_fff0],
        }
    }

    fn established(family: usize, published: bool) -> Self {
        let mut connection = Self::new(family, published);
        connection.handshake();
        for _ in 0..MANY {
            connection.exchange(10);
        }
        assert_eq!(connection.timeout(), Timeouts::default().tcp_established);
        connection
    }

    fn handshake(&mut self) {
        self.send(Client, flag::SYN, 0);
        self.send(Server, SYN_ACK, 0);
        self.send(Client, flag::ACK, 0);
    }

    /// Sends data in both directions.
    fn exchange(&mut self, bytes: u32) {
        self.send(Client, flag::ACK, bytes);
        self.send(Server, flag::ACK, bytes);
        self.send(Client, flag::ACK, 0);
    }

    /// Returns the next sequence number of a side.
    fn expected(&self, from: Side) -> u32 {
        self.next[from as usize]
    }

    /// Sends a segment of the connection; the receiver has everything before it.
    fn send(&mut self, from: Side, flags: u8, bytes: u32) {
        let to = if from == Client { Server } else { Client };
        let (sequence, acknowledged) = (self.expected(from), self.expected(to));
        self.forge(from, flags, sequence, acknowledged, bytes);
        let extra = u32::from(flags & flag::SYN != 0) + u32::from(flags & flag::FIN != 0);
        let next = &mut self.next[from as usize];
        *next = next.wrapping_add(bytes + extra);
    }

    /// Sends a segment with these numbers.
    fn forge(&mut self, from: Side, flags: u8, sequence: u32, acknowledged: u32, bytes: u32) {
        let payload = vec![7; bytes as usize];
        let body = |from, to| Body::Tcp(from, to, flags, payload.clone());
        let f = self.family;
        let (us, them, inside) = (node()[f], remote()[f], pod()[f]);
        let (place, frame) = match (self.published, from) {
            (false, Client) => (Place::UplinkOut, Frame::new(inside, them, body(PORT, 443))),
            (false, Server) => (Place::UplinkIn, Frame::new(them, us, body(443, PORT))),
            (true, Client) => (Place::UplinkIn, Frame::new(them, us, body(PORT, HOSTPORT))),
            (true, Server) => (
                Place::UplinkOut,
                Frame::new(inside, them, body(POD_PORT, PORT)),
            ),
        };
        let mut bytes = frame.bytes();
        let at = [38, 58][f];
        bytes[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
        bytes[at + 4..at + 8].copy_from_slice(&acknowledged.to_be_bytes());
        let (verdict, _) = self.simulator.run(place, INTERFACE, &bytes);
        assert_eq!(verdict, Verdict::Pass);
    }

    /// Returns both directions of the flow.
    fn flows(&self) -> [Flow; 2] {
        let flows = &self.simulator.world.flows;
        assert_eq!(flows.len(), 2, "{flows:?}");
        let mut both: Vec<Flow> = flows.values().copied().collect();
        both.sort_by_key(|flow| flow.flags & FlowFlags::ORIGINAL);
        [both[1], both[0]]
    }

    fn timeout(&self) -> u32 {
        let [one, other] = self.flows();
        let timeouts = Timeouts::default();
        let timeout = timeout(one.seen, other.seen, protocol::TCP, &timeouts);
        assert_eq!(
            timeout,
            self::timeout(other.seen, one.seen, protocol::TCP, &timeouts)
        );
        timeout
    }

    fn is_finished(&self) -> bool {
        let [one, other] = self.flows();
        is_finished(&one, &other, protocol::TCP, self.simulator.world.now)
    }
}

/// Runs a test for connections of pods and to hostports, of both families.
fn on_each(test: impl Fn(Connection)) {
    for family in [0, 1] {
        for published in [false, true] {
            test(Connection::new(family, published));
        }
    }
}

fn on_each_established(test: impl Fn(Connection)) {
    for family in [0, 1] {
        for published in [false, true] {
            test(Connection::established(family, published));
        }
    }
}

proptest! {
    /// Forged segments out of the window never change the timeout, and the flow is never evicted
    /// as finished.
    #[test]
    fn forged_segments_out_of_the_window_never_change_the_timeout(
        (family, published) in (0..2_usize, any::<bool>()),
        forged in prop::collection::vec(
            (any::<bool>(), 0..6_usize, WINDOW..(u32::MAX - 2_000), any::<u32>(), any::<bool>()),
            1..30,
        ),
    ) {
        let mut connection = Connection::established(family, published);
        let all = [flag::RST, RST_ACK, flag::FIN, FIN_ACK, flag::SYN, flag::SYN | flag::RST];
        for (by_client, flags, beyond, acknowledged, exchange) in forged {
            let from = if by_client { Client } else { Server };
            let sequence = connection.expected(from).wrapping_add(beyond);
            connection.forge(from, all[flags], sequence, acknowledged, 0);
            prop_assert_eq!(connection.timeout(), Timeouts::default().tcp_established);
            prop_assert!(!connection.is_finished());
            if exchange {
                connection.exchange(3);
                prop_assert_eq!(connection.timeout(), Timeouts::default().tcp_established);
            }
        }
    }

    /// Whatever is forged, the connection's own RST still resets it.
    #[test]
    fn a_genuine_reset_counts_after_any_forged_segments(
        (family, published, by_client) in (0..2_usize, any::<bool>(), any::<bool>()),
        forged in prop::collection::vec((any::<bool>(), any::<u8>(), any::<[u32; 2]>()), 0..10),
    ) {
        let mut connection = Connection::established(family, published);
        for (by_client, flags, [sequence, acknowledged]) in forged {
            let from = if by_client { Client } else { Server };
            connection.forge(from, flags & 0x17, sequence, acknowledged, 0);
        }
        connection.exchange(3);
        connection.send(if by_client { Client } else { Server }, RST_ACK, 0);
        prop_assert_eq!(connection.timeout(), Timeouts::default().tcp_reset);
        prop_assert!(connection.is_finished());
    }
}

/// The acknowledgment that the RST is compared with may only be in the flow cache.
#[test]
fn a_reset_at_the_last_acknowledged_number_resets_the_flow() {
    for from in [Client, Server] {
        on_each_established(|mut connection| {
            assert!(
                connection.simulator.world.memory.hits > 0,
                "the cache is used"
            );
            connection.send(from, flag::RST, 0);
            assert_eq!(connection.timeout(), Timeouts::default().tcp_reset);
            assert!(connection.is_finished());
        });
    }
}

/// Data before the RST may not be acknowledged yet.
#[test]
fn a_reset_behind_unacknowledged_data_shortens_the_timeout_until_a_packet_contradicts() {
    on_each_established(|mut connection| {
        connection.send(Client, flag::ACK, 100);
        connection.send(Client, RST_ACK, 0);
        assert_eq!(connection.timeout(), SUSPECTED);
        assert!(!connection.is_finished());
        connection.send(Client, flag::ACK, 100);
        assert_eq!(connection.timeout(), Timeouts::default().tcp_established);
    });
}

#[test]
fn a_connection_that_both_sides_close_is_finished() {
    for first in [Client, Server] {
        on_each_established(|mut connection| {
            let second = if first == Client { Server } else { Client };
            connection.send(first, FIN_ACK, 0);
            assert_eq!(connection.timeout(), Timeouts::default().tcp_closing);
            assert!(!connection.is_finished(), "half closed");
            connection.send(second, FIN_ACK, 10);
            connection.send(first, flag::ACK, 0);
            assert_eq!(connection.timeout(), Timeouts::default().tcp_closing);
            assert!(connection.is_finished());
        });
    }
}

/// A FIN behind more data than the window counts when the receiver has acknowledged it.
#[test]
fn a_fin_behind_much_data_counts_with_its_acknowledgment() {
    on_each_established(|mut connection| {
        let (client, server) = (connection.expected(Client), connection.expected(Server));
        let far = server.wrapping_add(10 * WINDOW);
        connection.forge(Server, FIN_ACK, far, client, 0);
        assert_eq!(connection.timeout(), Timeouts::default().tcp_established);
        connection.forge(Client, flag::ACK, client, far, 0);
        assert_eq!(connection.timeout(), Timeouts::default().tcp_established);
        connection.forge(Client, flag::ACK, client, far.wrapping_add(1), 0);
        assert_eq!(connection.timeout(), Timeouts::default().tcp_closing);
        connection.forge(Client, FIN_ACK, client, far.wrapping_add(1), 0);
        assert!(connection.is_finished());
    });
}

#[test]
fn a_refused_connection_is_reset_by_the_answer_to_its_syn_only() {
    on_each(|mut connection| {
        connection.send(Client, flag::SYN, 0);
        let client = connection.expected(Client);
        connection.forge(Server, RST_ACK, 0, client.wrapping_add(1), 0);
        connection.forge(Server, flag::RST, client, 0, 0);
        assert_eq!(connection.timeout(), Timeouts::default().tcp_opening);
        connection.forge(Server, RST_ACK, 0, client, 0);
        assert_eq!(connection.timeout(), Timeouts::default().tcp_reset);
    });
}

/// The server does not know the client's new SYN, and says so; the client resets the old
/// connection.
#[test]
fn a_client_that_has_lost_its_connection_opens_another_one() {
    on_each_established(|mut connection| {
        let established = Timeouts::default().tcp_established;
        let [old, server] = [connection.expected(Client), connection.expected(Server)];
        connection.forge(Client, flag::SYN, 7_000_000, 0, 0);
        assert_eq!(connection.timeout(), established);
        connection.forge(Server, flag::ACK, server, old, 0);
        assert_eq!(connection.timeout(), established);
        connection.forge(Client, flag::RST, old, 0, 0);
        assert_eq!(connection.timeout(), Timeouts::default().tcp_reset);
        connection.next = [7_000_000, 12];
        connection.send(Client, flag::SYN, 0);
        assert_eq!(connection.timeout(), Timeouts::default().tcp_opening);
        connection.send(Server, SYN_ACK, 0);
        connection.send(Client, flag::ACK, 0);
        assert_eq!(connection.timeout(), established);
    });
}

/// The server has lost the connection as well: it accepts or refuses the SYN.
#[test]
fn a_syn_counts_on_an_established_flow_if_the_server_acknowledges_it() {
    on_each_established(|mut connection| {
        connection.forge(Client, flag::SYN, 7_000_000, 0, 0);
        connection.forge(Server, SYN_ACK, 12, 7_000_001, 0);
        assert_eq!(connection.timeout(), Timeouts::default().tcp_opening);
        connection.forge(Client, flag::ACK, 7_000_001, 13, 0);
        assert_eq!(connection.timeout(), Timeouts::default().tcp_established);
    });
    on_each_established(|mut connection| {
        connection.forge(Client, flag::SYN, 7_000_000, 0, 0);
        connection.forge(Server, RST_ACK, 0, 7_000_001, 0);
        assert_eq!(connection.timeout(), Timeouts::default().tcp_reset);
    });
}
