//! Attachment of cgroup socket programs.

use kernel::fake::Errno;
use steps::{SocketHook, SocketHookState, Step};

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

/// Returns an intent for a container with a hostport and a limit.
fn limited_intent(node: &Node, container: &str, port: u16) -> Intent {
    let mut intent = node.intent(container);
    intent.port_mappings = vec![publish(port)];
    intent.bandwidth.egress = Some(limit(1_000_000));
    intent
}

fn paces(node: &mut Node) -> bool {
    node.engine().status().shaper.paces
}

#[test]
fn socket_programs_are_attached_with_the_first_hostport_and_the_first_limit() {
    let mut node = on_cgroup();
    assert_eq!(attached(&node), []);
    assert!(paces(&mut node), "pacing starts with the first limit");
    let plain = node.add(&node.intent("c1")).unwrap();
    assert_eq!(attached(&node), []);

    let intent = limited_intent(&node, "c2", 8080);
    node.fake.take_log();
    node.add(&intent).unwrap();
    let now = attached(&node);
    assert!(now.contains(&SocketHook::Connect4) && now.contains(&SocketHook::Pace));
    assert!(
        !now.contains(&SocketHook::Sendmsg4),
        "no UDP port is published"
    );
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
    let attached_at = log.iter().position(attach).unwrap();
    assert!(attached_at < log.iter().position(publish).unwrap());

    // Attached programs are not attached again.
    node.add(&limited_intent(&node, "c3", 8081)).unwrap();
    assert!(!node.fake.take_log().iter().any(attach));
    node.engine().del(&plain.key).unwrap();
    assert_eq!(attached(&node), now);
}

#[test]
fn a_restarted_agent_detaches_unneeded_socket_programs() {
    let mut node = on_cgroup();
    let attachment = node.add(&limited_intent(&node, "c1", 8080)).unwrap();
    let needed = attached(&node);
    node.restart();
    assert_eq!(
        attached(&node),
        needed,
        "the restarted agent keeps the links"
    );
    node.engine().del(&attachment.key).unwrap();
    assert_eq!(
        attached(&node),
        needed,
        "programs stay until the next start"
    );
    node.restart();
    let links = node.fake.snapshot().socket_hooks;
    assert!(links.values().all(|link| *link == SocketHookState::Absent));
}

#[test]
fn an_add_succeeds_without_socket_programs_and_the_status_shows_it() {
    let mut node = on_cgroup();
    for _ in 0..2 {
        let attach = |step: &Step| matches!(step, Step::AttachSocketHooks { .. });
        node.fake.fail_next(attach, Errno::EPERM);
    }
    node.add(&limited_intent(&node, "c1", 8080)).unwrap();
    assert_eq!(attached(&node), []);
    node.fake.take_log();
    node.add(&limited_intent(&node, "c2", 8081)).unwrap();
    assert_eq!(attached(&node), [], "not every ADD tries again");
    node.engine().reconcile(NOW);
    assert!(!paces(&mut node));
    node.engine().reconcile(NOW);
    assert!(attached(&node).contains(&SocketHook::Pace) && paces(&mut node));
}
