//! What becomes of connections that netfilter translates to pods when the pods get hostports of the
//! agent and programs at their veths.

use std::collections::BTreeSet;
use std::net::IpAddr;

use abi::Address;
use steps::TrackedConnection;

/// `TCP_CONNTRACK_SYN_RECV` and `TCP_CONNTRACK_LAST_ACK`: the first and the last state in which the
/// client may have a connection.
const OPEN: [u8; 2] = [2, 6];

/// Connections that netfilter translates to pods, by what the datapath does with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TranslatedConnections {
    /// Clients outside of the node. With a flow, uplinks leave these to netfilter.
    pub from_outside: Vec<TrackedConnection>,
    /// The client is one of the pods: the program at its veth would translate packets that
    /// netfilter has translated so far, and the connection would be reset.
    pub of_pods: Vec<TrackedConnection>,
}

impl TranslatedConnections {
    /// Sorts open connections to `pods`. Those of the node itself are in neither list, since they
    /// pass no program that translates. `own` has the clients' addresses that are the node's.
    pub fn sort(
        connections: &[TrackedConnection],
        pods: &BTreeSet<IpAddr>,
        own: &BTreeSet<IpAddr>,
    ) -> Self {
        let mut sorted = Self::default();
        for connection in connections.iter().filter(|connection| is_open(connection)) {
            let client = ip(&connection.original.source);
            if pods.contains(&client) {
                sorted.of_pods.push(*connection);
            } else if !client.is_loopback() && !own.contains(&client) {
                sorted.from_outside.push(*connection);
            }
        }
        sorted
    }
}

/// Returns the addresses of the clients.
pub fn clients(connections: &[TrackedConnection]) -> BTreeSet<IpAddr> {
    let sources = connections.iter().map(|it| ip(&it.original.source));
    sources.collect()
}

fn is_open(connection: &TrackedConnection) -> bool {
    let [first, last] = OPEN;
    let state = connection.tcp_state;
    state.is_some_and(|state| (first..=last).contains(&state))
}

fn ip(address: &Address) -> IpAddr {
    IpAddr::from(address.bytes()).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::{Port, Tuple, protocol};

    fn connection(client: [u8; 4], state: u8) -> TrackedConnection {
        let tuple = |source, destination, from, to| Tuple {
            source: Address::v4(source),
            destination: Address::v4(destination),
            source_port: Port::new(from),
            destination_port: Port::new(to),
            protocol: protocol::TCP,
            reserved: [0; 3],
        };
        TrackedConnection {
            original: tuple(client, [192, 0, 2, 1], 40_000, 8_080),
            reply: tuple([10, 1, 0, 2], client, 80, 40_000),
            tcp_state: Some(state),
            ..TrackedConnection::default()
        }
    }

    #[test]
    fn translated_connections_are_sorted_by_their_clients() {
        let outside = connection([198, 51, 100, 1], TrackedConnection::ESTABLISHED);
        let pod = connection([10, 1, 0, 3], TrackedConnection::ESTABLISHED);
        let node = connection([192, 0, 2, 1], TrackedConnection::ESTABLISHED);
        let loopback = connection([127, 0, 0, 1], TrackedConnection::ESTABLISHED);
        let all = [outside, pod, node, loopback];
        let pods = BTreeSet::from(["10.1.0.2", "10.1.0.3"].map(|it| it.parse().unwrap()));
        let own = BTreeSet::from(["192.0.2.1".parse().unwrap()]);
        let sorted = TranslatedConnections::sort(&all, &pods, &own);
        assert_eq!(sorted.from_outside, [outside]);
        assert_eq!(sorted.of_pods, [pod]);
        assert_eq!(clients(&all).len(), 4);
    }

    #[test]
    fn translated_connections_that_have_ended_need_no_flow() {
        let states = (0..10).map(|state| connection([198, 51, 100, 1], state));
        let all: Vec<_> = states.collect();
        let none = BTreeSet::new();
        let sorted = TranslatedConnections::sort(&all, &none, &none);
        // SYN_RECV, ESTABLISHED, FIN_WAIT, CLOSE_WAIT, LAST_ACK.
        let open: Vec<_> = sorted.from_outside.iter().map(|it| it.tcp_state).collect();
        assert_eq!(open, [2, 3, 4, 5, 6].map(Some));
        let unknown = TrackedConnection {
            tcp_state: None,
            ..all[3]
        };
        let sorted = TranslatedConnections::sort(&[unknown], &none, &none);
        assert_eq!(sorted, TranslatedConnections::default());
    }
}
