//! Tests of the sender check: which addresses a pod has, and which roles it does not have.

use abi::{Address, DropReason, EndpointFlags, Mac};
use proptest::prelude::*;

use crate::address::link_local_of;
use crate::outcome::Verdict;
use crate::simulator::example::{
    self, INTERFACE, POD, bridge_mac, gateway, mac, no_pod, other_mac, other_pod, pod, remote,
};
use crate::simulator::frame::{Body, Frame};
use crate::simulator::{Place, Simulator, World};

fn v6(text: &str) -> Address {
    let address: std::net::Ipv6Addr = text.parse().unwrap();
    Address::v6(address.octets())
}

fn own_link() -> Address {
    link_local_of(mac())
}

/// Link-local addresses of the bridge, of another pod, and of no one.
fn foreign_links() -> [Address; 4] {
    [
        link_local_of(bridge_mac()),
        link_local_of(other_mac()),
        v6("fe80::1"),
        v6("febf:1:2:3::77"),
    ]
}

fn all_nodes() -> Address {
    v6("ff02::1")
}

/// Neighbour discovery for a target.
fn discovery(icmp_type: u8, target: Address) -> Body {
    Body::Icmp(icmp_type, 0, [0; 4], target.bytes().to_vec())
}

/// An ICMP message, with three unknown options of neighbour discovery.
fn icmp(icmp_type: u8) -> Body {
    Body::Icmp(icmp_type, 0, [0; 4], [253, 1, 0, 0, 0, 0, 0, 0].repeat(3))
}

fn mdns() -> Body {
    Body::Udp(5353, 5353, b"mdns".to_vec())
}

fn send(world: World, source: Address, destination: Address, body: Body) -> Verdict {
    let frame = Frame::new(source, destination, body).from_to(mac(), other_mac());
    let mut simulator = Simulator::new(world);
    simulator.run(Place::FromPod, INTERFACE, &frame.bytes()).0
}

#[track_caller]
fn assert_sent(source: Address, destination: Address, body: Body, expected: Verdict) {
    let sent = format!("{source:?} to {destination:?}: {body:?}");
    let verdict = send(example::world(), source, destination, body);
    assert_eq!(verdict, expected, "{sent}");
}

#[track_caller]
fn passes(source: Address, destination: Address, body: Body) {
    assert_sent(source, destination, body, Verdict::Pass);
}

#[track_caller]
fn drops(source: Address, destination: Address, body: Body, reason: DropReason) {
    assert_sent(source, destination, body, Verdict::Drop(reason));
}

/// Bodies that a pod sends from a link-local address, with their destinations.
fn link_local_traffic() -> [(Address, Body); 7] {
    [
        (all_nodes(), mdns()),
        (
            link_local_of(other_mac()),
            Body::echo_request(&own_link(), 1),
        ),
        (
            link_local_of(bridge_mac()),
            Body::Tcp(40_000, 80, 2, vec![]),
        ),
        (v6("ff02::2"), icmp(133)),
        (v6("ff02::16"), icmp(143)),
        (v6("ff02::2"), icmp(132)),
        (v6("ff02::1:ff00:1"), discovery(135, gateway()[1])),
    ]
}

#[test]
fn a_link_local_source_is_the_one_of_the_pods_mac_address() {
    for (destination, body) in link_local_traffic() {
        passes(own_link(), destination, body.clone());
        for source in foreign_links() {
            drops(
                source,
                destination,
                body.clone(),
                DropReason::SpoofedAddress,
            );
        }
    }
    // Beyond the link, no link-local source is valid.
    drops(own_link(), remote()[1], mdns(), DropReason::SpoofedAddress);
}

#[test]
fn a_pod_announces_and_probes_its_own_addresses_only() {
    let unspecified = Address::v6([0; 16]);
    for target in [pod()[1], own_link()] {
        passes(own_link(), all_nodes(), discovery(136, target));
        passes(pod()[1], all_nodes(), discovery(136, target));
        passes(unspecified, all_nodes(), discovery(135, target));
    }
    let foreign = [
        gateway()[1],
        other_pod()[1],
        no_pod()[1],
        remote()[1],
        unspecified,
    ];
    for target in foreign.into_iter().chain(foreign_links()) {
        let reason = DropReason::SpoofedAddress;
        drops(own_link(), all_nodes(), discovery(136, target), reason);
        drops(pod()[1], other_pod()[1], discovery(136, target), reason);
        drops(unspecified, all_nodes(), discovery(135, target), reason);
        // Resolution of the address is allowed.
        passes(own_link(), all_nodes(), discovery(135, target));
    }
    let cut = Body::Icmp(136, 0, [0; 4], vec![0; 8]);
    drops(own_link(), all_nodes(), cut, DropReason::SpoofedAddress);
}

#[test]
fn only_hosts_without_an_address_send_from_the_unspecified_one() {
    let unspecified = Address::v6([0; 16]);
    let message = |icmp_type| Body::Icmp(icmp_type, 0, [0; 4], Vec::new());
    for icmp_type in [131, 132, 133, 143] {
        passes(unspecified, v6("ff02::16"), message(icmp_type));
    }
    for icmp_type in [128, 129, 130, 134, 137, 144, 151] {
        let reason = DropReason::SpoofedAddress;
        drops(unspecified, all_nodes(), message(icmp_type), reason);
    }
    let advertisement = discovery(136, own_link());
    drops(
        unspecified,
        all_nodes(),
        advertisement,
        DropReason::SpoofedAddress,
    );
}

/// An option: its kind, its length in units of 8 bytes, and six bytes.
fn option(kind: u8, units: u8, value: Mac) -> Vec<u8> {
    let mut bytes = [&[kind, units], &value.bytes()[..]].concat();
    bytes.resize(8 * usize::from(units.max(1)), 0);
    bytes
}

fn with_options(icmp_type: u8, options: &[Vec<u8>]) -> Body {
    let target = match icmp_type {
        133 => Vec::new(),
        _ => own_link().bytes().to_vec(),
    };
    Body::Icmp(icmp_type, 0, [0; 4], [target, options.concat()].concat())
}

#[test]
fn link_layer_addresses_in_options_are_the_pods() {
    let (own, nonce) = (mac(), option(14, 1, other_mac()));
    let long = option(253, 3, other_mac());
    for icmp_type in [133, 135, 136] {
        let valid: [&[Vec<u8>]; 5] = [
            &[],
            &[option(1, 1, own)],
            &[nonce.clone(), option(2, 1, own)],
            &[long.clone(), option(1, 1, own), nonce.clone()],
            &[vec![0; 7]],
        ];
        for options in valid {
            passes(own_link(), all_nodes(), with_options(icmp_type, options));
        }
        for kind in [1, 2] {
            let forged = option(kind, 1, other_mac());
            let invalid: [&[Vec<u8>]; 4] = [
                std::slice::from_ref(&forged),
                &[option(kind, 1, own), forged.clone()],
                &[
                    nonce.clone(),
                    long.clone(),
                    option(1, 1, own),
                    forged.clone(),
                ],
                &[option(kind, 2, other_mac())],
            ];
            for options in invalid {
                let body = with_options(icmp_type, options);
                drops(own_link(), all_nodes(), body, DropReason::SpoofedMac);
            }
        }
        let many = vec![nonce.clone(); 5];
        let body = with_options(icmp_type, &many);
        drops(own_link(), all_nodes(), body, DropReason::TooManyHeaders);
        let endless = with_options(icmp_type, &[option(14, 0, own)]);
        drops(own_link(), all_nodes(), endless, DropReason::Malformed);
    }
}

/// RFC 6980: receivers ignore such fragments, and the options behind them cannot be checked.
#[test]
fn fragments_of_neighbour_discovery_are_dropped() {
    let body = with_options(136, &[option(253, 3, mac()), option(2, 1, other_mac())]);
    let frame = Frame::new(own_link(), all_nodes(), body).from_to(mac(), other_mac());
    let [first, _] = frame.fragments(7, 48);
    let mut simulator = Simulator::new(example::world());
    let (verdict, _) = simulator.run(Place::FromPod, INTERFACE, &first);
    assert_eq!(verdict, Verdict::Drop(DropReason::Malformed));
}

#[test]
fn a_link_local_address_that_a_pod_was_assigned_is_its_own() {
    let assigned = v6("fe80::77");
    let mut world = example::world();
    let row = world.endpoints[&pod()[1]];
    world.endpoints.insert(assigned, row);
    for body in [mdns(), discovery(136, assigned)] {
        let verdict = send(world.clone(), assigned, all_nodes(), body);
        assert_eq!(verdict, Verdict::Pass);
    }
    // The next pod of the slot does not have it.
    world.pods[POD as usize].generation += 1;
    let verdict = send(world, assigned, all_nodes(), mdns());
    assert_eq!(verdict, Verdict::Drop(DropReason::SpoofedAddress));
}

/// The MAC address of an adopted pod is unknown, so its link-local address is, too.
#[test]
fn an_adopted_pod_has_any_link_local_address_but_those_of_others() {
    let mut world = example::world();
    world.pods[POD as usize].mac = Mac::default();
    let assigned = v6("fe80::88");
    let row = world.endpoints[&other_pod()[1]];
    world.endpoints.insert(assigned, row);
    let sent = |source| send(world.clone(), source, all_nodes(), mdns());
    assert_eq!(sent(v6("fe80::5")), Verdict::Pass);
    for source in [link_local_of(bridge_mac()), assigned] {
        assert_eq!(sent(source), Verdict::Drop(DropReason::SpoofedAddress));
    }
}

fn igmp(kind: u8) -> Body {
    Body::Other(2, vec![kind, 0, 0, 0, 224, 0, 0, 251])
}

/// Messages that only routers and DHCP servers send, with a source of the pod.
fn roles() -> Vec<(Address, Address, Body, DropReason)> {
    let mut all = Vec::new();
    for icmp_type in [130, 134, 137, 151, 153] {
        for source in [own_link(), pod()[1]] {
            for to in [all_nodes(), link_local_of(other_mac()), other_pod()[1]] {
                let is_reached = source != own_link() || to != other_pod()[1];
                if is_reached {
                    all.push((source, to, icmp(icmp_type), DropReason::RogueRouter));
                }
            }
        }
    }
    let (group, broadcast) = (Address::v4([224, 0, 0, 1]), Address::v4([255; 4]));
    for icmp_type in [5, 9] {
        for to in [other_pod()[0], gateway()[0], group] {
            all.push((pod()[0], to, icmp(icmp_type), DropReason::RogueRouter));
        }
    }
    for kind in [0x11, 0x30, 0x32] {
        all.push((pod()[0], group, igmp(kind), DropReason::RogueRouter));
    }
    for to in [other_pod()[0], broadcast, gateway()[0]] {
        for port in [67, 40_000] {
            let offer = Body::Udp(port, 68, b"offer".to_vec());
            all.push((pod()[0], to, offer, DropReason::RogueDhcp));
        }
    }
    for (source, to) in [
        (own_link(), link_local_of(other_mac())),
        (pod()[1], other_pod()[1]),
        (own_link(), all_nodes()),
    ] {
        let reply = Body::Udp(547, 546, b"reply".to_vec());
        all.push((source, to, reply, DropReason::RogueDhcp));
    }
    all
}

#[test]
fn a_pod_is_neither_a_router_nor_a_dhcp_server() {
    for (source, to, body, reason) in roles() {
        drops(source, to, body, reason);
    }
}

#[test]
fn the_messages_of_hosts_and_clients_pass() {
    let group = Address::v4([224, 0, 0, 22]);
    for kind in [0x12, 0x16, 0x17, 0x22] {
        passes(pod()[0], group, igmp(kind));
    }
    for icmp_type in [131, 132, 133, 143, 152] {
        passes(own_link(), v6("ff02::16"), icmp(icmp_type));
    }
    passes(pod()[0], other_pod()[0], icmp(10));
    let client = |source, to| Body::Udp(source, to, b"request".to_vec());
    passes(Address::v4([0; 4]), Address::v4([255; 4]), client(68, 67));
    passes(pod()[0], gateway()[0], client(68, 67));
    passes(own_link(), v6("ff02::1:2"), client(546, 547));
    // The ports of the other family mean something else.
    passes(pod()[0], other_pod()[0], client(1, 546));
    passes(pod()[1], other_pod()[1], client(1, 68));
}

#[test]
fn without_a_spoof_check_a_pod_sends_from_any_address_and_in_any_role() {
    let mut world = example::world();
    world.pods[POD as usize].flags &= !EndpointFlags::SPOOF_CHECK;
    for (source, to, body, _) in roles() {
        assert_eq!(send(world.clone(), source, to, body), Verdict::Pass);
    }
    for source in foreign_links() {
        let body = discovery(136, gateway()[1]);
        assert_eq!(
            send(world.clone(), source, all_nodes(), body),
            Verdict::Pass
        );
    }
}

fn arp(operation: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mac = mac().bytes();
    let kind = [0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, operation];
    [&[0xff; 6][..], &mac, &kind, &mac, &sender, &[0; 6], &target].concat()
}

#[test]
fn an_arp_probe_is_for_an_address_that_no_other_pod_has() {
    let mut simulator = Simulator::new(example::world());
    let mut sent = |bytes: &[u8]| simulator.run(Place::FromPod, INTERFACE, bytes).0;
    for (target, expected) in [
        ([10, 88, 0, 2], Verdict::Pass),
        ([10, 88, 0, 99], Verdict::Pass),
        ([10, 88, 0, 3], Verdict::Drop(DropReason::SpoofedAddress)),
    ] {
        assert_eq!(sent(&arp(1, [0; 4], target)), expected, "{target:?}");
    }
    for operation in [1, 2] {
        assert_eq!(
            sent(&arp(operation, [10, 88, 0, 2], [10, 88, 0, 3])),
            Verdict::Pass
        );
        for sender in [
            [10, 88, 0, 1],
            [10, 88, 0, 3],
            [10, 88, 0, 99],
            [192, 0, 2, 1],
        ] {
            let verdict = sent(&arp(operation, sender, [10, 88, 0, 3]));
            assert_eq!(verdict, Verdict::Drop(DropReason::SpoofedAddress));
        }
    }
}

proptest! {
    /// No link-local address but the pod's own is a source or announced, in any message.
    #[test]
    fn other_link_local_addresses_are_never_a_pods(
        rest in any::<[u8; 8]>(), icmp_type in any::<u8>(), to in 0..3_usize, forged in 0..2_usize,
    ) {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&[0xfe, 0x80]);
        bytes[8..].copy_from_slice(&rest);
        let other = Address::v6(bytes);
        prop_assume!(other != own_link());
        let destination = [all_nodes(), link_local_of(other_mac()), v6("ff02::16")][to];
        let (source, body) = if forged == 0 {
            (other, discovery(icmp_type, own_link()))
        } else {
            (own_link(), discovery(136, other))
        };
        let verdict = send(example::world(), source, destination, body);
        let is_dropped = matches!(verdict, Verdict::Drop(_));
        prop_assert!(is_dropped, "{:?}", verdict);
    }
}
