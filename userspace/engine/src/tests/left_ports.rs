//! Hostports that a container runtime binds itself.

use kernel::Process;
use steps::ReservedBy;

use super::*;

const ID: &str = "4f0c2b6e8d1a4f0c2b6e8d1a4f0c2b6e";
const PODMAN: u32 = 100;

fn process(pid: u32, arguments: &[&str]) -> Process {
    Process {
        pid,
        command: arguments[0].to_owned(),
        arguments: arguments.iter().map(|text| (*text).to_owned()).collect(),
        is_root: true,
    }
}

fn conmon() -> Process {
    process(200, &["conmon", "-c", ID])
}

/// Returns a node with a container whose runtime binds port 8080 itself.
fn node() -> (Node, Intent) {
    let mut node = Node::start();
    let mut intent = node.intent(ID);
    intent.port_mappings = vec![publish(8080)];
    intent.requested.port_binder = Some(PODMAN);
    node.add(&intent).unwrap();
    (node, intent)
}

/// Returns what holds the port, in IPv4 and IPv6.
fn held(node: &Node) -> Vec<ReservedBy> {
    let held = node.fake.snapshot().port_reservations;
    held.values().map(|owner| owner.by).collect()
}

fn settle(node: &mut Node, intent: &Intent) -> bool {
    let settled = node.engine().settle_left_ports(&intent.key, PODMAN, false);
    settled.unwrap()
}

#[test]
fn only_the_runtime_of_the_container_can_bind_a_port_that_was_left_to_it() {
    let (mut node, intent) = node();
    assert_eq!(held(&node), [ReservedBy::Runtime; 2]);
    assert!(!node.fake.bind("0.0.0.0:8080/tcp", process(7, &["nginx"])));
    assert!(!settle(&mut node, &intent), "the runtime is awaited");
    assert!(
        node.fake
            .bind("0.0.0.0:8080/tcp", process(PODMAN, &["podman"]))
    );
    assert!(!settle(&mut node, &intent), "conmon is awaited");
    node.fake.unbind("0.0.0.0:8080/tcp");
    node.fake.end_process(PODMAN);
    assert!(settle(&mut node, &intent));
    assert_eq!(held(&node), [ReservedBy::Socket; 2]);
}

#[test]
fn a_port_stays_with_conmon_until_its_socket_is_gone() {
    let (mut node, intent) = node();
    node.fake.unbind("0.0.0.0:8080/tcp");
    assert!(node.fake.bind(
        "0.0.0.0:8080/tcp",
        Process {
            pid: PODMAN,
            ..conmon()
        }
    ));
    assert!(settle(&mut node, &intent));
    let both = [ReservedBy::Runtime, ReservedBy::Socket];
    assert_eq!(held(&node), both, "podman binds IPv4 only");
    assert!(!node.engine().reconcile(NOW).has_failed());
    assert_eq!(held(&node), both);

    let report = node.restart();
    assert!(report.items.is_empty(), "{report:?}");
    assert_eq!(held(&node), both);
    node.engine().check(&intent.key).unwrap();

    node.fake.unbind("0.0.0.0:8080/tcp");
    assert!(!node.engine().reconcile(NOW).has_failed());
    assert_eq!(held(&node), [ReservedBy::Socket; 2]);
    node.engine().del(&intent.key).unwrap();
    assert!(held(&node).is_empty());
}

#[test]
fn a_port_that_the_runtime_has_bound_before_the_add_is_no_conflict() {
    let mut node = Node::start();
    let mut intent = node.intent(ID);
    intent.port_mappings = vec![publish(8080)];
    assert!(node.fake.bind("0.0.0.0:8080/tcp", conmon()));
    node.add(&intent).unwrap();
    assert_eq!(held(&node), [ReservedBy::Runtime, ReservedBy::Socket]);
    let mut other = node.intent("4f0c2b6e8d1a4f0c2b6e8d1a4f0c2b6f");
    other.port_mappings = vec![publish(8081)];
    assert!(node.fake.bind("0.0.0.0:8081/tcp", conmon()));
    let refused = node.add(&other).unwrap_err().to_string();
    assert!(refused.contains("in use by conmon (pid 200"), "{refused}");
    node.engine().del(&intent.key).unwrap();
    assert!(held(&node).is_empty());
}

/// podman 5 binds before the network is set up.
#[test]
fn a_port_that_podman_has_bound_before_the_add_is_left_to_it() {
    let mut node = Node::start();
    let mut intent = node.intent(ID);
    intent.port_mappings = vec![publish(8080)];
    let podman = process(PODMAN, &["podman", "run"]);
    assert!(node.fake.bind("0.0.0.0:8080/tcp", podman));
    intent.requested.port_binder = Some(PODMAN + 1);
    let refused = node.add(&intent).unwrap_err().to_string();
    assert!(refused.contains("in use by podman (pid 100"), "{refused}");
    assert!(held(&node).is_empty());

    intent.requested.port_binder = Some(PODMAN);
    node.add(&intent).unwrap();
    assert_eq!(held(&node), [ReservedBy::Runtime; 2]);
    assert!(!node.engine().reconcile(NOW).has_failed());
    assert!(!settle(&mut node, &intent), "conmon is awaited");
    node.fake.unbind("0.0.0.0:8080/tcp");
    let heir = Process {
        pid: PODMAN,
        ..conmon()
    };
    assert!(node.fake.bind("0.0.0.0:8080/tcp", heir));
    assert!(settle(&mut node, &intent));
    assert_eq!(held(&node), [ReservedBy::Runtime, ReservedBy::Socket]);
}
