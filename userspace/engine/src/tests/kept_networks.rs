//! Networks that stay without attachments, and attachments whose interface the runtime moves.

use super::*;
use kernel::fake::Errno;
use planner::Reason;
use steps::Step;

const NODE: &str = "/proc/thread-self/ns/net";
/// Name of the interface, which dockerd moves.
const INTERFACE: &str = "vdfedcba987654";
/// Seconds after which a runtime has lost an interface that it has not moved.
const LONG: u64 = 601;

fn apps() -> Network {
    network("docker-0123456789ab", "vd-0123456789ab", &["10.7.0.0/24"])
}

/// Returns a node whose own namespace has a path, as that of each process.
fn node() -> Node {
    let node = Node::start();
    node.fake.add_netns(NODE);
    node
}

fn endpoint(node: &Node) -> Intent {
    let mut intent = node.intent_on(&apps(), "fedcba9876543210");
    intent.netns = ::model::NetnsPath::of_node();
    intent.key.ifname = INTERFACE.parse().unwrap();
    intent
}

#[test]
fn a_kept_network_has_a_bridge_until_it_is_released() {
    let mut node = node();
    let before = node.traces();
    node.engine().keep_network(&apps()).unwrap();
    node.engine().keep_network(&apps()).unwrap();
    let bridge = |node: &Node| node.fake.snapshot().links.contains_key(&apps().bridge);
    assert!(bridge(&node));
    node.engine().reconcile(NOW);
    assert!(node.contents().networks.contains_key(&apps().name));
    // Containers come and go.
    let intent = endpoint(&node);
    node.add(&intent).unwrap();
    let error = node.engine().release_network(&apps().name).unwrap_err();
    assert!(matches!(error, EngineError::StillAttached(_)), "{error}");
    node.engine().del(&intent.key).unwrap();
    assert!(bridge(&node) && node.contents().networks.contains_key(&apps().name));
    node.engine().release_network(&apps().name).unwrap();
    node.engine().release_network(&apps().name).unwrap();
    assert!(!bridge(&node));
    node.engine().reconcile(NOW);
    let (after, contents) = node.traces();
    assert_eq!(after.links.len(), before.0.links.len());
    assert_eq!(contents.networks, before.1.networks);
}

#[test]
fn a_network_whose_bridge_cannot_be_deleted_is_kept_until_a_release_succeeds() {
    let mut node = node();
    node.engine().keep_network(&apps()).unwrap();
    let is_deletion = |step: &Step| matches!(step, Step::DeleteBridge { .. });
    node.fake.fail_next(is_deletion, Errno::EBUSY);
    let error = node.engine().release_network(&apps().name).unwrap_err();
    assert!(matches!(error, EngineError::Unfinished(_)), "{error}");
    node.engine().reconcile(NOW);
    assert!(node.contents().networks.contains_key(&apps().name));
    node.engine().release_network(&apps().name).unwrap();
    assert!(!node.fake.snapshot().links.contains_key(&apps().bridge));
    node.engine().reconcile(NOW);
    assert!(!node.contents().networks.contains_key(&apps().name));
    assert!(!node.fake.snapshot().links.contains_key(&apps().bridge));
}

#[test]
fn a_bridge_with_foreign_ports_stays_when_its_network_is_released() {
    let mut node = node();
    node.engine().keep_network(&apps()).unwrap();
    let index = node.fake.snapshot().links[&apps().bridge].index;
    node.fake.add_link("tap7", LinkKind::Tap);
    node.fake
        .edit_link("tap7", |link| link.link.controller = Some(index));
    node.engine().release_network(&apps().name).unwrap();
    assert!(node.fake.snapshot().links.contains_key(&apps().bridge));
    assert!(!node.contents().networks.contains_key(&apps().name));
}

#[test]
fn a_network_that_cannot_be_made_leaves_no_trace() {
    let mut node = node();
    let before = node.traces();
    let clashing = network("docker-0123456789ab", "vd-0123456789ab", &["10.1.0.0/16"]);
    node.engine().keep_network(&clashing).unwrap_err();
    assert_eq!(node.traces(), before);
    let is_bridge = |step: &Step| matches!(step, Step::AddAddress { .. });
    node.fake.fail_next(is_bridge, Errno::EPERM);
    node.engine().keep_network(&apps()).unwrap_err();
    assert_eq!(node.traces(), before);
}

#[test]
fn an_interface_that_the_runtime_moves_is_made_and_left_down() {
    let mut node = node();
    let intent = endpoint(&node);
    let attachment = node.add(&intent).unwrap();
    assert!(attachment.is_moved_by_runtime());
    let side = node.fake.pod(NODE, INTERFACE).unwrap();
    assert_eq!((side.up, side.mac), (false, Some(attachment.mac)));
    assert!(side.addresses.is_empty() && side.routes.is_empty());
    node.engine().check(&intent.key).unwrap();
    let ports = [publish(8080)];
    node.engine().publish_ports(&intent.key, &ports).unwrap();
    let published = node.engine().publish_ports(&intent.key, &ports).unwrap();
    assert_eq!(published.port_mappings, ports);
    // The runtime moves it: only the host's end is left.
    node.fake.remove_netns("/run/netns/fedcba9876543210");
    assert!(node.engine().reconcile(NOW + LONG).items.is_empty());
    node.restart();
    node.engine().check(&intent.key).unwrap();
    // CNI's GC knows no such attachment.
    let scope = crate::GcScope {
        network: intent.key.network.clone(),
        valid: BTreeSet::new(),
        forced: false,
    };
    assert!(node.engine().collect(&scope).removed.is_empty());
    node.engine().publish_ports(&intent.key, &[]).unwrap();
    node.engine().del(&intent.key).unwrap();
    assert_eq!(node.fake.pod(NODE, INTERFACE), None);
    let error = node.engine().publish_ports(&intent.key, &[]).unwrap_err();
    assert!(matches!(error, EngineError::NotAttached(_)), "{error}");
}

#[test]
fn an_interface_that_the_runtime_never_moves_is_removed_later() {
    let mut node = node();
    let intent = endpoint(&node);
    node.add(&intent).unwrap();
    // The node's links include it as long as it is in the node's namespace.
    node.fake.add_link(INTERFACE, LinkKind::Veth);
    assert!(node.engine().reconcile(NOW + LONG - 1).items.is_empty());
    let report = node.engine().reconcile(NOW + LONG);
    let words: Vec<&str> = report.items.iter().map(|item| &*item.message).collect();
    // Its network has no other attachment, and is not kept.
    assert_eq!(words[0], Reason::Unclaimed.to_string());
    assert!(node.contents().records.is_empty());
}

#[test]
fn an_attachment_of_docker_ends_with_its_link() {
    let mut node = node();
    let intent = endpoint(&node);
    let attachment = node.add(&intent).unwrap();
    node.fake
        .delete_link(attachment.host_link().name().as_str());
    let report = node.engine().reconcile(NOW);
    assert_eq!(report.items[0].message, Reason::LinkGone.to_string());
    assert!(node.contents().records.is_empty());
}
