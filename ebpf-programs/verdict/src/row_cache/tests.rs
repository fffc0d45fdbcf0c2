//! What a CPU knows is what it was told in this tick, of the very thing that is asked for.

use abi::{Port, PrefixClass, PrefixKey, protocol};

use super::*;
use crate::bypass::tests::{UPLINK, open_node};
use crate::simulator::example::{
    BRIDGE, HOSTPORT, INTERFACE, OWN_HOSTPORT, node, other_pod, pod, remote,
};
use crate::simulator::{JIFFY, World};

#[test]
fn a_row_is_asked_for_once_in_a_tick_and_again_after_a_change() {
    let (mut world, mut work) = (open_node(), Work::default());
    refresh(&world, &mut work);
    assert!(uplink(&world, &mut work, UPLINK).is_some());
    world.uplinks.clear();
    refresh(&world, &mut work);
    assert!(
        uplink(&world, &mut work, UPLINK).is_some(),
        "nobody said that it is gone"
    );
    world.flows_were_changed();
    refresh(&world, &mut work);
    assert!(uplink(&world, &mut work, UPLINK).is_none());
}

#[test]
fn what_is_known_is_forgotten_with_the_next_tick() {
    let (mut world, mut work) = (open_node(), Work::default());
    refresh(&world, &mut work);
    let bridge = *world.networks.keys().next().expect("a network");
    assert!(bridge_mac(&world, &mut work, bridge).is_some());
    world.networks.clear();
    (world.clock, world.now) = (world.clock + JIFFY, world.now + 1);
    refresh(&world, &mut work);
    assert!(bridge_mac(&world, &mut work, bridge).is_none());
    assert_eq!(work.now, world.now);
}

#[test]
fn what_nobody_has_is_not_mistaken_for_what_is_not_known_yet() {
    let (world, mut work) = (open_node(), Work::default());
    refresh(&world, &mut work);
    assert!(uplink(&world, &mut work, 0).is_none());
    assert!(bridge_mac(&world, &mut work, 0).is_none());
    assert!(interface(&world, &mut work, 0).is_none());
    assert!(!find_endpoint(&world, &mut work, &Address::ANY));
}

#[test]
fn one_row_takes_the_place_of_another() {
    let (world, mut work) = (open_node(), Work::default());
    refresh(&world, &mut work);
    for (address, endpoint) in world.endpoints.iter().chain(&world.endpoints) {
        assert!(find_endpoint(&world, &mut work, address));
        assert_eq!(work.endpoint, *endpoint);
    }
    for (index, of) in world.interfaces.iter().chain(&world.interfaces) {
        assert_eq!(interface(&world, &mut work, *index), Some(*of));
    }
}

/// A node, and where packets from a pod go that come to it by its bridge.
fn leaving(by_address: bool) -> (World, Work, Route) {
    let mut world = open_node();
    if by_address {
        world.settings.flags |= SettingsFlags::ROUTES_BY_ADDRESS;
    }
    let mut work = Work::default();
    refresh(&world, &mut work);
    let route = work.rows.egress;
    (world, work, route)
}

fn tuple(port: u16) -> Tuple {
    Tuple {
        source: pod()[0],
        destination: remote()[0],
        source_port: Port::new(port),
        ..Tuple::default()
    }
}

#[test]
fn a_way_holds_for_all_ports_unless_routes_ask_for_them() {
    for by_address in [true, false] {
        let (mut world, _, mut route) = leaving(by_address);
        assert_eq!(egress_route(&mut world, &mut route, BRIDGE, &tuple(1)), UPLINK);
        world.egress_routes.clear();
        let expected = if by_address { UPLINK } else { 0 };
        assert_eq!(egress_route(&mut world, &mut route, BRIDGE, &tuple(2)), expected);
    }
}

#[test]
fn a_way_is_of_one_link_one_mark_and_two_addresses() {
    let differently: [fn(&mut World, &mut u32, &mut Tuple); 4] = [
        |_, from, _| *from += 1,
        |world, _, _| world.mark = 7,
        |_, _, tuple| tuple.source = other_pod()[0],
        |_, _, tuple| tuple.destination = other_pod()[0],
    ];
    for differ in differently {
        let (mut world, _, mut route) = leaving(true);
        assert_eq!(egress_route(&mut world, &mut route, BRIDGE, &tuple(1)), UPLINK);
        world.egress_routes.clear();
        let (mut from, mut asked) = (BRIDGE, tuple(1));
        differ(&mut world, &mut from, &mut asked);
        assert_eq!(egress_route(&mut world, &mut route, from, &asked), 0);
    }
}

#[test]
fn where_there_is_no_way_the_next_packet_asks_again() {
    let (mut world, _, mut route) = leaving(true);
    let ways = std::mem::take(&mut world.egress_routes);
    assert_eq!(egress_route(&mut world, &mut route, BRIDGE, &tuple(1)), 0);
    world.egress_routes = ways;
    assert_eq!(egress_route(&mut world, &mut route, BRIDGE, &tuple(1)), UPLINK);
}

#[test]
fn what_is_no_longer_than_what_has_fitted_fits() {
    let (mut world, work, _) = leaving(true);
    let mut fit = work.rows.pod_mtu;
    let mut of_length = |length, segment, mtu| {
        world.packet = vec![0; length];
        world.segments = (0, segment);
        world.mtus.insert(INTERFACE, mtu);
        fits(&world, &mut fit, INTERFACE)
    };
    assert!(!of_length(100, 0, 50), "nothing is known yet");
    assert!(of_length(100, 0, 86), "with its Ethernet header");
    assert!(of_length(100, 0, 50), "asked about in this tick");
    assert!(!of_length(101, 0, 50));
    assert!(!of_length(100, 90, 50), "will be cut up");
    assert!(of_length(99, 0, 50), "no longer");
}

/// A packet from outside to this port of an address.
fn asks(work: &mut Work, to: Address, port: u16) {
    work.headers.tuple = Tuple {
        source: remote()[0],
        destination: to,
        destination_port: Port::new(port),
        protocol: protocol::UDP,
        ..Tuple::default()
    };
}

#[test]
fn whose_a_port_is_holds_for_that_port_of_that_address_and_protocol() {
    let (mut world, mut work, _) = leaving(true);
    asks(&mut work, node()[0], HOSTPORT);
    assert!(find_hostport(&world, &mut work));
    let leads = work.hostport;
    world.hostports.clear();
    work.hostport = Hostport::default();
    assert!(find_hostport(&world, &mut work), "it was told in this tick");
    assert_eq!(work.hostport, leads);
    work.headers.tuple.protocol = protocol::TCP;
    assert!(!find_hostport(&world, &mut work));
    for (to, port) in [(node()[0], OWN_HOSTPORT), (remote()[0], HOSTPORT)] {
        asks(&mut work, to, port);
        assert!(!find_hostport(&world, &mut work));
    }
}

#[test]
fn what_the_node_does_not_have_and_who_is_no_pod_is_known_as_well() {
    let (mut world, mut work, _) = leaving(true);
    asks(&mut work, remote()[0], HOSTPORT);
    assert!(!find_hostport(&world, &mut work) && !is_pod_address(&world, &mut work));
    world.locals.insert(remote()[0]);
    let key = PrefixKey {
        prefix_len: 128,
        address: remote()[0],
    };
    world.prefixes.insert(key, PrefixClass::PODS);
    assert!(!find_hostport(&world, &mut work) && !is_pod_address(&world, &mut work));
    world.flows_were_changed();
    refresh(&world, &mut work);
    assert!(find_hostport(&world, &mut work) && is_pod_address(&world, &mut work));
}

#[test]
fn a_pods_address_is_asked_for_each_time() {
    let (world, mut work, _) = leaving(true);
    for _ in 0..2 {
        work.headers.tuple.source = pod()[0];
        assert!(is_pod_address(&world, &mut work));
        work.headers.tuple.source = remote()[0];
        assert!(!is_pod_address(&world, &mut work));
    }
}
