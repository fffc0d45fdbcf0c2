//! Tests of address allocation: host-local's rules, and properties of any pool.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use model::testing::{key, network, network_of, parse, span};
use model::{Network, Range, RangeSet};
use proptest::prelude::*;

use crate::{AddressRefusal, Leases, choose, last_reserved};

fn small(first: &str, last: &str) -> Network {
    let mut network = network();
    network.ranges = vec![span("10.1.0.0/24", first, last)];
    network
}

fn taken(addresses: &[&str]) -> Leases {
    let owned = |text: &&str| (parse(text), key("other"));
    Leases {
        taken: addresses.iter().map(owned).collect(),
        ..Leases::default()
    }
}

fn pick(network: &Network, leases: &Leases, requested: &[&str]) -> Result<Vec<String>, String> {
    let requested: Vec<IpAddr> = requested.iter().map(|text| parse(text)).collect();
    let chosen =
        choose(network, leases, &requested, &key("new")).map_err(|refusal| refusal.to_string())?;
    let text = |assigned: &model::Assigned| {
        format!("{} via {}", assigned.address, assigned.gateway.unwrap())
    };
    Ok(chosen.iter().map(text).collect())
}

/// An attachment has its IPv4 addresses first, whatever the order of the sets.
#[test]
fn the_last_address_of_a_range_set_has_the_index_of_the_set() {
    let mut network = network();
    let mut chosen = choose(&network, &Leases::default(), &[], &key("new")).unwrap();
    let [v4, v6] = [chosen[0].address.address, chosen[1].address.address];
    assert_eq!(last_reserved(&network, &chosen), [(0, v4), (1, v6)].into());
    network.ranges.reverse();
    assert_eq!(last_reserved(&network, &chosen), [(0, v6), (1, v4)].into());
    chosen.pop();
    assert_eq!(last_reserved(&network, &chosen), [(1, v4)].into());
}

#[test]
fn addresses_of_the_node_are_skipped_by_ranges_and_refused_on_request() {
    let node = ["10.1.0.2", "10.1.0.3", "fd00:1::2"];
    let leases = Leases {
        node: node.iter().map(|text| parse(text)).collect(),
        ..Leases::default()
    };
    let chosen = pick(&network(), &leases, &[]).unwrap();
    assert_eq!(
        chosen,
        ["10.1.0.4/24 via 10.1.0.1", "fd00:1::3/64 via fd00:1::1"]
    );
    for address in node {
        let refused = pick(&network(), &leases, &[address]).unwrap_err();
        assert!(refused.contains(&format!("address {address} belongs to the node itself")));
    }
    // A static address is a range of one address.
    let refused = pick(&small("10.1.0.3", "10.1.0.3"), &leases, &[]).unwrap_err();
    assert!(
        refused.contains("10.1.0.3 belongs to the node itself"),
        "{refused}"
    );
    let full = pick(&small("10.1.0.2", "10.1.0.3"), &leases, &[]).unwrap_err();
    assert!(full.contains("no IP addresses available"), "{full}");
}

/// behaviour R8: the gateway is `.1`, so the first pod gets `.2`.
#[test]
fn a_pod_gets_the_address_after_the_gateway_of_each_range_set() {
    let chosen = pick(&network(), &Leases::default(), &[]).unwrap();
    assert_eq!(
        chosen,
        ["10.1.0.2/24 via 10.1.0.1", "fd00:1::2/64 via fd00:1::1"]
    );
}

/// As host-local: an address that just became free is the last to be given again.
#[test]
fn the_address_search_starts_after_the_last_reserved_address_and_wraps() {
    let network = small("10.1.0.2", "10.1.0.4");
    let mut leases = taken(&["10.1.0.3"]);
    leases.last_reserved.insert(0, parse("10.1.0.2"));
    assert_eq!(
        pick(&network, &leases, &[]).unwrap(),
        ["10.1.0.4/24 via 10.1.0.1"]
    );
    leases.last_reserved.insert(0, parse("10.1.0.4"));
    assert_eq!(
        pick(&network, &leases, &[]).unwrap(),
        ["10.1.0.2/24 via 10.1.0.1"]
    );
}

#[test]
fn the_last_reserved_address_itself_is_tried_last() {
    let network = small("10.1.0.2", "10.1.0.4");
    let mut leases = taken(&["10.1.0.2", "10.1.0.4"]);
    leases.last_reserved.insert(0, parse("10.1.0.3"));
    assert_eq!(
        pick(&network, &leases, &[]).unwrap(),
        ["10.1.0.3/24 via 10.1.0.1"]
    );
}

#[test]
fn a_last_reserved_address_outside_of_all_ranges_is_ignored() {
    let mut leases = Leases::default();
    leases.last_reserved.insert(0, parse("172.16.0.9"));
    let network = small("10.1.0.2", "10.1.0.4");
    assert_eq!(
        pick(&network, &leases, &[]).unwrap(),
        ["10.1.0.2/24 via 10.1.0.1"]
    );
}

/// behaviour R10: users search for this text.
#[test]
fn an_exhausted_range_set_is_named_by_its_first_and_last_address() {
    let leases = taken(&["10.1.0.2", "10.1.0.3"]);
    let error = pick(&small("10.1.0.2", "10.1.0.3"), &leases, &[]).unwrap_err();
    assert_eq!(
        error,
        "no IP addresses available in range set: 10.1.0.2-10.1.0.3"
    );
}

/// behaviour R10.
#[test]
fn an_owner_gets_no_second_address_of_a_set() {
    let mut leases = Leases::default();
    leases.taken.insert(parse("10.1.0.9"), key("new"));
    let error = pick(&network(), &leases, &[]).unwrap_err();
    assert_eq!(
        error,
        "10.1.0.9 has been allocated to new, duplicate allocation is not allowed"
    );
}

/// behaviour R9.
#[test]
fn requested_addresses_come_from_the_range_sets_that_contain_them() {
    let chosen = pick(&network(), &Leases::default(), &["fd00:1::99", "10.1.0.77"]).unwrap();
    assert_eq!(
        chosen,
        ["10.1.0.77/24 via 10.1.0.1", "fd00:1::99/64 via fd00:1::1"]
    );
}

/// behaviour R9.
#[test]
fn requested_addresses_are_counted_once_and_keep_their_order() {
    let requested: Vec<IpAddr> = (0..20_000)
        .map(|number| Ipv4Addr::from_bits(0xac10_0000 + number % 10_000).into())
        .collect();
    let refusal = choose(&network(), &Leases::default(), &requested, &key("new")).unwrap_err();
    let addresses = requested[..10_000].to_vec();
    assert_eq!(refusal, AddressRefusal::RequestsLeft { addresses });
}

/// behaviour R9.
#[test]
fn a_requested_address_that_is_taken_is_refused() {
    let error = pick(&network(), &taken(&["10.1.0.77"]), &["10.1.0.77"]).unwrap_err();
    assert_eq!(
        error,
        "requested IP address 10.1.0.77 is not available in range set 10.1.0.1-10.1.0.254"
    );
}

/// behaviour R9.
#[test]
fn the_gateway_cannot_be_requested() {
    let error = pick(&network(), &Leases::default(), &["10.1.0.1"]).unwrap_err();
    assert_eq!(error, "requested ip 10.1.0.1 is subnet's gateway");
}

/// behaviour R9: at most one of each set, and none outside of the sets.
#[test]
fn a_requested_address_outside_of_all_range_sets_refuses_the_add() {
    let requested = ["10.1.0.7", "10.1.0.8", "172.16.0.1"];
    let error = pick(&network(), &Leases::default(), &requested).unwrap_err();
    assert_eq!(
        error,
        "failed to allocate all requested IPs: 10.1.0.8 172.16.0.1"
    );
}

#[test]
fn the_broadcast_address_is_never_given_even_inside_a_range() {
    let network = small("10.1.0.254", "10.1.0.255");
    let error = pick(&network, &taken(&["10.1.0.254"]), &[]).unwrap_err();
    assert_eq!(
        error,
        "no IP addresses available in range set: 10.1.0.254-10.1.0.255"
    );
    assert!(pick(&network, &Leases::default(), &["10.1.0.255"]).is_err());
}

#[test]
fn a_network_without_ranges_waits_for_its_pod_cidr() {
    let network = network_of("net", "cbr0", &[]);
    let refusal = choose(&network, &Leases::default(), &[], &key("new")).unwrap_err();
    assert!(
        matches!(refusal, AddressRefusal::NoRanges { .. }),
        "{refusal}"
    );
}

#[test]
fn ranges_of_a_set_are_alternatives_in_their_order() {
    let mut network = network();
    let [a, b] =
        [("10.1.0.0/24", "10.1.0.9"), ("10.2.0.0/24", "10.2.0.9")].map(|(subnet, only)| {
            Range::new(parse(subnet), Some(parse(only)), Some(parse(only)), None).unwrap()
        });
    network.ranges = vec![RangeSet::new(vec![a, b]).unwrap()];
    assert_eq!(
        pick(&network, &Leases::default(), &[]).unwrap(),
        ["10.1.0.9/24 via 10.1.0.1"]
    );
    assert_eq!(
        pick(&network, &taken(&["10.1.0.9"]), &[]).unwrap(),
        ["10.2.0.9/24 via 10.2.0.1"]
    );
    let error = pick(&network, &taken(&["10.1.0.9", "10.2.0.9"]), &[]).unwrap_err();
    assert_eq!(
        error,
        "no IP addresses available in range set: 10.1.0.9-10.1.0.9,10.2.0.9-10.2.0.9"
    );
}

/// The pool has 2^64 addresses: a search that walked over them would not return.
#[test]
fn a_large_pool_costs_no_more_than_its_leases() {
    let network = network_of("net", "cbr0", &["fd00:1::/64"]);
    let mut leases = Leases::default();
    leases
        .last_reserved
        .insert(0, parse("fd00:1::ffff:ffff:ffff:ffff"));
    for low in 1..10_000_u128 {
        let address = IpAddr::from((0xfd00_0001_u128 << 96 | low).to_be_bytes());
        leases.taken.insert(address, key("other"));
    }
    assert!(choose(&network, &leases, &[], &key("new")).is_ok());
}

fn v4(bits: u32) -> IpAddr {
    Ipv4Addr::from_bits(bits).into()
}

/// A /24 with a range and a gateway anywhere in it, some addresses taken, and a last reserved one.
fn pools() -> impl Strategy<Value = (Network, Leases)> {
    let subnet = 0x0a01_0000;
    let ends = (0..=255_u32, 0..=255_u32).prop_map(|(a, b)| (a.min(b), a.max(b)));
    let taken = prop::collection::btree_set(0..=255_u32, 0..=255);
    let last = prop::option::of(0..=255_u32);
    (ends, 0..=255_u32, taken, last).prop_map(move |((first, last), gateway, taken, reserved)| {
        let at = |low: u32| Some(v4(subnet + low));
        let cidr = parse("10.1.0.0/24");
        let range = Range::new(cidr, at(first), at(last), at(gateway)).unwrap();
        let mut network = network();
        network.ranges = vec![RangeSet::new(vec![range]).unwrap()];
        let leases = Leases {
            taken: taken
                .into_iter()
                .map(|low| (v4(subnet + low), key("other")))
                .collect(),
            last_reserved: reserved
                .map(|low| (0, v4(subnet + low)))
                .into_iter()
                .collect(),
            ..Leases::default()
        };
        (network, leases)
    })
}

/// Returns every free address in the order of host-local's search.
fn walk(network: &Network, leases: &Leases) -> Vec<IpAddr> {
    let range = network.ranges[0].ranges()[0];
    let all = (0x0a01_0000..=0x0a01_00ff_u32).map(v4);
    let edges = [v4(0x0a01_0000), v4(0x0a01_00ff)];
    let (mut after, mut before) = (Vec::new(), Vec::new());
    let last = leases.last_reserved.get(&0).copied();
    let last = last.filter(|last| *last >= range.first() && *last <= range.last());
    for address in all.filter(|address| range.offers(*address) && !edges.contains(address)) {
        if last.is_some_and(|last| address > last) {
            after.push(address);
        } else {
            before.push(address);
        }
    }
    after.extend(before);
    after.retain(|address| !leases.taken.contains_key(address));
    after
}

proptest! {
    /// Never a taken address, a gateway, an edge or one outside of the range; exhausted exactly
    /// when no address is free.
    #[test]
    fn the_choice_is_the_first_free_address_of_the_walk((network, leases) in pools()) {
        let free = walk(&network, &leases);
        match choose(&network, &leases, &[], &key("new")) {
            Ok(chosen) => prop_assert_eq!(Some(&chosen[0].address.address), free.first()),
            Err(AddressRefusal::Exhausted { .. }) => prop_assert!(free.is_empty()),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    /// behaviour K14: the configured network is the same afterwards, however often an address is
    /// chosen.
    #[test]
    fn a_pool_is_given_out_once_each_and_never_changes((network, leases) in pools()) {
        let before = network.clone();
        let (mut leases, mut given) = (leases, BTreeSet::new());
        let free = walk(&network, &leases).len();
        while let Ok(chosen) = choose(&network, &leases, &[], &key("new")) {
            let address = chosen[0].address.address;
            prop_assert!(given.insert(address), "{} was given twice", address);
            leases.taken.insert(address, key("other"));
            leases.last_reserved.insert(0, address);
        }
        prop_assert_eq!(given.len(), free);
        prop_assert_eq!(network, before);
    }

    /// Exactly the free addresses can be requested.
    #[test]
    fn a_request_is_granted_exactly_when_the_address_is_free((network, leases) in pools(), low: u8) {
        let request = v4(0x0a01_0000 + u32::from(low));
        let granted = choose(&network, &leases, &[request], &key("new")).is_ok();
        prop_assert_eq!(granted, walk(&network, &leases).contains(&request));
    }
}
