//! Requests of chained plugins.

use ::model::{Adoption, Assigned};
use kernel::fake::Errno;

use super::*;
use crate::ChainedUpdate;

/// Makes a pod on the bridge of a foreign plugin and returns its adoption.
pub(super) fn foreign(node: &Node) -> Adoption {
    let path = "/run/netns/foreign";
    node.fake.add_netns(path);
    let index = node.fake.add_link("veth1234", LinkKind::Veth);
    node.fake.add_pod_link(path, "eth0");
    node.fake.edit_pod(path, "eth0", |side| {
        side.peer = Some(index);
        side.mac = "0a:00:00:00:00:07".parse().ok();
        side.addresses.insert("10.7.0.2/24".parse().unwrap());
    });
    Adoption {
        key: AttachmentKey {
            network: "theirs".parse().unwrap(),
            container_id: "foreign".parse().unwrap(),
            ifname: "eth0".parse().unwrap(),
        },
        netns: path.parse().unwrap(),
        addresses: vec![Assigned {
            address: "10.7.0.2/24".parse().unwrap(),
            gateway: Some("10.7.0.1".parse().unwrap()),
        }],
        pod: None,
    }
}

pub(super) fn update(adoption: &Adoption, ports: &[u16]) -> ChainedUpdate {
    ChainedUpdate {
        adoption: adoption.clone(),
        port_mappings: ports.iter().map(|port| publish(*port)).collect(),
        bandwidth: None,
        ingress: None,
        keys: vec![adoption.key.clone()],
        port_binder: None,
    }
}

/// behaviour C10: also for failures in the middle.
#[test]
fn an_adoption_that_fails_at_any_step_leaves_no_trace_and_succeeds_when_repeated() {
    for step in 1.. {
        let mut node = Node::start();
        let adoption = foreign(&node);
        let before = node.traces();
        node.fake.fail_at(step, Errno::EIO);
        let updated = node
            .engine()
            .adopt_or_update(&update(&adoption, &[8080]), NOW);
        if updated.is_ok() {
            assert!(step > 5, "the request has more than 5 steps");
            break;
        }
        assert_eq!(node.traces(), before, "step {step}");
        node.engine()
            .adopt_or_update(&update(&adoption, &[8080]), NOW)
            .unwrap();
    }
}

/// behaviours R12, A5
#[test]
fn hostports_of_an_adopted_pod_survive_a_restart_and_are_unpublished_by_key() {
    let mut node = Node::start();
    let adoption = foreign(&node);
    let before = node.traces();
    node.engine()
        .adopt_or_update(&update(&adoption, &[8080]), NOW)
        .unwrap();
    let more = node
        .engine()
        .adopt_or_update(&update(&adoption, &[8081]), NOW)
        .unwrap();
    assert_eq!(more.port_mappings.len(), 2);
    let repaired = node.restart();
    assert!(!repaired.has_failed(), "{repaired:?}");
    let keys = [adoption.key.clone()];
    let wanted = BTreeSet::from([publish(8080), publish(8081)]);
    node.engine().check_chained(&keys, &wanted, None).unwrap();
    let missing = BTreeSet::from([publish(9)]);
    assert!(node.engine().check_chained(&keys, &missing, None).is_err());
    node.engine().unpublish_ports(&keys).unwrap();
    node.engine().unpublish_ports(&keys).unwrap();
    // The restarted agent added the pod's subnet to the node's tables; the next reconciliation
    // removes it.
    node.engine().reconcile(NOW);
    assert_eq!(node.traces(), before);
}

#[test]
fn hostports_of_an_attached_pod_are_added_and_removed_and_a_taken_one_changes_nothing() {
    let mut node = Node::start();
    let intent = node.intent("ours");
    let attachment = node.add(&intent).unwrap();
    let other = foreign(&node);
    node.engine()
        .adopt_or_update(&update(&other, &[8080]), NOW)
        .unwrap();
    let plain = node.traces();
    let own = Adoption {
        key: intent.key.clone(),
        netns: intent.netns.clone(),
        addresses: attachment.addresses.clone(),
        pod: None,
    };
    let taken = node.engine().adopt_or_update(&update(&own, &[8080]), NOW);
    assert!(matches!(taken, Err(EngineError::Refused(_))), "{taken:?}");
    assert_eq!(node.traces(), plain);
    node.engine()
        .adopt_or_update(&update(&own, &[8081]), NOW)
        .unwrap();
    assert_ne!(node.traces(), plain);
    node.engine()
        .unpublish_ports(std::slice::from_ref(&intent.key))
        .unwrap();
    assert_eq!(node.traces(), plain);
    node.engine().check(&intent.key).unwrap();
}

/// behaviour S10: a container of the same name in another namespace.
#[test]
fn an_adopted_interface_of_a_deleted_namespace_is_replaced() {
    let mut node = Node::start();
    let old = foreign(&node);
    node.engine()
        .adopt_or_update(&update(&old, &[8080]), NOW)
        .unwrap();
    node.fake.remove_netns("/run/netns/foreign");
    let new = foreign(&node);
    let updated = node
        .engine()
        .adopt_or_update(&update(&new, &[8080]), NOW)
        .unwrap();
    assert_eq!(updated.port_mappings, [publish(8080)]);
    assert_eq!(node.engine().attachments().len(), 1);
}

/// Decision 83: an adopted interface's MAC address belongs to the plugins that made the interface.
#[test]
fn an_adopted_pod_has_no_mac_check_and_its_record_follows_the_mac_address() {
    let mut node = Node::start();
    let adoption = foreign(&node);
    let adopted = node
        .engine()
        .adopt_or_update(&update(&adoption, &[8080]), NOW)
        .unwrap();
    assert_eq!(adopted.mac, "0a:00:00:00:00:07".parse().unwrap());
    let rows = planner::attachment_entries(&adopted);
    let any = rows
        .values()
        .any(|entry| matches!(entry, Entry::Pod { mac, .. } if *mac == ::model::Mac([0; 6])));
    assert!(any, "{rows:?}");
    node.fake.edit_pod("/run/netns/foreign", "eth0", |side| {
        side.mac = "0a:00:00:00:00:08".parse().ok();
    });
    let keys = [adoption.key.clone()];
    node.engine()
        .check_chained(&keys, &BTreeSet::new(), None)
        .unwrap();
    let mac = |node: &mut Node| node.engine().attachments()[0].attachment.mac.0[5];
    assert_eq!(mac(&mut node), 8);
    node.fake.edit_pod("/run/netns/foreign", "eth0", |side| {
        side.mac = "0a:00:00:00:00:09".parse().ok();
    });
    node.engine()
        .adopt_or_update(&update(&adoption, &[8081]), NOW)
        .unwrap();
    assert_eq!(mac(&mut node), 9);
}

/// A later plugin of the chain may change the MAC address of a pod of ours: the check follows it in
/// the next ADD of a chained plugin, and CHECK reports it before.
#[test]
fn a_changed_mac_address_of_a_pod_fails_check_until_a_chained_plugin_updates_it() {
    let mut node = Node::start();
    let intent = node.intent("ours");
    let attachment = node.add(&intent).unwrap();
    let path = intent.netns.to_string();
    node.fake.edit_pod(&path, "eth0", |side| {
        side.mac = "0a:00:00:00:00:08".parse().ok();
    });
    assert!(node.engine().check(&intent.key).is_err());
    let keys = [intent.key.clone()];
    let chained = node.engine().check_chained(&keys, &BTreeSet::new(), None);
    assert!(chained.is_err());
    let own = Adoption {
        key: intent.key.clone(),
        netns: intent.netns.clone(),
        addresses: attachment.addresses.clone(),
        pod: None,
    };
    let updated = node
        .engine()
        .adopt_or_update(&update(&own, &[8081]), NOW)
        .unwrap();
    assert_eq!(updated.mac, "0a:00:00:00:00:08".parse().unwrap());
    node.engine().check(&intent.key).unwrap();
}
