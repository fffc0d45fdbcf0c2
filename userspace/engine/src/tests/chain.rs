//! Promises to plugins that come later in a chain.

use ::model::{Adoption, Assigned};
use kernel::fake::Errno;

use super::*;
use crate::ChainedUpdate;

/// The pod of another plugin's bridge.
fn foreign(node: &Node) -> Adoption {
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
        links: BTreeSet::from(["veth1234".parse().unwrap()]),
        pod: None,
    }
}

fn serve(adoption: &Adoption, ports: &[u16]) -> ChainedUpdate {
    ChainedUpdate {
        adoption: adoption.clone(),
        port_mappings: ports.iter().map(|port| publish(*port)).collect(),
        bandwidth: None,
        ingress: None,
        keys: vec![adoption.key.clone()],
    }
}

/// behaviour C10: also when the failure comes in the middle.
#[test]
fn serving_that_fails_at_any_step_leaves_no_trace_and_succeeds_when_tried_again() {
    for step in 1.. {
        let mut node = Node::start();
        let adoption = foreign(&node);
        let before = node.traces();
        node.fake.fail_at(step, Errno::EIO);
        let served = node.engine().adopt_or_update(&serve(&adoption, &[8080]), NOW);
        if served.is_ok() {
            assert!(step > 5, "there are that many steps");
            break;
        }
        assert_eq!(node.traces(), before, "step {step}");
        node.engine().adopt_or_update(&serve(&adoption, &[8080]), NOW)
            .unwrap();
    }
}

/// behaviours R12, A5
#[test]
fn what_is_served_survives_the_agent_and_goes_by_name() {
    let mut node = Node::start();
    let adoption = foreign(&node);
    let before = node.traces();
    node.engine().adopt_or_update(&serve(&adoption, &[8080]), NOW)
        .unwrap();
    let more = node
        .engine().adopt_or_update(&serve(&adoption, &[8081]), NOW)
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
    // The restarted agent knew the pod's subnet; the next look forgets it.
    node.engine().reconcile(NOW);
    assert_eq!(node.traces(), before);
}

#[test]
fn ports_of_our_own_pod_come_and_go_and_a_taken_one_changes_nothing() {
    let mut node = Node::start();
    let intent = node.intent("ours");
    let attachment = node.add(&intent).unwrap();
    let other = foreign(&node);
    node.engine().adopt_or_update(&serve(&other, &[8080]), NOW).unwrap();
    let plain = node.traces();
    let own = Adoption {
        key: intent.key.clone(),
        netns: intent.netns.clone(),
        addresses: attachment.addresses.clone(),
        links: BTreeSet::new(),
        pod: None,
    };
    let taken = node.engine().adopt_or_update(&serve(&own, &[8080]), NOW);
    assert!(matches!(taken, Err(EngineError::Refused(_))), "{taken:?}");
    assert_eq!(node.traces(), plain);
    node.engine().adopt_or_update(&serve(&own, &[8081]), NOW).unwrap();
    assert_ne!(node.traces(), plain);
    node.engine().unpublish_ports(std::slice::from_ref(&intent.key))
        .unwrap();
    assert_eq!(node.traces(), plain);
    node.engine().check(&intent.key).unwrap();
}

/// behaviour S10: a container of the same name in another namespace.
#[test]
fn what_was_adopted_in_a_namespace_that_is_gone_gives_way() {
    let mut node = Node::start();
    let old = foreign(&node);
    node.engine().adopt_or_update(&serve(&old, &[8080]), NOW).unwrap();
    node.fake.remove_netns("/run/netns/foreign");
    let new = foreign(&node);
    let served = node.engine().adopt_or_update(&serve(&new, &[8080]), NOW).unwrap();
    assert_eq!(served.port_mappings, [publish(8080)]);
    assert_eq!(node.engine().attachments().len(), 1);
}
