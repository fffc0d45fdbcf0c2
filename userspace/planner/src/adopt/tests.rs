//! Tests of adopted attachments: what gets programs and entries, and what stays with the other
//! plugin.

use std::collections::BTreeSet;

use ipam::AddressRefusal;
use model::{Adoption, Assigned};
use steps::{
    AttachmentNetns, Hook, LinkKind, Observed, ObservedAttachment, ObservedNetns, PodSide,
    PortReservation, Step,
};

use crate::testing::{World, empty_netns, host_side, key, link, node, parse, port};
use crate::{
    Difference, Refusal, attachment_entries, check, check_host, plan_adopt, plan_detach, plan_mtu,
    plan_publish, with_both_ports, with_ports,
};

fn adoption() -> Adoption {
    let assigned = |address: &str, gateway: &str| Assigned {
        address: parse(address),
        gateway: Some(parse(gateway)),
    };
    Adoption {
        key: key("c1"),
        netns: parse("/run/netns/a"),
        addresses: vec![
            assigned("fd00:7::2/64", "fd00:7::1"),
            assigned("10.7.0.2/24", "10.7.0.1"),
        ],
        pod: None,
    }
}

/// A pod of the reference bridge.
fn foreign() -> ObservedNetns {
    let mut observed = empty_netns(&foreign_node());
    observed.inside.as_mut().unwrap().pod = Some(foreign_pod());
    observed
}

fn foreign_node() -> Observed {
    let mut observed = node();
    let mut host = link(9, LinkKind::Veth, &[]);
    host.controller = Some(8);
    observed.links.insert(parse("veth1234"), host);
    let bridge = link(8, LinkKind::Bridge, &["10.7.0.1/24"]);
    observed.links.insert(parse("cni7"), bridge);
    observed
}

fn foreign_pod() -> PodSide {
    PodSide {
        mac: Some(parse("0a:00:00:00:00:07")),
        mtu: 1400,
        up: true,
        addresses: BTreeSet::from([parse("10.7.0.2/24"), parse("fd00:7::2/64")]),
        routes: BTreeSet::new(),
        peer: Some(9),
    }
}

fn adopted() -> (model::Attachment, Observed) {
    let (attachment, _) = plan_adopt(&adoption(), &foreign(), &World::empty().context()).unwrap();
    let mut observed = foreign_node();
    observed.entries = attachment_entries(&attachment);
    let host = observed.links.get_mut(&parse("veth1234")).unwrap();
    host.hooks = BTreeSet::from([Hook::FromPod, Hook::ToPod]);
    (attachment, observed)
}

/// behaviours R13, R18
#[test]
fn an_adopted_pod_gets_programs_and_entries_and_its_link_is_unchanged() {
    let world = World::empty();
    let (attachment, plan) = plan_adopt(&adoption(), &foreign(), &world.context()).unwrap();
    assert_eq!(attachment.host_link().name().as_str(), "veth1234");
    assert_eq!(attachment.host_link().managed(), None);
    assert_eq!(attachment.bridge.as_str(), "cni7");
    assert_eq!(attachment.mtu, 1400);
    assert!(!attachment.masquerade);
    let first = attachment.addresses[0].address.address;
    assert!(first.is_ipv4(), "IPv4 first: {first}");
    for step in plan.steps() {
        let harmless = matches!(step, Step::PutEntry { .. } | Step::Attach { .. });
        assert!(harmless, "{step}");
    }
}

#[test]
fn an_adopted_pod_passes_check_and_its_detach_keeps_the_link() {
    let (attachment, observed) = adopted();
    let both_sides = ObservedAttachment {
        host: host_side(&attachment, &observed),
        netns: AttachmentNetns::Same {
            pod: Some(foreign_pod()),
        },
    };
    assert_eq!(check(&attachment, &both_sides), []);
    let plan = plan_detach(&attachment, &observed);
    // Before its rows are removed: without them, the programs would drop the pod's packets.
    let first = plan.steps().first().unwrap().to_string();
    assert_eq!(first, "detach from_pod, to_pod from veth1234");
    assert!(!plan.to_string().contains("delete"), "{plan}");
}

#[test]
fn check_of_an_adopted_pod_covers_programs_but_not_link_settings() {
    let (attachment, mut observed) = adopted();
    let host = observed.links.get_mut(&parse("veth1234")).unwrap();
    (host.up, host.hairpin, host.controller) = (false, true, None);
    host.hooks.remove(&Hook::ToPod);
    let differences = check_host(&attachment, &observed);
    let [
        Difference::HookMissing {
            hook: Hook::ToPod, ..
        },
    ] = differences[..]
    else {
        panic!("{differences:?}");
    };
    let mut world = World::empty();
    world.remember(&attachment, model::State::Attached);
    let networks = [crate::testing::network()];
    assert_eq!(plan_mtu(&networks, &observed, &world.records), []);
}

fn pod(observed: &mut ObservedNetns) -> &mut PodSide {
    let inside = observed.inside.as_mut().unwrap();
    inside.pod.as_mut().unwrap()
}

#[test]
fn only_the_other_end_of_a_veth_can_be_adopted() {
    let refused = |change: &dyn Fn(&mut ObservedNetns)| {
        let mut observed = foreign();
        change(&mut observed);
        plan_adopt(&adoption(), &observed, &World::empty().context()).unwrap_err()
    };
    for refusal in [
        refused(&|observed| observed.inside.as_mut().unwrap().pod = None),
        refused(&|observed| pod(observed).peer = None),
        refused(&|observed| pod(observed).peer = Some(8)),
        refused(&|observed| drop(observed.links.remove(&parse("veth1234")))),
    ] {
        assert!(matches!(refusal, Refusal::NotAdoptable { .. }), "{refusal}");
    }
    let gone = refused(&|observed| observed.inside = None);
    assert!(matches!(gone, Refusal::NoNetns { .. }), "{gone}");
}

#[test]
fn an_address_of_another_attachment_is_not_adopted() {
    let mut world = World::empty();
    world.leases.taken.insert(parse("10.7.0.2"), key("other"));
    let refused = plan_adopt(&adoption(), &foreign(), &world.context()).unwrap_err();
    assert!(matches!(refused, Refusal::AddressOfOther { .. }));
    assert!(refused.to_string().contains("net/other/eth0"), "{refused}");
}

#[test]
fn an_address_of_the_node_is_not_adopted() {
    let mut world = World::empty();
    world.leases.node.insert(parse("10.7.0.2"));
    let refused = plan_adopt(&adoption(), &foreign(), &world.context()).unwrap_err();
    let address = parse("10.7.0.2");
    assert_eq!(refused, AddressRefusal::AddressOfNode { address }.into());
}

/// behaviour R12
#[test]
fn ports_are_reserved_before_their_entries_and_released_after_them() {
    let (before, observed) = adopted();
    let records = World::empty().records;
    let after = with_ports(&before, &[port("8080->80/tcp")], &records).unwrap();
    let plan = plan_publish(&before, &after, &host_side(&before, &observed));
    let steps: Vec<String> = plan.steps().iter().map(ToString::to_string).collect();
    assert_eq!(steps[0], "reserve port 0.0.0.0:8080/tcp");
    assert!(steps[2].starts_with("write endpoint"), "{plan}");
    assert!(
        steps.last().unwrap().starts_with("write hostport"),
        "{plan}"
    );

    let mut observed = observed;
    observed.entries = attachment_entries(&with_both_ports(&before, &after));
    let plan = plan_publish(&after, &before, &host_side(&before, &observed));
    let steps: Vec<String> = plan.steps().iter().map(ToString::to_string).collect();
    assert!(steps[0].starts_with("remove hostport"), "{plan}");
    assert_eq!(steps.last().unwrap(), "release port [::]:8080/tcp");
    let undone = plan.undo(plan.steps().len());
    assert!(matches!(
        undone[0],
        Step::ReservePort {
            reservation: PortReservation { port: 8080, .. },
            ..
        }
    ));
}

#[test]
fn a_hostport_of_another_attachment_is_refused_and_an_own_one_is_kept() {
    let (before, _) = adopted();
    let mapping = [port("8080->80/tcp")];
    let mut world = World::empty();
    let mut own = before.clone();
    own.port_mappings = mapping.to_vec();
    world.remember(&own, model::State::Attached);
    assert_eq!(
        with_ports(&before, &mapping, &world.records),
        Ok(own.clone())
    );
    let mut other = own;
    other.key = key("other");
    world.remember(&other, model::State::Attached);
    let refused = with_ports(&before, &mapping, &world.records).unwrap_err();
    assert!(matches!(refused, Refusal::PortTaken { .. }), "{refused}");
}
