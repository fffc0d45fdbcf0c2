//! Hostports of containers with several interfaces.

use super::failing_kernel::{Fate, survive};
use super::*;

/// Returns an intent for an interface of container `c1` on a network of its own.
fn on(node: &Node, name: &str, bridge: &str, subnet: &str, ifname: &str) -> Intent {
    let mut intent = node.intent_on(&network(name, bridge, &[subnet]), "c1");
    intent.key.ifname = ifname.parse().unwrap();
    intent.port_mappings = vec![publish(8080)];
    intent
}

fn both(node: &mut Node) -> (Intent, Intent) {
    let first = on(node, "a", "br-a", "10.3.0.0/24", "eth0");
    let second = on(node, "b", "br-b", "10.4.0.0/24", "eth1");
    node.add(&first).unwrap();
    node.add(&second).unwrap();
    (first, second)
}

/// Returns the pod's address to which port 8080 leads in IPv4.
fn target(node: &Node) -> Option<String> {
    let entries = node.fake.snapshot().entries;
    entries
        .into_iter()
        .find_map(|(key, entry)| match (key, entry) {
            (
                EntryKey::Hostport {
                    ipv4: true,
                    port: 8080,
                    ..
                },
                Entry::Hostport { address, .. },
            ) => Some(address.to_string()),
            _ => None,
        })
}

fn reservations(node: &Node) -> usize {
    node.fake.snapshot().port_reservations.len()
}

#[test]
fn the_port_of_a_container_passes_to_its_other_interface_with_the_del_of_the_first() {
    let mut node = Node::start();
    let (first, second) = both(&mut node);
    assert_eq!(target(&node).as_deref(), Some("10.3.0.2"));
    node.fake.take_log();
    node.engine().del(&first.key).unwrap();
    assert_eq!(target(&node).as_deref(), Some("10.4.0.2"));
    assert_eq!(reservations(&node), 1);
    let log: Vec<String> = node
        .fake
        .take_log()
        .iter()
        .map(ToString::to_string)
        .collect();
    let removals = log
        .iter()
        .filter(|step| step.starts_with("remove hostport"));
    assert_eq!(
        removals.count(),
        0,
        "the entry is replaced in place: {log:?}"
    );
    node.engine().check(&second.key).unwrap();
    node.engine().del(&second.key).unwrap();
    assert_eq!((target(&node), reservations(&node)), (None, 0));
}

#[test]
fn the_del_of_an_interface_that_stands_by_leaves_the_port_alone() {
    let mut node = Node::start();
    let (first, second) = both(&mut node);
    node.engine().del(&second.key).unwrap();
    assert_eq!(target(&node).as_deref(), Some("10.3.0.2"));
    node.engine().check(&first.key).unwrap();
    // The other way round: a network is connected again.
    node.add(&second).unwrap();
    node.engine().del(&first.key).unwrap();
    assert_eq!(target(&node).as_deref(), Some("10.4.0.3"));
}

#[test]
fn a_port_that_portmap_withdraws_passes_to_the_other_interface() {
    let mut node = Node::start();
    let (first, second) = both(&mut node);
    node.engine()
        .unpublish_ports(std::slice::from_ref(&first.key))
        .unwrap();
    assert_eq!(target(&node).as_deref(), Some("10.4.0.2"));
    node.engine().check(&first.key).unwrap();
    node.engine().check(&second.key).unwrap();
    node.restart();
    assert_eq!(target(&node).as_deref(), Some("10.4.0.2"));
}

#[test]
fn a_port_is_served_by_one_interface_after_a_crash_in_each_step_of_a_hand_over() {
    for calls in 0..40 {
        let mut node = Node::start();
        let (first, _) = both(&mut node);
        node.kernel.meet(Fate::Die(calls));
        let done = survive(|| node.engine().del(&first.key).unwrap());
        node.kernel.live();
        node.restart();
        let found = target(&node).unwrap();
        assert!(
            ["10.3.0.2", "10.4.0.2"].contains(&found.as_str()),
            "{found}"
        );
        node.engine().del(&first.key).unwrap();
        assert_eq!(target(&node).as_deref(), Some("10.4.0.2"));
        assert_eq!(reservations(&node), 1);
        if done.is_some() {
            return;
        }
    }
    panic!("a DEL has fewer steps");
}
