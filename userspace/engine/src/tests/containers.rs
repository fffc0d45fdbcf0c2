//! Containers of other software on the node: the netfilter table, and their addresses.

use kernel::fake::Errno;
use steps::{NetfilterState, Step};

use super::*;

/// A node with a bridge of containers.
fn beside_docker() -> Node {
    let fake = Fake::new();
    fake.add_link("docker0", LinkKind::Bridge);
    fake.add_address("docker0", "172.17.0.1/16");
    Node::on(fake)
}

/// Returns whether hostports are in the netfilter table; `None` without a table.
fn serves(node: &Node) -> Option<bool> {
    match node.fake.snapshot().netfilter {
        NetfilterState::Present(table) => Some(table.hostports),
        NetfilterState::Absent | NetfilterState::Damaged | NetfilterState::Unsupported => None,
    }
}

fn publishing(node: &Node, container: &str, port: u16) -> Intent {
    let mut intent = node.intent(container);
    intent.port_mappings = vec![publish(port)];
    intent
}

fn is_of_netfilter(step: &Step) -> bool {
    matches!(step, Step::Netfilter(_))
}

#[test]
fn the_netfilter_table_serves_hostports_from_the_first_to_the_last() {
    let mut node = Node::start();
    node.add(&publishing(&node, "c0", 8079)).unwrap();
    assert_eq!(serves(&node), None, "there are no such containers");

    let mut node = beside_docker();
    assert_eq!(serves(&node), Some(false));
    node.add(&node.intent("c1")).unwrap();
    assert_eq!(serves(&node), Some(false));
    node.add(&publishing(&node, "c2", 8080)).unwrap();
    assert_eq!(serves(&node), Some(true));
    node.fake.take_log();
    let third = node.add(&publishing(&node, "c3", 8081)).unwrap();
    assert!(!node.fake.take_log().iter().any(is_of_netfilter));
    node.restart();
    assert!(!node.fake.take_log().iter().any(is_of_netfilter));
    node.engine().del(&third.key).unwrap();
    node.engine().reconcile(NOW);
    assert_eq!(serves(&node), Some(true));
    let second = node.intent("c2").key;
    node.engine().del(&second).unwrap();
    node.engine().reconcile(NOW);
    assert_eq!(serves(&node), Some(false));
    node.fake.delete_link("docker0");
    node.engine().reconcile(NOW);
    assert_eq!(serves(&node), None);
}

#[test]
fn an_add_succeeds_without_the_netfilter_table_and_reconciliation_writes_it() {
    let mut node = beside_docker();
    node.fake.fail_next(is_of_netfilter, Errno::EIO);
    node.add(&publishing(&node, "c1", 8080)).unwrap();
    assert_eq!(serves(&node), Some(false));
    node.engine().reconcile(NOW);
    assert_eq!(serves(&node), Some(true));
    for state in [NetfilterState::Absent, NetfilterState::Damaged] {
        node.fake.set_netfilter(state);
        node.engine().reconcile(NOW);
        assert_eq!(serves(&node), Some(true));
    }
}

#[test]
fn a_kernel_without_nftables_is_a_degradation_only_where_it_matters() {
    let mut node = beside_docker();
    node.fake.set_netfilter(NetfilterState::Unsupported);
    node.engine().reconcile(NOW);
    assert_eq!(node.engine().status().degraded, []);
    node.add(&publishing(&node, "c1", 8080)).unwrap();
    node.engine().reconcile(NOW);
    assert_eq!(
        node.engine().status().degraded,
        [crate::Degraded::NoNftables]
    );
    node.fake.delete_link("docker0");
    node.engine().reconcile(NOW);
    assert_eq!(node.engine().status().degraded, []);
}

#[test]
fn an_uninstall_removes_the_netfilter_table() {
    let mut node = beside_docker();
    node.add(&publishing(&node, "c1", 8080)).unwrap();
    let uninstall = crate::AttachedPods::Detach;
    node.engine().uninstall(uninstall).unwrap();
    assert_eq!(node.fake.snapshot().netfilter, NetfilterState::Absent);
}

/// A pod that the reference plugin ptp made in our CIDR.
#[test]
fn the_address_of_a_running_container_is_not_assigned() {
    let fake = Fake::new();
    fake.add_link("veth77", LinkKind::Veth);
    fake.add_address("veth77", "10.1.0.1/32");
    fake.add_route("10.1.0.2/32", None, "veth77");
    let mut node = Node::on(fake);
    let attachment = node.add(&node.intent("c1")).unwrap();
    assert_eq!(attachment.address(true), "10.1.0.3".parse().ok());
    assert!(
        node.engine()
            .status()
            .shares_addresses(&node.default_network.name.clone())
    );
}
