//! Foreign programs and routing rules that the fast path would bypass, besides rules of netfilter.

mod support;

use std::collections::BTreeSet;

use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, TcAttachType};
use kernel::{Host, RuleReader};
use support::foreign::ForeignProgram;
use support::skip::{has_tcx, lacks_tcx};
use support::*;

const SIDES: [TcAttachType; 2] = [TcAttachType::Ingress, TcAttachType::Egress];

fn foreign_rules(host: &mut Host) -> BTreeSet<String> {
    let observed = observe(host);
    &observed.foreign_rules | &observed.foreign_paths
}

fn attach(foreign: &mut ForeignProgram, side: TcAttachType, order: LinkOrder) {
    foreign.attach("up0", side, TcAttachOptions::TcxOrder(order));
}

#[test]
fn only_foreign_ingress_programs_after_ours_are_reported() {
    if !has_tcx() {
        return;
    }
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        let mut before = ForeignProgram::new(node);
        for side in SIDES {
            attach(&mut before, side, LinkOrder::default());
        }
        execute(&mut host, &[attach_uplink()]);
        assert_eq!(foreign_rules(&mut host), BTreeSet::new());
        let mut after = ForeignProgram::new(node);
        attach(&mut after, TcAttachType::Egress, LinkOrder::last());
        assert_eq!(foreign_rules(&mut host), BTreeSet::new());
        attach(&mut after, TcAttachType::Ingress, LinkOrder::last());
        let expected = "up0: foreign TCX program to_pod after ours".to_owned();
        assert_eq!(foreign_rules(&mut host), BTreeSet::from([expected]));
        let read = || RuleReader::new(&node.bpffs()).read().expect("a list");
        assert_eq!(read(), foreign_rules(&mut host));
        drop(after);
        wait_until(|| read().is_empty());
    });
}

#[test]
fn foreign_ingress_filters_run_after_our_tcx_program() {
    if !has_tcx() {
        return;
    }
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        execute(&mut host, &[attach_uplink()]);
        run("tc qdisc add dev up0 clsact");
        let mut foreign = ForeignProgram::new(node);
        foreign.filter("up0", TcAttachType::Egress, 1);
        assert_eq!(foreign_rules(&mut host), BTreeSet::new());
        foreign.filter("up0", TcAttachType::Ingress, 1);
        run("tc filter add dev up0 ingress protocol ip u32 match u32 0 0 classid 1:1");
        let words = |kind| format!("up0: foreign filter ({kind}) after ours");
        assert_eq!(foreign_rules(&mut host), ["bpf", "u32"].map(words).into());
        run("tc filter del dev up0 ingress");
        assert_eq!(foreign_rules(&mut host), BTreeSet::new());
    });
}

#[test]
fn foreign_ingress_filters_run_after_ours_by_priority() {
    if !lacks_tcx() {
        return;
    }
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        execute(&mut host, &[attach_uplink()]);
        let mut foreign = ForeignProgram::new(node);
        foreign.filter("up0", TcAttachType::Ingress, 1);
        assert_eq!(foreign_rules(&mut host), BTreeSet::new());
        foreign.filter("up0", TcAttachType::Ingress, 50_000);
        let expected = "up0: foreign filter (bpf) after ours".to_owned();
        assert_eq!(foreign_rules(&mut host), BTreeSet::from([expected]));
    });
}

#[test]
fn routes_and_rules_that_match_the_tos_are_reported() {
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        for (add, del, words) in [
            (
                "ip rule add tos 0x10 lookup 100",
                "ip rule del tos 0x10",
                "routing: a rule matches the TOS or DSCP",
            ),
            (
                "ip -6 rule add tos 0x10 lookup 100",
                "ip -6 rule del tos 0x10",
                "routing: a rule matches the TOS or DSCP",
            ),
            (
                "ip route add blackhole 198.51.100.0/24 tos 0x10",
                "ip route del blackhole 198.51.100.0/24 tos 0x10",
                "routing: a route matches the TOS",
            ),
        ] {
            assert_eq!(foreign_rules(&mut host), BTreeSet::new());
            run(add);
            assert_eq!(foreign_rules(&mut host), BTreeSet::from([words.to_owned()]));
            run(del);
        }
        run("ip rule add fwmark 7 lookup 100");
        assert_eq!(foreign_rules(&mut host), BTreeSet::new());
    });
}

#[test]
fn rules_by_port_and_multipath_routes_set_routes_by_port() {
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        run("ip address add 198.51.100.1/24 dev up0");
        run("ip address add 2001:db8::1/64 dev up0 nodad");
        let mut by_port = || observe(&mut host).routes_by_port;
        let legs = "nexthop via 198.51.100.2 nexthop via 198.51.100.3";
        let legs_v6 = "nexthop via 2001:db8::2 nexthop via 2001:db8::3";
        for what in [
            "rule add ipproto udp lookup 100",
            "rule add sport 53 lookup 100",
            "-6 rule add dport 53 lookup 100",
            &format!("route add 203.0.113.0/24 {legs}"),
            &format!("-6 route add 2001:db8:1::/64 {legs_v6}"),
        ] {
            assert!(!by_port(), "before {what}");
            run(&format!("ip {what}"));
            assert!(by_port(), "{what}");
            run(&format!("ip {}", what.replace(" add ", " del ")));
        }
        run("ip nexthop add id 1 via 198.51.100.2 dev up0");
        run("ip route add 203.0.113.0/24 nhid 1");
        assert!(by_port(), "a next hop object may become a group");
        run("ip route del 203.0.113.0/24");
        for by_address in [
            "rule add from 10.0.0.0/8 fwmark 7 iif up0 lookup 100",
            "route add 203.0.113.0/24 via 198.51.100.2",
            "route add blackhole 192.0.2.0/24 table 100",
        ] {
            run(&format!("ip {by_address}"));
            assert!(!by_port(), "{by_address}");
        }
    });
}
