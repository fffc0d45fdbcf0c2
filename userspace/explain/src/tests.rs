//! Whole explanations of packets on the test's node.

use std::collections::BTreeMap;

use abi::{Address, DropReason, EndpointFlags, SettingsFlags};
use steps::{
    Action, BaseChain, Condition, FilterBackend, FilterFamily, FilterHook, FilterRule, FilterTable,
    TableState,
};
use verdict::Verdict;
use verdict::simulator::example::{
    HOSTPORT, OTHER_POD, POD, POD_PORT, gateway, no_pod, node, other_pod, pod, remote,
};
use verdict::simulator::frame::{Body, Frame, flag};
use verdict::simulator::{Place, Simulator, World};

use crate::testing::{FAR_POD, UPLINK, explain, far_pod, shown, snapshot, tcp, world};
use crate::{Node, Outcome, Question, Sender, explain as explain_in, sender_of};

#[test]
fn a_pod_reaches_another_one_by_the_bridge_and_gets_the_answer() {
    let tuple = tcp(pod()[0], other_pod()[0], [40_000, 5432]);
    let explanation = explain(&world(), Sender::Pod(POD), tuple);
    assert!(explanation.passes());
    insta::assert_snapshot!(shown(&explanation));
}

#[test]
fn a_pod_reaches_the_world_with_the_address_of_the_uplink() {
    let tuple = tcp(pod()[0], remote()[0], [40_000, 443]);
    let explanation = explain(&world(), Sender::Pod(POD), tuple);
    assert!(explanation.passes());
    insta::assert_snapshot!(shown(&explanation));
}

#[test]
fn a_pod_reaches_the_world_past_the_stack_where_that_is_allowed() {
    let mut world = world();
    world.settings.flags |= SettingsFlags::BYPASS;
    for pod in &mut world.pods {
        pod.flags |= EndpointFlags::BYPASS;
    }
    if let Some(uplink) = world.uplinks.get_mut(&UPLINK) {
        uplink.flags |= abi::UplinkFlags::OPEN;
    }
    let tuple = tcp(pod()[1], remote()[1], [40_000, 443]);
    let explanation = explain(&world, Sender::Pod(POD), tuple);
    assert!(explanation.passes());
    insta::assert_snapshot!(shown(&explanation));
}

#[test]
fn the_world_reaches_a_published_port() {
    let tuple = tcp(remote()[0], node()[0], [50_001, HOSTPORT]);
    let explanation = explain(&world(), Sender::World, tuple);
    assert!(explanation.passes());
    assert_eq!(explanation.request.outcome, Outcome::Pod { slot: POD });
    insta::assert_snapshot!(shown(&explanation));
}

#[test]
fn a_pod_reaches_a_published_port_of_the_node() {
    let tuple = tcp(other_pod()[0], node()[0], [40_000, HOSTPORT]);
    let explanation = explain(&world(), Sender::Pod(OTHER_POD), tuple);
    assert!(explanation.passes());
    assert_eq!(
        explanation.request.arrived.destination_port.number(),
        POD_PORT
    );
    insta::assert_snapshot!(shown(&explanation));
}

#[test]
fn the_node_reaches_a_published_port_by_its_own_address() {
    let mut world = world();
    world.settings.netns_cookie = 7;
    let tuple = tcp(node()[0], node()[0], [40_000, HOSTPORT]);
    let explanation = explain(&world, Sender::Node, tuple);
    assert!(explanation.passes());
    insta::assert_snapshot!(shown(&explanation));
}

#[test]
fn the_node_reaches_a_published_port_by_its_loopback_address() {
    let mut world = world();
    world.settings.netns_cookie = 7;
    for (own, gateway) in [
        (Address::v4([127, 0, 0, 1]), gateway()[0]),
        (loopback_v6(), gateway()[1]),
    ] {
        let tuple = tcp(own, own, [40_000, HOSTPORT]);
        let sender = sender_of(&snapshot(&world).tables, &own);
        assert_eq!(sender, Sender::Node);
        let explanation = explain(&world, sender, tuple);
        assert!(explanation.passes(), "{}", shown(&explanation));
        assert_eq!(explanation.request.outcome, Outcome::Pod { slot: POD });
        assert_eq!(explanation.request.arrived.source, gateway);
    }
}

fn loopback_v6() -> Address {
    Address::v6(std::net::Ipv6Addr::LOCALHOST.octets())
}

#[test]
fn a_pod_reaches_a_pod_of_another_network_by_the_stack() {
    let tuple = tcp(pod()[0], far_pod(), [40_000, 80]);
    let explanation = explain(&world(), Sender::Pod(POD), tuple);
    assert_eq!(explanation.request.outcome, Outcome::Pod { slot: FAR_POD });
    assert!(explanation.passes(), "{}", shown(&explanation));
}

#[test]
fn where_other_software_may_translate_a_connection_its_destination_is_not_known() {
    let service = Address::v4([10, 96, 0, 10]);
    let mut snapshot = snapshot(&world());
    snapshot.translations = Some(translations("10.96.0.10"));
    let mut node = Node::new(snapshot);
    let mut outcome = |sender, source, port| {
        let question = Question::plain(sender, tcp(source, service, [40_000, port]));
        explain_in(&mut node, &question).request.outcome
    };
    for (sender, source) in [(Sender::Pod(POD), pod()[0]), (Sender::Node, node_address())] {
        let found = outcome(sender, source, 80);
        assert!(
            matches!(&found, Outcome::Unknown { by } if by.contains("of table ip nat")),
            "{found:?}"
        );
        let found = outcome(sender, source, 81);
        assert!(matches!(found, Outcome::Leaves { .. }), "{found:?}");
    }
}

fn node_address() -> Address {
    node()[0]
}

/// Returns a table that translates connections to port 80 of an address.
fn translations(address: &str) -> BTreeMap<FilterTable, TableState> {
    let conditions = vec![
        Condition::Address {
            source: false,
            network: address.parse().unwrap(),
            prefix_len: 32,
            negated: false,
        },
        Condition::Port {
            source: false,
            ranges: vec![(80, 80)],
            negated: false,
        },
    ];
    let rule = FilterRule {
        handle: 1,
        conditions,
        action: Action::Other,
        comment: String::new(),
    };
    let base = |name: &str, hook| BaseChain {
        name: name.to_owned(),
        hook,
        drops: false,
    };
    let chains = ["PREROUTING", "OUTPUT"];
    let state = TableState {
        base: vec![
            base(chains[0], FilterHook::Prerouting),
            base(chains[1], FilterHook::Output),
        ],
        rules: chains
            .map(|name| (name.to_owned(), vec![rule.clone()]))
            .into(),
        ..TableState::default()
    };
    let table = FilterTable {
        backend: FilterBackend::Nftables,
        family: FilterFamily::Ip,
        name: "nat".to_owned(),
    };
    [(table, state)].into()
}

#[test]
fn a_forged_source_address_ends_at_the_senders_veth() {
    let tuple = tcp(other_pod()[0], remote()[0], [40_000, 443]);
    let explanation = explain(&world(), Sender::Pod(POD), tuple);
    assert_eq!(
        explanation.request.outcome,
        Outcome::Dropped {
            place: Place::FromPod,
            reason: DropReason::SpoofedAddress
        }
    );
    assert_eq!(explanation.answer, None);
    insta::assert_snapshot!(shown(&explanation));
}

#[test]
fn an_ingress_policy_ends_the_way_of_a_packet_between_pods() {
    let mut world = world();
    for slot in [POD, OTHER_POD] {
        world.pods[slot as usize].flags |=
            EndpointFlags::SAME_BRIDGE | EndpointFlags::INGRESS_ISOLATED;
    }
    let tuple = tcp(pod()[0], other_pod()[0], [40_000, 5432]);
    let explanation = explain(&world, Sender::Pod(POD), tuple);
    assert_eq!(
        explanation.request.outcome,
        Outcome::Dropped {
            place: Place::FromPod,
            reason: DropReason::IngressPolicy
        }
    );
}

#[test]
fn an_address_that_no_pod_has_gets_no_answer_to_address_resolution() {
    let tuple = tcp(pod()[0], no_pod()[0], [40_000, 80]);
    let explanation = explain(&world(), Sender::Pod(POD), tuple);
    assert!(
        matches!(explanation.request.outcome, Outcome::Discarded { .. }),
        "{}",
        shown(&explanation)
    );
    assert!(explanation.request.hooks.is_empty());
    insta::assert_snapshot!(shown(&explanation));
}

#[test]
fn isolated_ports_resolve_no_addresses_of_each_other() {
    let mut world = world();
    for slot in [POD, OTHER_POD] {
        world.pods[slot as usize].flags |= EndpointFlags::ISOLATED;
    }
    let tuple = tcp(pod()[0], other_pod()[0], [40_000, 5432]);
    let explanation = explain(&world, Sender::Pod(POD), tuple);
    let text = shown(&explanation);
    assert!(text.contains("isolated ports"), "{text}");
    assert!(!explanation.passes());
}

#[test]
fn a_martian_destination_ends_at_the_senders_veth() {
    let tuple = tcp(pod()[0], Address::v4([127, 0, 0, 1]), [40_000, 80]);
    let explanation = explain(&world(), Sender::Pod(POD), tuple);
    assert_eq!(
        explanation.request.outcome,
        Outcome::Dropped {
            place: Place::FromPod,
            reason: DropReason::Martian
        }
    );
}

#[test]
fn a_used_up_quota_ends_at_the_uplink() {
    let mut world = world();
    world.settings.flow_quota = 1;
    world.live.insert(POD, 5);
    let tuple = tcp(pod()[0], remote()[0], [40_000, 443]);
    let explanation = explain(&world, Sender::Pod(POD), tuple);
    assert_eq!(
        explanation.request.outcome,
        Outcome::Dropped {
            place: Place::UplinkOut,
            reason: DropReason::FlowQuota
        }
    );
    insta::assert_snapshot!(shown(&explanation));
}

/// A flow quota: many times the flows that an eviction inspects.
const FLOWS: u16 = 400;

/// Returns a node on which two pods have used their quotas: by connections, but for the last ones
/// of the first pod, which are half open.
fn at_the_quota(half_open: u16) -> World {
    let mut simulator = Simulator::new(world());
    simulator.world.settings.flow_quota = u32::from(FLOWS);
    let mut send = |place, from: Address, to: Address, [source, destination]: [u16; 2], flags| {
        let frame = Frame::new(from, to, Body::Tcp(source, destination, flags, vec![]));
        let (verdict, _) = simulator.run(place, UPLINK, &frame.bytes());
        assert_eq!(verdict, Verdict::Pass);
    };
    for (own, half_open) in [(other_pod()[0], 0), (pod()[0], half_open)] {
        let first = if own == pod()[0] { 1_000 } else { 2_000 };
        for number in 0..FLOWS {
            let port = first + number;
            send(Place::UplinkOut, own, remote()[0], [port, 443], flag::SYN);
            if number < FLOWS - half_open {
                let answer = flag::SYN | flag::ACK;
                send(Place::UplinkIn, remote()[0], node()[0], [443, port], answer);
                send(Place::UplinkOut, own, remote()[0], [port, 443], flag::ACK);
            }
        }
    }
    simulator.world
}

#[test]
fn whether_a_flow_gives_way_to_a_new_one_is_said_to_be_unknown_unless_none_may() {
    let tuple = tcp(pod()[0], remote()[0], [40_000, 443]);
    let request = |half_open| explain(&at_the_quota(half_open), Sender::Pod(POD), tuple).request;

    let one_may = request(1);
    let Outcome::Unknown { by } = &one_may.outcome else {
        panic!("{one_may:#?}");
    };
    assert!(by.starts_with("whether another flow gives way"), "{by}");
    let last = one_may.steps.last().unwrap();
    assert!(
        last.ends && last.text.contains("cannot be read"),
        "{last:?}"
    );

    let each_may = request(FLOWS);
    assert!(each_may.outcome.arrives(), "{each_may:#?}");
    assert_eq!(each_may.doubts.len(), 1, "{each_may:#?}");

    let none_may = request(0);
    let dropped = Outcome::Dropped {
        place: Place::UplinkOut,
        reason: DropReason::FlowQuota,
    };
    assert_eq!(none_may.outcome, dropped);
    assert!(none_may.doubts.is_empty());
}

#[test]
fn a_pod_without_a_record_is_said_to_be_gone() {
    let tuple = tcp(pod()[0], remote()[0], [40_000, 443]);
    let explanation = explain(&world(), Sender::Pod(9), tuple);
    assert!(!explanation.passes());
    let text = shown(&explanation);
    assert!(
        text.contains("the pod in slot 9 has no interface"),
        "{text}"
    );
}
