//! Tests of the netfilter table's contents.

use model::State;
use steps::{LinkKind, NetfilterState, NetfilterStep, NetfilterTable, Observed, Step};

use super::plan_netfilter_for;
use crate::testing::{World, attachment, intent, link, network, node, parse, port};
use crate::{NodeIntent, NodePlan, Records, plan_node};

fn plan(observed: &Observed, records: &Records) -> NodePlan {
    let intent = NodeIntent {
        networks: vec![network()],
        ..NodeIntent::default()
    };
    plan_node(&intent, observed, records)
}

fn changes(plan: &NodePlan) -> Vec<String> {
    let of_table = |step: &&Step| matches!(step, Step::Netfilter(_));
    let steps = plan.plan.steps().iter().filter(of_table);
    steps.map(ToString::to_string).collect()
}

fn with_docker() -> Observed {
    let mut observed = node();
    let docker0 = link(20, LinkKind::Bridge, &["172.17.0.1/16"]);
    observed.links.insert(parse("docker0"), docker0);
    observed
}

fn with_a_hostport() -> World {
    let mut wanted = intent("c1");
    wanted.port_mappings.push(port("8080->80/tcp"));
    World::with(&attachment(&wanted))
}

const CHECK: &str =
    "write table inet viaduct: not for packets from cbr0 eth0 lo, sources 10.1.0.0/24 fd00:1::/64";
const BOTH: &str = "write table inet viaduct: not for packets from cbr0 eth0 lo, hostports, also for the node, sources 10.1.0.0/24 fd00:1::/64";

#[test]
fn a_node_without_containers_of_other_software_has_no_table() {
    let world = with_a_hostport();
    assert_eq!(changes(&plan(&node(), &world.records)), [""; 0]);
    let mut observed = node();
    observed.netfilter = NetfilterState::Present(NetfilterTable::default());
    let removed = changes(&plan(&observed, &world.records));
    assert_eq!(removed, ["remove table inet viaduct"]);
}

#[test]
fn the_table_has_the_subnets_of_closed_networks_while_other_software_has_containers() {
    use model::NetworkAccess::{Direct, Internal, Published};
    for (access, ending) in [
        (Direct, ""),
        (Published, ", closed 10.1.0.0/24 fd00:1::/64"),
        (Internal, ", closed 10.1.0.0/24 fd00:1::/64"),
    ] {
        let mut closed = network();
        closed.options.port.access = access;
        let intent = NodeIntent {
            networks: vec![closed],
            ..NodeIntent::default()
        };
        let plan = |observed: &Observed| changes(&plan_node(&intent, observed, &Records::new()));
        assert_eq!(plan(&with_docker()), [format!("{CHECK}{ending}")]);
        assert_eq!(plan(&node()), [""; 0]);
    }
}

#[test]
fn the_table_has_the_subnets_of_routed_addresses_that_published_ports_reach() {
    use model::NetworkAccess::{Direct, Internal, Published};
    for (access, ending) in [
        (Direct, ""),
        (
            Published,
            ", closed 10.1.0.0/24 fd00:1::/64, routed fd00:1::/64",
        ),
        (Internal, ", closed 10.1.0.0/24 fd00:1::/64"),
    ] {
        let mut routed = network();
        routed.options.port.access = access;
        routed.options.port.routed.v6 = true;
        let intent = NodeIntent {
            networks: vec![routed],
            ..NodeIntent::default()
        };
        let plan = plan_node(&intent, &with_docker(), &Records::new());
        assert_eq!(changes(&plan), [format!("{CHECK}{ending}")]);
    }
}

#[test]
fn the_table_has_nat_chains_only_while_there_are_hostports() {
    let observed = with_docker();
    assert_eq!(changes(&plan(&observed, &Records::new())), [CHECK]);
    assert_eq!(
        changes(&plan(&observed, &with_a_hostport().records)),
        [BOTH]
    );
}

#[test]
fn the_table_is_written_again_when_it_is_damaged_or_differs_and_not_otherwise() {
    let world = with_a_hostport();
    let mut observed = with_docker();
    let plan_for = |observed: &Observed| plan(observed, &world.records);
    let put = plan_for(&observed);
    let found = put.plan.steps().iter().find_map(|step| {
        let Step::Netfilter(step) = step else {
            return None;
        };
        match &**step {
            NetfilterStep::Put { table, .. } => Some(table.clone()),
            NetfilterStep::Remove { .. } => None,
        }
    });
    let mut table = found.unwrap();
    observed.netfilter = NetfilterState::Present(table.clone());
    assert_eq!(changes(&plan_for(&observed)), [""; 0]);
    observed.netfilter = NetfilterState::Damaged;
    assert_eq!(changes(&plan_for(&observed)), [BOTH]);
    table.links.clear();
    observed.netfilter = NetfilterState::Present(table);
    assert_eq!(changes(&plan_for(&observed)), [BOTH]);
    observed.netfilter = NetfilterState::Unsupported;
    assert_eq!(changes(&plan_for(&observed)), [""; 0]);
}

#[test]
fn an_adopted_pods_subnet_is_masqueraded_towards_it() {
    let mut wanted = intent("c1");
    wanted.port_mappings.push(port("8080->80/tcp"));
    let mut adopted = attachment(&wanted);
    adopted.adopted = Some(parse("veth9"));
    adopted.bridge = parse("rb0");
    adopted.addresses[0].address = parse("10.7.0.5/24");
    adopted.addresses.truncate(1);
    let mut observed = node();
    let rb0 = link(20, LinkKind::Bridge, &["10.7.0.1/24"]);
    observed.links.insert(parse("rb0"), rb0);
    let mut world = World::empty();
    world.remember(&adopted, State::Attached);
    let found = changes(&plan(&observed, &world.records));
    assert!(found[0].ends_with(", hairpin 10.7.0.0/24"), "{found:?}");
}

#[test]
fn a_subnet_that_another_bridge_has_too_is_not_checked() {
    let mut observed = node();
    let cni0 = link(20, LinkKind::Bridge, &["10.1.0.1/24"]);
    observed.links.insert(parse("cni0"), cni0);
    let found = changes(&plan(&observed, &Records::new()));
    assert!(found[0].ends_with(", sources fd00:1::/64"), "{found:?}");
}

#[test]
fn the_first_hostport_adds_the_nat_chains_and_the_next_finds_them() {
    let base = plan(&with_docker(), &Records::new()).netfilter;
    let world = with_a_hostport();
    let publishing = &world.records.values().next().unwrap().attachment;
    let step = |attachment, now: &NetfilterState| plan_netfilter_for(attachment, &base, now);
    let quiet = attachment(&intent("c2"));
    assert_eq!(step(&quiet, &NetfilterState::Absent), None);
    assert_eq!(step(publishing, &NetfilterState::Unsupported), None);
    let first = step(publishing, &NetfilterState::Present(base.clone())).unwrap();
    assert_eq!(first.to_string(), BOTH);
    let undone = first.undo().unwrap();
    assert_eq!(undone.to_string(), CHECK);
    let Step::Netfilter(step_of) = &first else {
        panic!("{first}");
    };
    let NetfilterStep::Put { table, .. } = &**step_of else {
        panic!("{first}");
    };
    let present = NetfilterState::Present(table.clone());
    assert_eq!(step(publishing, &present), None);
    let fresh = step(publishing, &NetfilterState::Absent).unwrap();
    assert_eq!(
        fresh.undo().unwrap().to_string(),
        "remove table inet viaduct"
    );
}

#[test]
fn the_node_itself_is_served_where_the_cgroup_programs_do_not_see_all_sockets() {
    const OUTPUT: &str = "write table inet viaduct: for no link, hostports, also for the node";
    let world = with_a_hostport();
    let mut observed = node();
    observed.has_unseen_sockets = true;
    assert_eq!(changes(&plan(&observed, &Records::new())), [""; 0]);
    assert_eq!(changes(&plan(&observed, &world.records)), [OUTPUT]);
    // No cgroup program sees SCTP.
    let mut wanted = intent("c1");
    wanted.port_mappings.push(port("3868->3868/sctp"));
    let sctp = attachment(&wanted);
    let found = plan(&node(), &World::with(&sctp).records);
    assert_eq!(changes(&found), [OUTPUT]);
    let base = plan(&node(), &Records::new()).netfilter;
    let step = plan_netfilter_for(&sctp, &base, &NetfilterState::Absent);
    assert_eq!(step.unwrap().to_string(), OUTPUT);
    let tcp = &world.records.values().next().unwrap().attachment;
    let step = plan_netfilter_for(tcp, &base, &NetfilterState::Absent);
    assert_eq!(step, None, "connections are not tracked for nothing");
}
