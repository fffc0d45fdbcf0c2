//! Tests of bridge plans: created, repaired, foreign and refused bridges.

use insta::assert_snapshot;

use steps::{LinkKind, NodeLink, Observed, Step};

use crate::plan_bridge;
use crate::testing::{bare_node, link, network, network_of, node, parse};

fn forwarding(observed: &mut Observed) {
    for value in observed.sysctls.values_mut() {
        *value = Some("1".to_owned());
    }
    observed
        .sysctls
        .retain(|key, _| !key.0.contains("accept_ra"));
}

fn configured_node() -> Observed {
    let mut observed = node();
    forwarding(&mut observed);
    observed
}

fn bridge(observed: &mut Observed) -> &mut NodeLink {
    observed.links.get_mut(&parse("cbr0")).unwrap()
}

/// The MAC address is set when the bridge is created; `accept_ra` of uplinks is set before
/// forwarding is turned on.
#[test]
fn a_missing_bridge_is_created_and_forwarding_turned_on() {
    let plan = plan_bridge(&network(), &bare_node()).unwrap();
    assert_snapshot!(plan, @r#"
     1. make bridge cbr0: MAC 02:f3:86:03:b8:c3, MTU 1500, alias "viaduct net"
     2. set sysctl net/ipv6/conf/cbr0/accept_dad to 0 (now 1)
     3. set sysctl net/ipv6/conf/cbr0/accept_ra to 0 (now 1)
     4. add address 10.1.0.1/24 to cbr0
     5. add address fd00:1::1/64 to cbr0
     6. add address fe80::f3:86ff:fe03:b8c3/64 to cbr0
     7. set cbr0 up
     8. set sysctl net/ipv6/conf/eth0/accept_ra to 2 (now 1)
     9. set sysctl net/ipv6/conf/all/forwarding to 1 (now 0)
    10. set sysctl net/ipv4/ip_forward to 1 (now 0)
    "#);
}

/// A bridge whose MAC address is set has no carrier before its first port, so the kernel adds no
/// link-local address until then.
#[test]
fn a_bridge_of_ours_without_a_link_local_address_gets_the_one_of_its_mac_address() {
    const NOTHING: &str = "nothing to do";
    let mut observed = configured_node();
    let of_bridge = |name: &str| steps::SysctlKey(format!("net/ipv6/conf/cbr0/{name}"));
    let sysctls =
        ["addr_gen_mode", "disable_ipv6"].map(|name| (of_bridge(name), Some("0".to_owned())));
    observed.sysctls.extend(sysctls);
    let plan = |observed: &Observed| plan_bridge(&network(), observed).unwrap().to_string();
    let added = " 1. add address fe80::f3:86ff:fe03:b8c3/64 to cbr0";
    assert_eq!(plan(&observed), added);

    let mut other = observed.clone();
    bridge(&mut other).addresses.push(parse("fe80::1/64"));
    assert_eq!(
        plan(&other),
        NOTHING,
        "a bridge with another link-local address"
    );

    for (name, value) in [
        ("addr_gen_mode", "1"),
        ("addr_gen_mode", "2"),
        ("disable_ipv6", "1"),
    ] {
        let mut other = observed.clone();
        other
            .sysctls
            .insert(of_bridge(name), Some(value.to_owned()));
        assert_eq!(plan(&other), NOTHING, "{name} is {value}");
    }

    let mut foreign = observed.clone();
    let present = bridge(&mut foreign);
    (present.alias, present.mac_is_set) = (None, true);
    present.mac = Some(parse("02:00:00:00:00:01"));
    assert_eq!(plan(&foreign), NOTHING, "a foreign bridge");
}

#[test]
fn a_bridge_that_matches_its_network_gets_an_empty_plan() {
    assert!(
        plan_bridge(&network(), &configured_node())
            .unwrap()
            .is_empty()
    );
}

#[test]
fn an_ipv4_network_leaves_ipv6_alone() {
    let network = network_of("net", "cbr0", &["10.1.0.0/24"]);
    let plan = plan_bridge(&network, &node()).unwrap();
    assert_snapshot!(plan, @" 1. set sysctl net/ipv4/ip_forward to 1 (now 0)");
}

#[test]
fn our_bridge_is_repaired_where_it_differs() {
    let mut observed = configured_node();
    let present = bridge(&mut observed);
    present.mac = Some(parse("02:00:00:00:00:01"));
    present.mtu = 1400;
    present.up = false;
    present.addresses = vec![parse("10.1.0.1/16"), parse("fe80::1/64")];
    let plan = plan_bridge(&network(), &observed).unwrap();
    assert_snapshot!(plan, @r"
    1. set the MAC address of cbr0 to 02:f3:86:03:b8:c3
    2. set the MTU of cbr0 to 1500
    3. remove address 10.1.0.1/16 from cbr0
    4. add address 10.1.0.1/24 to cbr0
    5. add address fd00:1::1/64 to cbr0
    6. set cbr0 up
    ");
}

/// behaviour R4.
#[test]
fn a_link_of_another_kind_with_the_bridges_name_is_refused() {
    let mut observed = configured_node();
    observed
        .links
        .insert(parse("cbr0"), link(3, LinkKind::Ethernet, &[]));
    let refusal = plan_bridge(&network(), &observed).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "\"cbr0\" already exists but is not a bridge"
    );
}

#[test]
fn a_foreign_bridge_is_used_without_changes() {
    let mut observed = configured_node();
    let present = bridge(&mut observed);
    present.alias = None;
    present.mac = Some(parse("02:00:00:00:00:01"));
    present.mac_is_set = true;
    present.mtu = 9000;
    assert!(plan_bridge(&network(), &observed).unwrap().is_empty());
    bridge(&mut observed).addresses.remove(0);
    let plan = plan_bridge(&network(), &observed).unwrap();
    assert_snapshot!(plan, @" 1. add address 10.1.0.1/24 to cbr0");
}

/// behaviour F2: otherwise the bridge takes the lowest MAC address of its ports.
#[test]
fn a_foreign_bridges_mac_address_is_set_to_the_one_that_it_has() {
    let mut observed = configured_node();
    let present = bridge(&mut observed);
    present.alias = None;
    present.mac = Some(parse("ce:00:00:00:00:01"));
    let plan = plan_bridge(&network(), &observed).unwrap();
    assert_snapshot!(plan, @" 1. set the MAC address of cbr0 to ce:00:00:00:00:01");
    // A bridge that has lost its last port.
    bridge(&mut observed).mac = Some(model::Mac([0; 6]));
    let plan = plan_bridge(&network(), &observed).unwrap();
    assert_snapshot!(plan, @" 1. set the MAC address of cbr0 to 06:f3:86:03:b8:c3");
    bridge(&mut observed).alias = Some("viaduct other".to_owned());
    assert!(plan_bridge(&network(), &observed).unwrap().is_empty());
}

/// behaviour R3.
#[test]
fn a_foreign_bridge_with_another_address_is_refused() {
    let refused = |address: &str| {
        let mut observed = configured_node();
        let present = bridge(&mut observed);
        present.alias = None;
        present.mac = Some(parse("02:00:00:00:00:01"));
        present.addresses = vec![parse(address), parse("fe80::1/64")];
        let refusal = plan_bridge(&network(), &observed).err()?;
        Some(refusal.to_string())
    };
    let v4 = "\"cbr0\" already has an IP address different from 10.1.0.1/24";
    assert_eq!(refused("172.16.0.1/24").as_deref(), Some(v4));
    assert_eq!(refused("10.1.0.1/16").as_deref(), Some(v4));
    let v6 = "\"cbr0\" already has an IP address different from fd00:1::1/64";
    assert_eq!(refused("fd00:1::9/64").as_deref(), Some(v6));
    assert_eq!(refused("fd00:2::1/64"), None, "IPv6 takes several subnets");
}

#[test]
fn two_ranges_with_one_gateway_share_one_bridge_address() {
    let mut network = network();
    network.ranges = vec![
        crate::testing::span("10.1.0.0/24", "10.1.0.2", "10.1.0.9"),
        crate::testing::span("10.1.0.0/16", "10.1.0.100", "10.1.0.200"),
    ];
    assert_eq!(super::gateways(&network), [parse("10.1.0.1/16")]);
}

#[test]
fn a_network_without_ranges_is_a_switch_with_a_link_local_address_only() {
    let network = network_of("net", "cbr0", &[]);
    let plan = plan_bridge(&network, &bare_node()).unwrap();
    let mut steps = plan.steps().iter();
    assert!(
        matches!(steps.next(), Some(Step::CreateBridge(_))),
        "{plan}"
    );
    let added: Vec<_> = steps.filter_map(Step::added_address).collect();
    let own = network.bridge_mac().link_local();
    assert_eq!(added, [(&network.bridge, own)], "{plan}");
}

/// The alias is set by a second message, and the agent may be killed before it.
#[test]
fn a_bridge_without_its_alias_is_completed() {
    let mut observed = configured_node();
    bridge(&mut observed).alias = None;
    let plan = plan_bridge(&network(), &observed).unwrap();
    assert_snapshot!(plan, @r#" 1. make bridge cbr0: MAC 02:f3:86:03:b8:c3, MTU 1500, alias "viaduct net""#);
}

/// Returns the observation without the sysctls that a plan would set.
fn without_sysctls(mut observed: Observed) -> Observed {
    forwarding(&mut observed);
    let quiet = |key: &steps::SysctlKey| !key.0.contains("accept_dad");
    observed.sysctls.retain(|key, _| quiet(key));
    observed
}

fn vlan(number: u16) -> model::VlanId {
    model::VlanId::new(number).unwrap()
}

fn in_vlan(number: u16) -> model::Network {
    let mut network = network_of("net", "cbr0", &["10.1.0.0/24"]);
    network.options.port.vlans.access = Some(vlan(number));
    network
}

/// behaviours F8; R2: the gateway of pods in a VLAN is on the VLAN's interface, not on the bridge.
#[test]
fn a_vlans_gateway_is_on_its_vlan_interface() {
    let observed = without_sysctls(bare_node());
    let plan = plan_bridge(&in_vlan(100), &observed).unwrap();
    assert_snapshot!(plan, @r#"
    1. make bridge cbr0: MAC 02:f3:86:03:b8:c3, MTU 1500, filters VLANs, alias "viaduct net"
    2. set cbr0 up
    3. make cbr0.100: veth in VLAN 100 of cbr0, alias "viaduct net"
    4. add address 10.1.0.1/24 to cbr0.100
    5. set cbr0.100 up
    "#);
}

/// behaviour F8: without a gateway the node has no interface in the VLAN.
#[test]
fn without_a_gateway_the_bridge_has_no_address() {
    let observed = without_sysctls(bare_node());
    let mut network = in_vlan(100);
    network.options.gateway = false;
    let plan = plan_bridge(&network, &observed).unwrap();
    assert_snapshot!(plan, @r#"
    1. make bridge cbr0: MAC 02:f3:86:03:b8:c3, MTU 1500, filters VLANs, alias "viaduct net"
    2. set cbr0 up
    "#);
}

#[test]
fn vlan_filtering_is_turned_on_for_our_bridge_and_refused_for_a_foreign_one() {
    let mut observed = without_sysctls(configured_node());
    bridge(&mut observed).addresses.clear();
    let plan = plan_bridge(&in_vlan(7), &observed).unwrap();
    assert_snapshot!(plan, @r#"
    1. turn VLAN filtering of cbr0 on
    2. make cbr0.7: veth in VLAN 7 of cbr0, alias "viaduct net"
    3. add address 10.1.0.1/24 to cbr0.7
    4. set cbr0.7 up
    "#);
    bridge(&mut observed).alias = Some("operator".to_owned());
    let refusal = plan_bridge(&in_vlan(7), &observed).unwrap_err();
    assert!(
        refusal
            .to_string()
            .contains("ip link set cbr0 type bridge vlan_filtering 1")
    );
}

/// An agent that was killed leaves a veth pair without alias, or one whose end lacks addresses.
#[test]
fn a_half_made_vlan_interface_is_completed() {
    let mut observed = without_sysctls(configured_node());
    bridge(&mut observed).addresses.clear();
    bridge(&mut observed).switching.filters_vlans = true;
    let mac = bridge(&mut observed).mac;
    let mut end = link(8, LinkKind::Veth, &[]);
    end.up = false;
    end.mac = mac;
    end.mtu = 1500;
    observed.links.insert(parse("cbr0.7"), end);
    let plan = plan_bridge(&in_vlan(7), &observed).unwrap();
    assert_snapshot!(plan, @r#"
    1. make cbr0.7: veth in VLAN 7 of cbr0, alias "viaduct net"
    2. add address 10.1.0.1/24 to cbr0.7
    3. set cbr0.7 up
    "#);
    let end = observed.links.get_mut(&parse("cbr0.7")).unwrap();
    end.alias = Some("viaduct net".to_owned());
    end.switching.vlan_of = Some((3, vlan(7)));
    let plan = plan_bridge(&in_vlan(7), &observed).unwrap();
    assert_snapshot!(plan, @"
    1. add address 10.1.0.1/24 to cbr0.7
    2. set cbr0.7 up
    ");
    let end = observed.links.get_mut(&parse("cbr0.7")).unwrap();
    end.alias = None;
    end.switching.vlan_of = None;
    end.mac = Some(model::Mac([2, 0, 0, 0, 0, 9]));
    assert!(
        plan_bridge(&in_vlan(7), &observed).is_err(),
        "a veth of others"
    );
}

/// behaviour R4: the name alone does not identify a VLAN interface.
#[test]
fn a_vlan_interface_name_of_another_link_is_refused() {
    let mut observed = without_sysctls(configured_node());
    let other = link(8, LinkKind::Ethernet, &[]);
    observed.links.insert(parse("cbr0.7"), other);
    let refusal = plan_bridge(&in_vlan(7), &observed).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "\"cbr0.7\" already exists but is not VLAN 7 of cbr0"
    );
    let end = observed.links.get_mut(&parse("cbr0.7")).unwrap();
    end.switching.vlan_of = Some((3, vlan(7)));
    end.addresses = vec![parse("10.9.9.9/24")];
    let refusal = plan_bridge(&in_vlan(7), &observed).unwrap_err();
    let words = "\"cbr0.7\" already has an IP address different from 10.1.0.1/24";
    assert_eq!(
        refusal.to_string(),
        words,
        "an operator's, with an address of his"
    );

    let mut long = in_vlan(4000);
    long.bridge = parse("a-long-bridge");
    let refusal = plan_bridge(&long, &without_sysctls(configured_node())).unwrap_err();
    assert!(
        refusal.to_string().contains("a-long-bridge.4000"),
        "{refusal}"
    );
}

/// behaviour R3
#[test]
fn force_address_removes_only_conflicting_addresses() {
    let mut observed = without_sysctls(configured_node());
    let present = bridge(&mut observed);
    present.alias = Some("operator".to_owned());
    present.mac_is_set = true;
    present.addresses = ["10.9.0.1/24", "10.1.0.1/16", "fd00:2::1/64", "fd00:1::9/64"]
        .map(parse)
        .into();
    assert!(plan_bridge(&network(), &observed).is_err());
    let mut network = network();
    network.options.force_address = true;
    let plan = plan_bridge(&network, &observed).unwrap();
    assert_snapshot!(plan, @r"
    1. remove address 10.1.0.1/16 from cbr0
    2. remove address 10.9.0.1/24 from cbr0
    3. remove address fd00:1::9/64 from cbr0
    4. add address 10.1.0.1/24 to cbr0
    5. add address fd00:1::1/64 to cbr0
    ");
}
