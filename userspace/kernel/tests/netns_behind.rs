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
