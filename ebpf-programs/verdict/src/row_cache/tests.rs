//! Tests of the per-CPU row cache: a cached row is valid within one jiffy and epoch, for its own
//! key only.

use abi::{Port, PrefixClass, PrefixKey, protocol};

use super::*;
use crate::bypass::tests::{UPLINK, open_node};
use crate::simulator::example::{
    BRIDGE, HOSTPORT, INTERFACE, OWN_HOSTPORT, node, other_pod, pod, remote,
};
use crate::simulator::{JIFFY, World};

#[test]
fn a_cached_row_is_read_once_per_jiffy_and_again_after_a_change() {
    let (mut world, mut work) = (open_node(), Work::default());
    refresh(&world, &mut work);
    assert!(uplink(&world, &mut work, UPLINK).is_some());
    world.uplinks.clear();
    refresh(&world, &mut work);
    assert!(
        uplink(&world, &mut work, UPLINK).is_some(),
        "without a new epoch the cached row is valid"
    );
    world.flows_were_changed();
    refresh(&world, &mut work);
    assert!(uplink(&world, &mut work, UPLINK).is_none());
}

#[test]
fn cached_rows_expire_with_the_next_jiffy() {
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
fn zero_keys_miss_in_a_fresh_row_cache() {
    let (world, mut work) = (open_node(), Work::default());
    refresh(&world, &mut work);
    assert!(uplink(&world, &mut work, 0).is_none());
    assert!(bridge_mac(&world, &mut work, 0).is_none());
    assert!(interface(&world, &mut work, 0).is_none());
    assert!(!find_endpoint(&world, &mut work, &Address::ANY));
}

#[test]
fn a_cached_row_is_replaced_by_another_of_the_same_slot() {
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

/// Returns a node, and the route cache of a pod's packets that arrive through the bridge.
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
fn route_cache_ignores_ports_unless_policy_routing_uses_them() {
    for by_address in [true, false] {
        let (mut world, _, mut route) = leaving(by_address);
        assert_eq!(
            egress_route(&mut world, &mut route, BRIDGE, &tuple(1)),
            UPLINK
        );
        world.egress_routes.clear();
        let expected = if by_address { UPLINK } else { 0 };
        assert_eq!(
            egress_route(&mut world, &mut route, BRIDGE, &tuple(2)),
            expected
        );
    }
}

#[test]
fn route_cache_key_is_interface_mark_and_addresses() {
    let differently: [fn(&mut World, &mut u32, &mut Tuple); 4] = [
        |_, from, _| *from += 1,
        |world, _, _| world.mark = 7,
        |_, _, tuple| tuple.source = other_pod()[0],
        |_, _, tuple| tuple.destination = other_pod()[0],
    ];
    for differ in differently {
        let (mut world, _, mut route) = leaving(true);
        assert_eq!(
            egress_route(&mut world, &mut route, BRIDGE, &tuple(1)),
            UPLINK
        );
        world.egress_routes.clear();
        let (mut from, mut asked) = (BRIDGE, tuple(1));
        differ(&mut world, &mut from, &mut asked);
        assert_eq!(egress_route(&mut world, &mut route, from, &asked), 0);
    }
}

#[test]
fn a_missing_route_is_not_cached() {
    let (mut world, _, mut route) = leaving(true);
    let ways = std::mem::take(&mut world.egress_routes);
    assert_eq!(egress_route(&mut world, &mut route, BRIDGE, &tuple(1)), 0);
    world.egress_routes = ways;
    assert_eq!(
        egress_route(&mut world, &mut route, BRIDGE, &tuple(1)),
        UPLINK
    );
}

#[test]
fn packets_no_longer_than_one_that_fitted_fit_the_mtu() {
    let (mut world, work, _) = leaving(true);
    let mut fit = work.rows.pod_mtu;
    let mut of_length = |length, segment, mtu| {
        world.packet = vec![0; length];
        world.segments = (0, segment);
        world.mtus.insert(INTERFACE, mtu);
        fits(&world, &mut fit, INTERFACE)
    };
    assert!(!of_length(100, 0, 50), "no length is cached yet");
    assert!(of_length(100, 0, 86), "with its Ethernet header");
    assert!(of_length(100, 0, 50), "cached in this jiffy");
    assert!(!of_length(101, 0, 50));
    assert!(!of_length(100, 90, 50), "will be segmented");
    assert!(of_length(99, 0, 50), "not longer than the cached length");
}

/// Sets the parsed tuple to a UDP packet from outside to this port.
fn set_tuple(work: &mut Work, to: Address, port: u16) {
    work.headers.tuple = Tuple {
        source: remote()[0],
        destination: to,
        destination_port: Port::new(port),
        protocol: protocol::UDP,
        ..Tuple::default()
    };
}

#[test]
fn a_cached_hostport_applies_to_its_port_address_and_protocol_only() {
    let (mut world, mut work, _) = leaving(true);
    set_tuple(&mut work, node()[0], HOSTPORT);
    assert!(find_hostport(&world, &mut work));
    let leads = work.hostport;
    world.hostports.clear();
    work.hostport = Hostport::default();
    assert!(
        find_hostport(&world, &mut work),
        "the row was read in this jiffy"
    );
    assert_eq!(work.hostport, leads);
    work.headers.tuple.protocol = protocol::TCP;
    assert!(!find_hostport(&world, &mut work));
    for (to, port) in [(node()[0], OWN_HOSTPORT), (remote()[0], HOSTPORT)] {
        set_tuple(&mut work, to, port);
        assert!(!find_hostport(&world, &mut work));
    }
}

#[test]
fn absent_local_and_pod_addresses_are_cached() {
    let (mut world, mut work, _) = leaving(true);
    set_tuple(&mut work, remote()[0], HOSTPORT);
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
fn the_address_of_a_pod_is_looked_up_each_time() {
    let (world, mut work, _) = leaving(true);
    for _ in 0..2 {
        work.headers.tuple.source = pod()[0];
        assert!(is_pod_address(&world, &mut work));
        work.headers.tuple.source = remote()[0];
        assert!(!is_pod_address(&world, &mut work));
    }
}
