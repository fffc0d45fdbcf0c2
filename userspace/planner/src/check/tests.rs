//! Tests of CHECK: one difference at a time.

use model::Route;
use steps::{AttachmentNetns, ObservedAttachment, PodSide};

use crate::check;
use crate::testing::{attachment, both_sides, intent, parse, port};

fn differences(spoil: impl FnOnce(&mut ObservedAttachment)) -> Vec<String> {
    let mut request = intent("c1");
    request.port_mappings = vec![port("8080->80/tcp")];
    let attachment = attachment(&request);
    let mut observed = both_sides(&attachment);
    spoil(&mut observed);
    let differences = check(&attachment, &observed);
    differences.iter().map(ToString::to_string).collect()
}

fn pod(observed: &mut ObservedAttachment) -> &mut PodSide {
    let AttachmentNetns::Same { pod } = &mut observed.netns else {
        panic!("no namespace");
    };
    pod.as_mut().unwrap()
}

fn host(observed: &mut ObservedAttachment) -> &mut steps::Link {
    observed.host.host_link.as_mut().unwrap()
}

/// behaviour S11: CHECK must pass immediately after ADD.
#[test]
fn a_new_attachment_has_no_differences() {
    assert!(differences(|_| {}).is_empty());
}

/// behaviour S11: later plugins of a chain may add and change.
#[test]
fn added_addresses_and_routes_and_a_changed_mtu_are_no_difference() {
    let found = differences(|observed| {
        pod(observed).mtu = 1400;
        pod(observed).addresses.insert(parse("172.16.0.1/24"));
        pod(observed).routes.insert(Route {
            destination: parse("172.16.0.0/12"),
            gateway: None,
            options: model::RouteOptions::default(),
        });
    });
    assert_eq!(found, [""; 0]);
}

/// The datapath drops all packets of the pod then.
#[test]
fn a_changed_mac_is_a_difference_unless_the_spoof_check_is_off() {
    let mut attachment = attachment(&intent("c1"));
    let mut observed = both_sides(&attachment);
    pod(&mut observed).mac = Some(parse("0a:00:00:00:00:01"));
    let found = check(&attachment, &observed);
    let [found] = &found[..] else {
        panic!("{found:?}")
    };
    assert!(found.to_string().contains("0a:00:00:00:00:01"), "{found}");
    attachment.port.trusted = true;
    let mut observed = both_sides(&attachment);
    pod(&mut observed).mac = None;
    assert_eq!(check(&attachment, &observed), []);
}

#[test]
fn a_missing_address_or_route_is_a_difference() {
    let found = differences(|observed| {
        pod(observed).addresses.remove(&parse("10.1.0.2/24"));
        pod(observed).routes.clear();
    });
    let expected = [
        "the pod lacks the address 10.1.0.2/24",
        "the pod lacks the route to 0.0.0.0/0",
        "the pod lacks the route to ::/0",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_namespace_that_was_replaced_is_gone() {
    for netns in [AttachmentNetns::Replaced, AttachmentNetns::Missing] {
        let found = differences(|observed| observed.netns = netns);
        assert_eq!(found, ["the network namespace at /run/netns/a is gone"]);
    }
}

#[test]
fn a_pod_interface_that_is_not_the_peer_is_a_difference() {
    let found = differences(|observed| pod(observed).peer = Some(77));
    let host = attachment(&intent("c1")).host_link();
    assert_eq!(
        found,
        [format!("eth0 in the pod is not the other end of {host}")]
    );
    let found = differences(|observed| observed.netns = AttachmentNetns::Same { pod: None });
    assert_eq!(found, ["eth0 is gone from the pod"]);
}

#[test]
fn the_hosts_end_must_be_up_in_the_bridge_with_both_programs() {
    let name = attachment(&intent("c1")).host_link();
    let found = differences(|observed| {
        let host = host(observed);
        host.up = false;
        host.controller = None;
        observed.host.hooks.clear();
    });
    let expected = [
        format!("{name} is down on the host"),
        format!("{name} is not a port of cbr0"),
        format!("from_pod is not attached to {name}"),
        format!("to_pod is not attached to {name}"),
    ];
    assert_eq!(found, expected);
    let found = differences(|observed| host(observed).hairpin = false);
    assert_eq!(found, [format!("hairpin of {name} is off")]);
}

/// Table entries are part of the attachment.
#[test]
fn a_missing_or_changed_entry_is_a_difference() {
    let found = differences(|observed| {
        observed.host.entries.pop_last();
        let pod = steps::EntryKey::Pod(7);
        observed
            .host
            .entries
            .insert(pod, steps::Entry::FreePod { generation: 40 });
    });
    let expected = [
        "the entry of pod 7 differs from the record",
        "the entry of hostport 0.0.0.0:8080/tcp is missing",
    ];
    assert_eq!(found, expected);
}
