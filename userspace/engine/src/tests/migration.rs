//! A migration from other plugins, and back.

use abi::{Address, Port, Tuple, protocol};
use steps::TrackedConnection;

use super::chain::{foreign, update};
use super::*;

fn connection(client: [u8; 4]) -> TrackedConnection {
    let tuple = |source, destination| Tuple {
        source: Address::v4(source),
        destination: Address::v4(destination),
        source_port: Port::new(8_080),
        destination_port: Port::new(8_080),
        protocol: protocol::TCP,
        reserved: [0; 3],
    };
    TrackedConnection {
        original: tuple(client, [192, 0, 2, 10]),
        reply: tuple([10, 7, 0, 2], client),
        tcp_state: Some(TrackedConnection::ESTABLISHED),
        ..TrackedConnection::default()
    }
}

#[test]
fn open_connections_to_pods_get_flows_unless_it_is_a_dry_run() {
    let mut node = Node::start();
    let outside = connection([198, 51, 100, 1]);
    let of_node = connection([192, 0, 2, 10]);
    let of_pod = connection([10, 7, 0, 2]);
    node.fake.set_translated(vec![outside, of_node, of_pod]);
    let pods = BTreeSet::from(["10.7.0.2".parse().unwrap()]);
    for dry_run in [true, false] {
        let found = node.engine().keep_connections(&pods, dry_run).unwrap();
        assert_eq!((found.kept, found.lost.len()), (1, 0));
        assert_eq!(found.of_pods, [of_pod]);
        let made = if dry_run { vec![] } else { vec![outside] };
        assert_eq!(node.fake.made_flows(), made);
    }
}

#[test]
fn drained_ports_leave_an_adopted_interface_with_its_programs() {
    let mut node = Node::start();
    let adoption = foreign(&node);
    let before = node.traces();
    node.engine()
        .adopt_or_update(&update(&adoption, &[]), NOW)
        .unwrap();
    let without_ports = node.traces();
    node.engine()
        .adopt_or_update(&update(&adoption, &[8080]), NOW)
        .unwrap();
    let drained = node.engine().drain_ports(&adoption.key).unwrap();
    assert!(drained.port_mappings.is_empty());
    assert_eq!(node.traces(), without_ports);
    // A reconciliation keeps it, and the DEL releases it.
    node.engine().reconcile(NOW);
    assert_eq!(node.engine().attachments().len(), 1);
    let keys = [adoption.key.clone()];
    node.engine().unpublish_ports(&keys).unwrap();
    node.engine().reconcile(NOW);
    assert_eq!(node.traces(), before);
    assert!(node.engine().drain_ports(&adoption.key).is_err());
}

#[test]
fn ports_of_an_interface_of_viaduct_are_not_drained() {
    let mut node = Node::start();
    let intent = node.intent("ours");
    node.add(&intent).unwrap();
    assert!(node.engine().drain_ports(&intent.key).is_err());
}
