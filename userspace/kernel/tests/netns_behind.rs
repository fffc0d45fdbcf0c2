//! What others have on our ways that ours would lead packets past, besides rules of netfilter.

mod support;

use std::collections::BTreeSet;

use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, TcAttachType};
use kernel::{Host, RuleReader};
use support::skip::{has_tcx, lacks_tcx};
use support::stranger::Stranger;
use support::*;

const SIDES: [TcAttachType; 2] = [TcAttachType::Ingress, TcAttachType::Egress];

fn told(host: &mut Host) -> BTreeSet<String> {
    observe(host).foreign_rules
}

fn attach(stranger: &mut Stranger, side: TcAttachType, order: LinkOrder) {
    stranger.attach("up0", side, TcAttachOptions::TcxOrder(order));
}

#[test]
fn programs_behind_ours_on_the_way_in_are_told_and_no_others() {
    if !has_tcx() {
        return;
    }
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        let mut before = Stranger::new(node);
        for side in SIDES {
            attach(&mut before, side, LinkOrder::default());
        }
        execute(&mut host, &[attach_uplink()]);
        assert_eq!(told(&mut host), BTreeSet::new());
        let mut behind = Stranger::new(node);
        attach(&mut behind, TcAttachType::Egress, LinkOrder::last());
        assert_eq!(told(&mut host), BTreeSet::new());
        attach(&mut behind, TcAttachType::Ingress, LinkOrder::last());
        let expected = "up0: program to_pod of others, behind ours".to_owned();
        assert_eq!(told(&mut host), BTreeSet::from([expected]));
        let read = || RuleReader::new(&node.bpffs()).read().expect("a list");
        assert_eq!(read(), told(&mut host));
        drop(behind);
        wait_until(|| read().is_empty());
    });
}

#[test]
fn filters_on_the_way_in_come_behind_a_program_of_tcx() {
    if !has_tcx() {
        return;
    }
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        execute(&mut host, &[attach_uplink()]);
        run("tc qdisc add dev up0 clsact");
        let mut stranger = Stranger::new(node);
        stranger.filter("up0", TcAttachType::Egress, 1);
        assert_eq!(told(&mut host), BTreeSet::new());
        stranger.filter("up0", TcAttachType::Ingress, 1);
        run("tc filter add dev up0 ingress protocol ip u32 match u32 0 0 classid 1:1");
        let words = |kind| format!("up0: filter ({kind}) of others, behind ours");
        assert_eq!(told(&mut host), ["bpf", "u32"].map(words).into());
        run("tc filter del dev up0 ingress");
        assert_eq!(told(&mut host), BTreeSet::new());
    });
}

#[test]
fn filters_on_the_way_in_come_behind_a_filter_of_ours_by_their_priority() {
    if !lacks_tcx() {
        return;
    }
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        execute(&mut host, &[attach_uplink()]);
        let mut stranger = Stranger::new(node);
        stranger.filter("up0", TcAttachType::Ingress, 1);
        assert_eq!(told(&mut host), BTreeSet::new());
        stranger.filter("up0", TcAttachType::Ingress, 50_000);
        let expected = "up0: filter (bpf) of others, behind ours".to_owned();
        assert_eq!(told(&mut host), BTreeSet::from([expected]));
    });
}

#[test]
fn routes_and_rules_by_kind_of_service_are_told() {
    on_a_node(|node| {
        let mut host = node.host();
        add_uplink(node);
        for (add, del, words) in [
            (
                "ip rule add tos 0x10 lookup 100",
                "ip rule del tos 0x10",
                "routing: a rule asks for the kind of service",
            ),
            (
                "ip -6 rule add tos 0x10 lookup 100",
                "ip -6 rule del tos 0x10",
                "routing: a rule asks for the kind of service",
            ),
            (
                "ip route add blackhole 198.51.100.0/24 tos 0x10",
                "ip route del blackhole 198.51.100.0/24 tos 0x10",
                "routing: a route is for one kind of service",
            ),
        ] {
            assert_eq!(told(&mut host), BTreeSet::new());
            run(add);
            assert_eq!(told(&mut host), BTreeSet::from([words.to_owned()]));
            run(del);
        }
        run("ip rule add fwmark 7 lookup 100");
        assert_eq!(told(&mut host), BTreeSet::new());
    });
}

#[test]
fn rules_by_port_and_routes_with_several_legs_are_told_apart_from_those_by_address() {
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
        assert!(by_port(), "an object may become a group");
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
