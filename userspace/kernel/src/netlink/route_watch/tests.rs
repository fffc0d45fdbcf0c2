//! Which notifications outdate cached verdicts.

use super::*;

const UPLINK: u32 = 2;
const VETH: u32 = 7;
const BRIDGE: u32 = 9;
const UP_FLAGS: u32 = UP;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).unwrap();
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn link(index: u32, flags: u32, mtu: u32, mac: u8, controller: u32) -> Vec<u8> {
    let mut body = vec![0; LINK];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..12].copy_from_slice(&flags.to_ne_bytes());
    body.extend(attribute(libc::IFLA_MTU, &mtu.to_ne_bytes()));
    body.extend(attribute(libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, mac]));
    if controller != 0 {
        body.extend(attribute(libc::IFLA_MASTER, &controller.to_ne_bytes()));
    }
    body
}

fn neighbour(index: u32, last: u8, mac: Option<u8>) -> Vec<u8> {
    let mut body = vec![0; NEIGHBOUR];
    body[0] = 2;
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body.extend(attribute(libc::NDA_DST, &[192, 0, 2, last]));
    if let Some(mac) = mac {
        body.extend(attribute(libc::NDA_LLADDR, &[2, 0, 0, 0, 0, mac]));
    }
    body
}

fn route(family: u8, kind: u8, destination: &[u8]) -> Vec<u8> {
    let mut body = vec![0; ROUTE];
    (body[0], body[7]) = (family, kind);
    body.extend(attribute(libc::RTA_DST, destination));
    body
}

/// Applies messages in turn; returns for each whether it outdates cached verdicts.
fn outdates<const N: usize>(messages: [(u16, Vec<u8>); N]) -> [bool; N] {
    let mut watch = RouteWatch::default();
    messages.map(|(kind, body)| watch.apply(kind, &body, |index| index == UPLINK))
}

#[test]
fn a_neighbour_of_an_uplink_counts_when_it_loses_or_changes_its_mac_address() {
    let told = |mac| (libc::RTM_NEWNEIGH, neighbour(UPLINK, 1, mac));
    let found = outdates([
        // Being resolved, resolved, and confirmed by each probe.
        told(None),
        told(Some(1)),
        told(Some(1)),
        // Another MAC address, then no answer, then resolved again.
        told(Some(2)),
        told(None),
        told(Some(2)),
        // Removed from the table, twice.
        (libc::RTM_DELNEIGH, neighbour(UPLINK, 1, Some(2))),
        (libc::RTM_DELNEIGH, neighbour(UPLINK, 1, Some(2))),
    ]);
    assert_eq!(found, [false, false, false, true, true, false, true, false]);
}

#[test]
fn neighbours_of_other_links_and_other_families_do_not_count() {
    let mut bridge_entry = neighbour(UPLINK, 1, Some(2));
    bridge_entry[0] = 7;
    let mut proxy = neighbour(UPLINK, 1, Some(3));
    proxy[10] = 1 << 3;
    let found = outdates([
        (libc::RTM_NEWNEIGH, neighbour(UPLINK, 1, Some(1))),
        (libc::RTM_NEWNEIGH, bridge_entry),
        (libc::RTM_NEWNEIGH, proxy),
        (libc::RTM_NEWNEIGH, neighbour(BRIDGE, 1, Some(1))),
        (libc::RTM_NEWNEIGH, neighbour(BRIDGE, 1, Some(2))),
        (libc::RTM_NEWNEIGH, neighbour(UPLINK, 2, Some(9))),
    ]);
    assert_eq!(found, [false; 6]);
}

#[test]
fn a_veth_that_comes_and_goes_on_a_bridge_does_not_count() {
    let mut port = link(VETH, UP_FLAGS, 1500, 1, BRIDGE);
    port[0] = 7;
    let found = outdates([
        (libc::RTM_NEWLINK, link(VETH, 0, 1500, 1, 0)),
        (libc::RTM_NEWLINK, link(VETH, 0, 1500, 1, BRIDGE)),
        (libc::RTM_NEWLINK, link(VETH, UP_FLAGS, 1500, 1, BRIDGE)),
        (libc::RTM_NEWLINK, port),
        (libc::RTM_NEWLINK, link(VETH, 0, 1500, 1, BRIDGE)),
        (libc::RTM_NEWLINK, link(VETH, 0, 1500, 1, 0)),
        (libc::RTM_DELLINK, link(VETH, 0, 1500, 1, 0)),
    ]);
    assert_eq!(found, [false; 7]);
}

#[test]
fn carrier_mac_address_and_mtu_of_a_link_count() {
    for controller in [0, BRIDGE] {
        let told = |flags, mtu, mac| (libc::RTM_NEWLINK, link(UPLINK, flags, mtu, mac, controller));
        let found = outdates([
            told(UP_FLAGS, 1500, 1),
            told(UP_FLAGS, 1500, 1),
            told(1, 1500, 1),
            told(UP_FLAGS, 1500, 1),
            told(UP_FLAGS, 1400, 1),
            told(UP_FLAGS, 1400, 2),
            (
                libc::RTM_DELLINK,
                link(UPLINK, UP_FLAGS, 1400, 2, controller),
            ),
        ]);
        assert_eq!(found, [false, false, true, true, true, true, true]);
    }
    let of_pod = |mtu| (libc::RTM_NEWLINK, link(VETH, UP_FLAGS, mtu, 1, BRIDGE));
    assert_eq!(outdates([of_pod(1500), of_pod(1400)]), [false, true]);
}

#[test]
fn routes_count_unless_no_packet_is_forwarded_by_them() {
    const UNICAST: u8 = 1;
    let v6 = |first: [u8; 2]| [&first[..], &[0; 14]].concat();
    for (body, counts) in [
        (route(2, UNICAST, &[192, 0, 2, 0]), true),
        (route(2, 6, &[192, 0, 2, 0]), true),
        (route(2, 3, &[192, 0, 2, 255]), false),
        (route(10, UNICAST, &v6([0x20, 1])), true),
        (route(10, UNICAST, &v6([0xfe, 0x80])), false),
        (route(10, 2, &v6([0xfe, 0xbf])), false),
        (route(10, UNICAST, &v6([0xfd, 0])), true),
        (route(10, UNICAST, &v6([0xff, 0])), false),
        (route(10, UNICAST, &[]), true),
    ] {
        for kind in [libc::RTM_NEWROUTE, libc::RTM_DELROUTE] {
            assert_eq!(outdates([(kind, body.clone())]), [counts], "{body:?}");
        }
    }
}

#[test]
fn removed_addresses_count_and_new_ones_do_not() {
    let address = |scope| vec![2, 24, 0, scope, 2, 0, 0, 0];
    assert_eq!(
        outdates([
            (libc::RTM_NEWADDR, address(0)),
            (libc::RTM_DELADDR, address(0)),
            (libc::RTM_DELADDR, address(253)),
        ]),
        [false, true, false]
    );
}

#[test]
fn settings_of_new_links_and_of_ports_do_not_count() {
    let setting = |index: u32| {
        let body = [vec![2, 0, 0, 0], attribute(1, &index.to_ne_bytes())].concat();
        (libc::RTM_NEWNETCONF, body)
    };
    let found = outdates([
        setting(VETH),
        (libc::RTM_NEWLINK, link(VETH, UP_FLAGS, 1500, 1, BRIDGE)),
        (libc::RTM_NEWLINK, link(UPLINK, UP_FLAGS, 1500, 1, 0)),
        setting(VETH),
        setting(UPLINK),
        setting(u32::MAX - 1),
        setting(u32::MAX),
    ]);
    assert_eq!(found, [false, false, false, false, true, false, true]);
}

#[test]
fn rules_next_hop_objects_and_truncated_messages_count() {
    /// `RTM_DELNEXTHOP`.
    const DELETED_NEXT_HOP: u16 = 105;
    for (kind, body) in [
        (libc::RTM_NEWRULE, vec![2; 12]),
        (DELETED_NEXT_HOP, vec![2; 8]),
        (libc::RTM_NEWLINK, vec![0; 7]),
        (libc::RTM_NEWROUTE, vec![]),
        (libc::RTM_NEWNEIGH, vec![2; 11]),
    ] {
        assert_eq!(outdates([(kind, body)]), [true], "{kind}");
    }
}
