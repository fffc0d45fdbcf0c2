//! Tests of uninstall plans on nodes in memory.

use model::VlanId;
use steps::SocketHook;

use super::*;
use crate::testing::parse;

fn link(index: u32, kind: LinkKind, alias: Option<&str>, controller: Option<u32>) -> NodeLink {
    let mut link = crate::testing::link(index, kind, &[]);
    link.alias = alias.map(str::to_owned);
    link.controller = controller;
    link
}

fn key(text: &str) -> SysctlKey {
    SysctlKey(text.to_owned())
}

fn written(before: &str, ours: &str) -> WrittenSysctl {
    WrittenSysctl {
        before: before.to_owned(),
        ours: ours.to_owned(),
    }
}

/// A node with an unused bridge of ours, one of ours with foreign ports, a foreign bridge with a
/// VLAN interface of ours and a foreign one, and an uplink.
fn node() -> Observed {
    let mut uplink = link(1, LinkKind::Ethernet, None, None);
    uplink.hooks = BTreeSet::from([Hook::UplinkIn, Hook::UplinkOut]);
    let ours = Some("viaduct net");
    let vlan = |index, alias| {
        let mut vlan = link(index, LinkKind::Ethernet, alias, None);
        vlan.switching.vlan_of = Some((5, VlanId::new(7).unwrap()));
        vlan
    };
    Observed {
        links: [
            (parse("up0"), uplink),
            (parse("cbr0"), link(2, LinkKind::Bridge, ours, None)),
            (parse("used"), link(3, LinkKind::Bridge, ours, None)),
            (parse("vm0"), link(4, LinkKind::Ethernet, None, Some(3))),
            (parse("docker0"), link(5, LinkKind::Bridge, None, None)),
            (parse("docker0.7"), vlan(6, ours)),
            (parse("docker0.8"), vlan(7, None)),
        ]
        .into(),
        socket_hooks: [
            (SocketHook::Connect4, SocketHookState::Attached),
            (SocketHook::Bind6, SocketHookState::Absent),
        ]
        .into(),
        sysctls: [
            (key("net/ipv4/ip_forward"), Some("1".to_owned())),
            (key("net/ipv6/conf/all/forwarding"), Some("0".to_owned())),
            (key("net/ipv6/conf/up0/accept_ra"), Some("0".to_owned())),
            (key("net/ipv6/conf/cbr0/accept_dad"), Some("0".to_owned())),
        ]
        .into(),
        ..Observed::default()
    }
}

#[test]
fn uninstall_removes_our_links_and_keeps_those_in_use_by_others() {
    let written = [
        (key("net/ipv4/ip_forward"), written("0", "1")),
        (key("net/ipv6/conf/all/forwarding"), written("0", "1")),
        (key("net/ipv6/conf/up0/accept_ra"), written("1", "2")),
        (key("net/ipv6/conf/cbr0/accept_dad"), written("1", "0")),
        (key("net/ipv6/conf/gone/accept_dad"), written("1", "0")),
    ]
    .into();
    let uninstall = plan_uninstall(&node(), &written);
    insta::assert_snapshot!(uninstall.plan, @r#"
    1. detach uplink_in, uplink_out from up0
    2. detach connect4 from the cgroup
    3. delete VLAN link docker0.7 if its alias is "viaduct net"
    4. delete bridge cbr0 if its alias is "viaduct net"
    5. set sysctl net/ipv4/ip_forward to 0 (now 1)
    "#);
    let left: Vec<String> = uninstall.left.iter().map(ToString::to_string).collect();
    assert_eq!(
        left,
        [
            "bridge used has foreign ports",
            "sysctl net/ipv6/conf/up0/accept_ra was 1 before Viaduct, and other software has set it to 0",
        ]
    );
}

#[test]
fn uninstall_of_a_node_without_our_state_is_an_empty_plan() {
    let uninstall = plan_uninstall(&Observed::default(), &BTreeMap::new());
    assert_eq!(uninstall, Uninstall::default());
}

#[test]
fn only_sysctls_that_outlast_our_links_are_recorded() {
    let set = |text: &str| Step::SetSysctl {
        key: key(text),
        value: "0".to_owned(),
        previous: "1".to_owned(),
    };
    let lasting = [
        "net/ipv4/ip_forward",
        "net/ipv6/conf/all/forwarding",
        "net/ipv6/conf/up0/accept_ra",
    ];
    let passing = [
        "net/ipv6/conf/cbr0/accept_ra",
        "net/ipv6/conf/not-made-yet/accept_ra",
    ];
    let plan = Plan::of(lasting.into_iter().chain(passing).map(set));
    let remembered = persistent_sysctls(&plan, &node());
    let keys: Vec<&str> = remembered.keys().map(|key| key.0.as_str()).collect();
    assert_eq!(keys, lasting);
    assert_eq!(remembered[&key(lasting[0])], written("1", "0"));
}
