//! By which programs sockets of the node are asked.

use kernel::fake::Errno;
use planner::{SocketHook, SocketHookState, Step};

use super::*;

fn on_cgroup() -> Node {
    let fake = Fake::new();
    fake.add_cgroup();
    Node::on(fake)
}

fn attached(node: &Node) -> Vec<SocketHook> {
    node.fake
        .snapshot()
        .socket_hooks
        .into_iter()
        .filter(|(_, link)| *link == SocketHookState::Attached)
        .map(|(hook, _)| hook)
        .collect()
}

/// A container with a port and a limit, as often as wanted.
fn wish(node: &Node, container: &str, port: u16) -> Intent {
    let mut intent = node.intent(container);
    intent.port_mappings = vec![publish(port)];
    intent.bandwidth.egress = Some(limit(1_000_000));
    intent
}

fn paces(node: &mut Node) -> bool {
    node.engine().status().shaper.paces
}

#[test]
fn sockets_of_the_node_are_asked_from_the_first_port_and_the_first_limit_on() {
    let mut node = on_cgroup();
    assert_eq!(attached(&node), []);
    assert!(paces(&mut node), "it will");
    let plain = node.add(&node.intent("c1")).unwrap();
    assert_eq!(attached(&node), []);

    let intent = wish(&node, "c2", 8080);
    node.fake.take_log();
    node.add(&intent).unwrap();
    let now = attached(&node);
    assert!(now.contains(&SocketHook::Connect4) && now.contains(&SocketHook::Pace));
    assert!(!now.contains(&SocketHook::Sendmsg4), "no port is of UDP");
    let log = node.fake.take_log();
    let attach = |step: &Step| matches!(step, Step::AttachSocketHooks { .. });
    let publish = |step: &Step| {
        matches!(
            step,
            Step::PutEntry {
                key: EntryKey::Hostport { .. },
                ..
            }
        )
    };
    let asked = log.iter().position(attach).unwrap();
    assert!(asked < log.iter().position(publish).unwrap());

    // Who has them already attaches none.
    node.add(&wish(&node, "c3", 8081)).unwrap();
    assert!(!node.fake.take_log().iter().any(attach));
    node.engine().del(&plain.key).unwrap();
    assert_eq!(attached(&node), now);
}

#[test]
fn the_next_agent_leaves_what_nobody_needs_to_nobody() {
    let mut node = on_cgroup();
    let attachment = node.add(&wish(&node, "c1", 8080)).unwrap();
    let needed = attached(&node);
    node.restart();
    assert_eq!(attached(&node), needed, "in the same links");
    node.engine().del(&attachment.key).unwrap();
    assert_eq!(attached(&node), needed, "who had a port will have another");
    node.restart();
    let links = node.fake.snapshot().socket_hooks;
    assert!(links.values().all(|link| *link == SocketHookState::Absent));
}

#[test]
fn a_pod_is_served_where_its_sockets_cannot_be_asked_and_that_is_told() {
    let mut node = on_cgroup();
    for _ in 0..2 {
        let attach = |step: &Step| matches!(step, Step::AttachSocketHooks { .. });
        node.fake.fail_next(attach, Errno::EPERM);
    }
    node.add(&wish(&node, "c1", 8080)).unwrap();
    assert_eq!(attached(&node), []);
    node.fake.take_log();
    node.add(&wish(&node, "c2", 8081)).unwrap();
    assert_eq!(attached(&node), [], "not each ADD tries again");
    node.engine().reconcile(NOW);
    assert!(!paces(&mut node));
    node.engine().reconcile(NOW);
    assert!(attached(&node).contains(&SocketHook::Pace) && paces(&mut node));
}
