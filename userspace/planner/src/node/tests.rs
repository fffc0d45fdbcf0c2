//! Tests of the node's plan: the whole plan, then its parts.

mod gateways;
mod mtus;
mod sizes;
mod subnets;

use std::collections::{BTreeMap, BTreeSet};

use insta::assert_snapshot;
use model::State;
use steps::{
    Entry, EntryKey, LinkKind, LinkRef, Observed, RouteEntry, SocketHook, SocketHookState, Step,
};

use crate::testing::{
    World, attachment, bare_node, intent, link, network, network_of, node, parse, port, seen,
};
use crate::{NodeIntent, NodePlan, Records, flow_entries, node_sysctls, plan_node};

fn node_intent() -> NodeIntent {
    NodeIntent {
        networks: vec![network()],
        ..NodeIntent::default()
    }
}

fn plan(intent: &NodeIntent, observed: &Observed) -> NodePlan {
    plan_node(intent, observed, &Records::new())
}

fn uplinks(intent: &NodeIntent, observed: &Observed) -> Vec<String> {
    let planned = plan(intent, observed).plan;
    let name = |key: &EntryKey| {
        let EntryKey::Uplink(LinkRef::Name(name)) = key else {
            return None;
        };
        Some(name.to_string())
    };
    planned.keys().filter_map(name).collect()
}

#[test]
fn the_first_plan_configures_a_bare_node() {
    let mut intent = node_intent();
    intent.non_masquerade.insert(parse("10.0.0.0/8"));
    let plan = plan(&intent, &bare_node());
    assert!(plan.refused.is_empty());
    assert_snapshot!(plan.plan, @r#"
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
    11. write network of cbr0: 02:f3:86:03:b8:c3, gateways 10.1.0.1 fd00:1::1
    12. write local address 10.1.0.1: local
    13. write local address 127.0.0.1: local
    14. write local address 192.0.2.10: local
    15. write local address ::1: local
    16. write local address 2001:db8::10: local
    17. write local address fd00:1::1: local
    18. write prefix 10.0.0.0/8: not masqueraded
    19. write prefix 10.1.0.0/24: pods, not masqueraded, complete
    20. write prefix fd00:1::/64: pods, complete
    21. write uplink eth0: Ethernet, MTU 1500, from 192.0.2.10/24 2001:db8::10/64, closed
    22. write settings: masquerade ports 1024-65535, at most 1024 flows per pod, TCP idle timeout 432000 s
    23. attach uplink_in, uplink_out to eth0
    "#);
}

/// Links with addresses or routes are uplinks; the loopback, ports, our own links and bridges of
/// containers are not.
#[test]
fn uplinks_follow_addresses_and_routes() {
    let mut observed = node();
    let mut add = |name: &str, link: steps::NodeLink| observed.links.insert(parse(name), link);
    add("wg0", link(10, LinkKind::Raw, &[]));
    add("docker0", link(11, LinkKind::Bridge, &["172.17.0.1/16"]));
    add("idle", link(12, LinkKind::Ethernet, &["fe80::1/64"]));
    let mut port = link(13, LinkKind::Veth, &["172.18.0.1/24"]);
    port.controller = Some(11);
    add("port", port);
    let mut down = link(14, LinkKind::Ethernet, &["172.19.0.1/24"]);
    down.up = false;
    add("down", down);
    let route = |destination: &str, link: u32, table: u32| RouteEntry {
        destination: parse(destination),
        gateway: None,
        link,
        table,
        mtu: None,
        protocol: 3,
    };
    observed.routes.push(route("10.9.0.0/16", 10, 51820));
    observed.routes.push(route("fe80::/64", 12, 254));
    observed.routes.push(route("ff00::/8", 12, 255));
    assert_eq!(uplinks(&node_intent(), &observed), ["eth0", "wg0"]);
}

#[test]
fn configured_uplinks_that_exist_win() {
    let mut intent = node_intent();
    intent.uplinks = ["eth1", "eth0", "lo", "cbr0"].map(parse).into();
    assert_eq!(uplinks(&intent, &node()), ["eth0"]);
}

#[test]
fn a_pods_veth_that_is_not_yet_in_the_bridge_is_no_uplink() {
    let attachment = attachment(&intent("c1"));
    let mut observed = seen(&attachment);
    let host = attachment.host_link().name().clone();
    observed.links.get_mut(&host).unwrap().controller = None;
    observed.routes.push(RouteEntry {
        destination: parse("10.1.0.2/32"),
        gateway: None,
        link: 9,
        table: 254,
        mtu: None,
        protocol: 3,
    });
    let mut world = World::empty();
    world.remember(&attachment, State::Pending);
    let plan = plan_node(&node_intent(), &observed, &world.records).plan;
    let uplink = EntryKey::Uplink(LinkRef::Name(host));
    assert!(plan.keys().all(|key| *key != uplink));
}

fn sources(own: &[String], fallback: &[&str]) -> Vec<String> {
    let texts: Vec<&str> = own.iter().map(String::as_str).collect();
    let fallback: Vec<_> = fallback.iter().map(|text| parse(text)).collect();
    let link = link(2, LinkKind::Ethernet, &texts);
    let Entry::Uplink { sources, .. } = crate::uplink::entry(&link, false, &[], &fallback) else {
        panic!("an uplink's entry is one");
    };
    sources.iter().map(ToString::to_string).collect()
}

/// The kernel's order is kept: MASQUERADE takes the first address that fits, a primary one.
#[test]
fn an_uplink_has_the_first_address_of_each_subnet_without_link_local_ones() {
    let mut own: Vec<String> = (1..=9).map(|low| format!("192.0.2.{low}/24")).collect();
    own.insert(0, "fe80::1/64".to_owned());
    own.push("198.51.100.1/24".to_owned());
    assert_eq!(sources(&own, &[]), ["192.0.2.1/24", "198.51.100.1/24"]);
}

#[test]
fn an_uplink_with_too_many_subnets_keeps_the_first_of_each_family() {
    let v4 = (1..=9).map(|net| format!("10.{net}.0.1/24"));
    let v6 = (1..=9).map(|net| format!("fd00:{net}::1/64"));
    let both: Vec<String> = v4.clone().chain(v6.clone()).collect();
    let expected: Vec<String> = v4.clone().take(4).chain(v6.take(4)).collect();
    assert_eq!(sources(&both, &[]), expected);
    let few: Vec<String> = v4.clone().chain(["fd00::1/64".to_owned()]).collect();
    let expected: Vec<String> = v4
        .clone()
        .take(7)
        .chain(["fd00::1/64".to_owned()])
        .collect();
    assert_eq!(sources(&few, &[]), expected, "what v6 does not need v4 has");
    let expected: Vec<String> = v4.clone().take(8).collect();
    assert_eq!(sources(&v4.collect::<Vec<_>>(), &[]), expected);
}

/// As `inet_select_addr` and `ipv6_dev_get_saddr`: an unnumbered link uses an address of another
/// link.
#[test]
fn an_uplink_without_an_address_of_a_family_uses_one_of_another_link() {
    let lent = ["192.0.2.10/24", "192.0.2.11/24", "2001:db8::10/64"];
    assert_eq!(sources(&[], &lent), ["192.0.2.10/24", "2001:db8::10/64"]);
    let own = ["10.0.0.1/32".to_owned()];
    assert_eq!(sources(&own, &lent), ["10.0.0.1/32", "2001:db8::10/64"]);
}

#[test]
fn flows_are_swept_only_when_a_local_address_or_an_uplink_is_removed() {
    let ends_with_a_sweep = |change: &dyn Fn(&mut Observed)| {
        let mut observed = planned_node();
        change(&mut observed);
        let plan = plan(&node_intent(), &observed).plan;
        plan.steps().last() == Some(&Step::Sweep)
    };
    assert!(!ends_with_a_sweep(&|_| {}));
    let lost = |observed: &mut Observed| {
        let link = observed.links.get_mut(&parse("eth0")).unwrap();
        link.addresses.retain(|own| !own.address.is_ipv4());
    };
    assert!(ends_with_a_sweep(&lost));
    let down = |observed: &mut Observed| {
        observed.links.get_mut(&parse("eth0")).unwrap().up = false;
    };
    assert!(ends_with_a_sweep(&down));
    let gained = |observed: &mut Observed| {
        let link = observed.links.get_mut(&parse("eth0")).unwrap();
        link.addresses.push(parse("203.0.113.1/24"));
    };
    assert!(!ends_with_a_sweep(&gained));
}

/// A node whose tables are as planned.
fn planned_node() -> Observed {
    let mut observed = node();
    for step in plan(&node_intent(), &observed).plan.steps() {
        if let Step::PutEntry { key, entry, .. } = step {
            observed.entries.insert(key.clone(), entry.clone());
        }
    }
    observed
}

#[test]
fn masquerade_sources_are_local_entries_before_the_uplink_entry() {
    let mut intent = node_intent();
    intent.uplinks = [parse("eth0")].into();
    let mut observed = bare_node();
    // Addresses of bridge ports are no local entries otherwise.
    observed.links.get_mut(&parse("eth0")).unwrap().controller = Some(7);
    let planned = plan(&intent, &observed).plan;
    let at = |wanted: &EntryKey| planned.keys().position(|key| key == wanted);
    let local = at(&EntryKey::Local(parse("192.0.2.10")));
    let uplink = at(&EntryKey::Uplink(LinkRef::Name(parse("eth0"))));
    assert!(local.is_some() && local < uplink);
}

#[test]
fn a_bridge_gets_the_configured_egress_addresses() {
    let mut intent = node_intent();
    let addresses = [parse("192.0.2.77"), parse("2001:db8::77")];
    intent.egress.insert(parse("cbr0"), addresses.into());
    let mut observed = planned_node();
    let planned = plan(&intent, &observed).plan;
    let line = "write egress of cbr0: from 192.0.2.77 2001:db8::77";
    assert!(planned.to_string().contains(line), "{planned}");
    for step in planned.steps() {
        if let Step::PutEntry { key, entry, .. } = step {
            observed.entries.insert(key.clone(), entry.clone());
        }
    }
    let planned = plan(&node_intent(), &observed).plan;
    assert!(planned.to_string().contains("remove egress of cbr0"));
}

/// The trie stores IPv4 as mapped addresses below `::/0`.
#[test]
fn a_prefix_of_all_ipv6_does_not_apply_to_ipv4() {
    let pods = [parse("10.1.0.0/24"), parse("fd00:1::/64")].into();
    let (none, all) = (BTreeSet::new(), [parse("::/0")].into());
    let prefixes = crate::prefix::prefixes(&pods, &pods, &none, &all, &none);
    let of = |text: &str| prefixes[&EntryKey::Prefix(parse(text))].to_string();
    assert_eq!(of("::/0"), "not masqueraded");
    assert_eq!(of("0.0.0.0/0"), "default");
    assert_eq!(of("10.1.0.0/24"), "pods");
}

#[test]
fn a_prefix_carries_the_flags_of_all_prefixes_that_cover_it() {
    let pods = [parse("10.1.0.0/24")].into();
    let outside = [parse("10.0.0.0/8"), parse("10.1.0.128/25")].into();
    let prefixes =
        crate::prefix::prefixes(&pods, &pods, &BTreeSet::new(), &outside, &BTreeSet::new());
    let lines: Vec<String> = prefixes
        .iter()
        .map(|(key, entry)| format!("{key}: {entry}"))
        .collect();
    let expected = [
        "prefix 10.0.0.0/8: not masqueraded",
        "prefix 10.1.0.0/24: pods, not masqueraded",
        "prefix 10.1.0.128/25: pods, not masqueraded",
    ];
    assert_eq!(lines, expected);
}

/// behaviour K7: the whole address space as a prefix turns masquerading off, for its family.
#[test]
fn the_whole_address_space_covers_every_prefix_of_its_family() {
    let pods = [parse("10.1.0.0/24"), parse("fd00:1::/64")].into();
    let (none, all) = (BTreeSet::new(), [parse("0.0.0.0/0")].into());
    let prefixes = crate::prefix::prefixes(&pods, &pods, &none, &all, &none);
    let of = |text: &str| prefixes[&EntryKey::Prefix(parse(text))].to_string();
    assert_eq!(of("10.1.0.0/24"), "pods, not masqueraded");
    assert_eq!(of("fd00:1::/64"), "pods");
}

#[test]
fn stale_node_entries_are_removed_and_pod_entries_kept() {
    let attachment = attachment(&intent("c1"));
    let mut observed = seen(&attachment);
    let stale = [
        (
            EntryKey::Uplink(LinkRef::Gone(44)),
            crate::uplink::entry(&link(44, LinkKind::Raw, &[]), false, &[], &[]),
        ),
        (EntryKey::Local(parse("203.0.113.1")), Entry::Local),
        (
            EntryKey::Prefix(parse("10.9.0.0/16")),
            Entry::Prefix {
                no_masquerade: true,
                pods: false,
                shared: false,
                complete: false,
                peer: false,
            },
        ),
    ];
    observed.entries.extend(stale);
    let planned = plan(&node_intent(), &observed).plan;
    let removed: Vec<String> = planned
        .steps()
        .iter()
        .filter(|step| matches!(step, Step::RemoveEntry { .. }))
        .map(ToString::to_string)
        .collect();
    let expected = [
        "remove uplink gone link #44",
        "remove local address 203.0.113.1",
        "remove prefix 10.9.0.0/16",
    ];
    assert_eq!(removed, expected);
}

#[test]
fn a_former_uplink_loses_its_programs() {
    let mut observed = node();
    let mut down = link(10, LinkKind::Ethernet, &["172.19.0.1/24"]);
    down.up = false;
    down.hooks = crate::hooks::UPLINK_HOOKS.into();
    observed.links.insert(parse("eth1"), down);
    let planned = plan(&node_intent(), &observed).plan.to_string();
    assert!(
        planned.contains("detach uplink_in, uplink_out from eth1"),
        "{planned}"
    );
}

/// The entry that a step writes.
fn written(step: &Step) -> Option<(EntryKey, Entry)> {
    let Step::PutEntry { key, entry, .. } = step else {
        return None;
    };
    Some((key.clone(), entry.clone()))
}

/// behaviour K15, but only where no pod still uses the old gateway.
#[test]
fn gateways_of_old_pod_cidrs_leave_the_bridge_with_their_last_pod() {
    let attachment = attachment(&intent("c1"));
    let mut intent = node_intent();
    let mut node = node();
    node.entries = plan(&intent, &node)
        .plan
        .steps()
        .iter()
        .filter_map(written)
        .collect();
    intent.networks = vec![network_of("net", "cbr0", &["10.2.0.0/24"])];
    let foreign: [model::InterfaceAddress; 3] =
        ["172.30.0.1/24", "10.1.0.9/16", "fd00:9::1/64"].map(parse);
    let bridge = node.links.get_mut(&parse("cbr0")).unwrap();
    bridge.addresses.extend(foreign);
    let mut world = World::empty();
    world.remember(&attachment, State::Attached);
    let with_pod = plan_node(&intent, &node, &world.records).plan.to_string();
    assert!(
        with_pod.contains("add address 10.2.0.1/24 to cbr0"),
        "{with_pod}"
    );
    assert!(!with_pod.contains("remove address"), "{with_pod}");
    let without = plan(&intent, &node).plan.to_string();
    assert_eq!(without.matches("remove address").count(), 2, "{without}");
    assert!(
        without.contains("remove address 10.1.0.1/24 from cbr0"),
        "{without}"
    );
    assert!(
        without.contains("remove address fd00:1::1/64 from cbr0"),
        "{without}"
    );
}

/// behaviours K19, K21: bridge, network entry and settings change together, and a foreign setting
/// is never undone.
#[test]
fn a_bridge_is_promiscuous_as_long_as_a_network_needs_it() {
    let mut intent = node_intent();
    intent.networks[0].hairpin = model::HairpinMode::PromiscuousBridge;
    let mut node = node();
    let on = plan(&intent, &node).plan;
    let text = on.to_string();
    assert!(text.contains("turn promiscuous mode of cbr0 on"), "{text}");
    assert!(
        text.contains("gateways 10.1.0.1 fd00:1::1, promiscuous"),
        "{text}"
    );
    node.entries = on.steps().iter().filter_map(written).collect();
    let Entry::Settings(settings) = &node.entries[&EntryKey::Settings] else {
        panic!("the settings are settings");
    };
    let expected = abi::SettingsFlags::DUPLICATES | abi::SettingsFlags::BYPASS;
    assert_eq!(settings.flags & expected, expected);
    let bridge = node.links.get_mut(&parse("cbr0")).unwrap();
    bridge.promiscuous = true;
    let off = plan(&node_intent(), &node).plan.to_string();
    assert!(off.contains("turn promiscuous mode of cbr0 off"), "{off}");

    node.entries.clear();
    let others = plan(&node_intent(), &node).plan.to_string();
    assert!(!others.contains("promiscuous"), "{others}");
}

#[test]
fn a_refused_network_does_not_affect_the_other_networks() {
    let mut intent = node_intent();
    let wrong = network_of("wrong", "eth0", &["10.2.0.0/24"]);
    intent.networks.insert(0, wrong);
    let NodePlan { plan, refused, .. } = plan(&intent, &bare_node());
    assert_eq!(
        refused[&parse("wrong")].to_string(),
        "\"eth0\" already exists but is not a bridge"
    );
    let text = plan.to_string();
    assert!(text.contains("make bridge cbr0"), "{text}");
    assert!(
        text.contains("write uplink eth0"),
        "an uplink stays one: {text}"
    );
}

#[test]
fn two_networks_may_share_a_bridge() {
    let mut intent = node_intent();
    intent.networks = vec![
        network_of("a", "cbr0", &["10.1.0.0/24"]),
        network_of("b", "cbr0", &["fd00:2::/64"]),
    ];
    let planned = plan(&intent, &bare_node());
    assert!(planned.refused.is_empty());
    let text = planned.plan.to_string();
    assert_eq!(text.matches("make bridge").count(), 1, "{text}");
    assert!(text.contains("add address fd00:2::1/64 to cbr0"), "{text}");
}

#[test]
fn node_sysctls_are_those_of_bridges_and_uplinks() {
    let keys = node_sysctls(&node_intent(), &bare_node());
    let names: Vec<String> = keys.iter().map(ToString::to_string).collect();
    let expected = [
        "net/ipv4/conf/cbr0/forwarding",
        "net/ipv4/ip_forward",
        "net/ipv6/conf/all/forwarding",
        "net/ipv6/conf/cbr0/accept_dad",
        "net/ipv6/conf/cbr0/accept_ra",
        "net/ipv6/conf/cbr0/addr_gen_mode",
        "net/ipv6/conf/cbr0/disable_ipv6",
        "net/ipv6/conf/default/accept_dad",
        "net/ipv6/conf/default/accept_ra",
        "net/ipv6/conf/default/addr_gen_mode",
        "net/ipv6/conf/default/disable_ipv6",
        "net/ipv6/conf/eth0/accept_ra",
    ];
    assert_eq!(names, expected);
}

#[test]
fn missing_cgroup_programs_are_attached() {
    let mut observed = node();
    let hooks = [
        (SocketHook::Connect4, SocketHookState::Attached),
        (SocketHook::Bind4, SocketHookState::Absent),
    ];
    observed.socket_hooks = hooks.into();
    let mut published = attachment(&intent("one"));
    published.port_mappings = vec![port("8080->80/tcp")];
    let records = World::with(&published).records;
    let plan = plan_node(&node_intent(), &observed, &records).plan;
    let hooks = [SocketHook::Bind4].into();
    assert!(plan.steps().contains(&Step::AttachSocketHooks { hooks }));
}

#[test]
fn settings_say_whether_routes_depend_on_addresses_alone() {
    for routes_by_port in [false, true] {
        let observed = Observed {
            routes_by_port,
            ..node()
        };
        let plan = plan(&node_intent(), &observed).plan;
        let entries: BTreeMap<_, _> = plan.steps().iter().filter_map(written).collect();
        let Entry::Settings(settings) = &entries[&EntryKey::Settings] else {
            panic!("the settings are settings");
        };
        let by_address = settings.flags & abi::SettingsFlags::ROUTES_BY_ADDRESS != 0;
        assert_eq!(by_address, !routes_by_port);
    }
}
