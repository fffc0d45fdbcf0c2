//! Tests of the node's conditions. The routes of sample packets are answered by a routing table in
//! which the longest prefix decides, and the reverse path filter as in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use model::{Cidr, DegradedReason, Network, Record, State};
use proptest::prelude::*;
use steps::{CheckFacts, LinkKind, Observed, RouteAnswer, RouteEntry, RouteQuery, SysctlKey};

use super::*;
use crate::BypassMode;
use crate::testing::{BOOT, attachment, intent, link, network_of, parse, port};

const ETH0: u32 = 2;
const CBR0: u32 = 10;
const TUN0: u32 = 11;

/// The node: links, routes, and what the kernel would answer.
#[derive(Clone)]
struct Node {
    observed: Observed,
    intent: NodeIntent,
    facts: CheckFacts,
    /// Links with a strict filter.
    strict: BTreeSet<u32>,
}

impl Node {
    /// A node with the uplink `eth0` and one network on `cbr0`, 10.88.0.0/24.
    fn new() -> Self {
        let observed = Observed {
            links: [
                ("eth0", link(ETH0, LinkKind::Ethernet, &["192.0.2.10/24"])),
                ("cbr0", link(CBR0, LinkKind::Bridge, &["10.88.0.1/24"])),
            ]
            .map(|(name, link)| (parse(name), link))
            .into(),
            ..Observed::default()
        };
        let intent = NodeIntent {
            networks: vec![network_of("net", "cbr0", &["10.88.0.0/24"])],
            bypass: BypassMode::Never,
            ..NodeIntent::default()
        };
        let mut node = Self {
            observed,
            intent,
            facts: CheckFacts::default(),
            strict: BTreeSet::new(),
        };
        node.route("10.88.0.0/24", CBR0);
        node.route("192.0.2.0/24", ETH0);
        node.route("0.0.0.0/0", ETH0);
        node
    }

    fn route(&mut self, destination: &str, link: u32) {
        self.observed.routes.push(RouteEntry {
            destination: parse(destination),
            gateway: None,
            link,
            table: MAIN_TABLE,
            mtu: None,
            protocol: 3,
        });
    }

    fn add_link(&mut self, name: &str, index: u32, addresses: &[&str]) {
        let found = link(index, LinkKind::Ethernet, addresses);
        self.observed.links.insert(parse(name), found);
        for address in addresses {
            let own: model::InterfaceAddress = parse(address);
            self.route(&own.subnet().unwrap().to_string(), index);
        }
    }

    fn network(&mut self) -> &mut Network {
        &mut self.intent.networks[0]
    }

    /// Longest prefix, and of equal ones the first, as of equal connected routes.
    fn way(&self, to: IpAddr) -> RouteAnswer {
        let own = |own: &model::InterfaceAddress| own.address == to;
        if self
            .observed
            .links
            .values()
            .any(|link| link.addresses.iter().any(own))
        {
            return RouteAnswer::Local;
        }
        let fitting = |route: &&RouteEntry| route.destination.contains(to);
        let routes: Vec<&RouteEntry> = self.observed.routes.iter().filter(fitting).collect();
        let longest = routes
            .iter()
            .map(|route| route.destination.prefix_len())
            .max();
        let first = routes
            .iter()
            .find(|route| Some(route.destination.prefix_len()) == longest);
        first.map_or(RouteAnswer::Unreachable, |route| {
            RouteAnswer::Leaves(route.link)
        })
    }

    fn answer(&self, query: &RouteQuery) -> RouteAnswer {
        let way = self.way(query.to);
        let Some((source, name)) = &query.received else {
            return way;
        };
        let index = self.observed.links[name].index;
        let back = self.way(*source);
        if self.strict.contains(&index) && back != RouteAnswer::Leaves(index) {
            return RouteAnswer::Unreachable;
        }
        way
    }

    /// The sysctls of the filters, forwarding on.
    fn sysctls(&self) -> BTreeMap<SysctlKey, Option<String>> {
        let of_link = |(name, link): (&IfName, &NodeLink)| {
            let strict = u8::from(self.strict.contains(&link.index));
            let key = |what: &str| SysctlKey(format!("net/ipv4/conf/{name}/{what}"));
            [
                (key("rp_filter"), Some(strict.to_string())),
                (key("forwarding"), Some("1".to_owned())),
            ]
        };
        self.observed.links.iter().flat_map(of_link).collect()
    }

    fn conditions_with(&self, records: &Records) -> Vec<NodeCondition> {
        let query = check_query(&self.intent, &self.observed, records);
        let answers = query.routes.iter();
        let facts = CheckFacts {
            routes: answers
                .map(|query| (query.clone(), self.answer(query)))
                .collect(),
            sysctls: self.sysctls(),
            ..self.facts.clone()
        };
        conditions(&self.intent, &self.observed, records, &facts)
    }

    fn conditions(&self) -> Vec<NodeCondition> {
        self.conditions_with(&Records::new())
    }

    fn texts(&self) -> Vec<String> {
        self.conditions().iter().map(ToString::to_string).collect()
    }
}

/// A record of a pod that publishes port 8080.
fn publishing() -> Records {
    let mut intent = intent("c1");
    intent.port_mappings = vec![port("8080->80/tcp")];
    let record = Record {
        attachment: attachment(&intent),
        state: State::Attached,
        boot_id: BOOT.to_owned(),
        created_at: 0,
    };
    Records::from([(record.attachment.key.clone(), record)])
}

fn prevents(conditions: &[NodeCondition]) -> bool {
    conditions.iter().any(|one| one.prevents_add(&parse("net")))
}

#[test]
fn a_plain_node_has_no_condition() {
    assert_eq!(Node::new().conditions(), []);
}

#[test]
fn a_bridge_with_the_same_subnet_is_an_overlap_that_cuts_off_the_later_one() {
    let mut node = Node::new();
    node.add_link("cni-podman0", TUN0, &["10.88.0.1/24"]);
    assert_eq!(
        node.texts(),
        [
            "subnet 10.88.0.0/24 of network net overlaps with 10.88.0.0/24 of cni-podman0: other hosts with these addresses are unreachable"
        ]
    );
    assert!(!prevents(&node.conditions()), "our route came first");
    node.observed.routes.rotate_left(1);
    let found = node.conditions();
    assert!(prevents(&found), "the other route came first: {found:?}");
    assert_eq!(found[0].reason(), DegradedReason::SubnetOverlap);
}

#[test]
fn a_wider_bridge_overlaps_with_a_network_inside_of_its_subnet() {
    let mut node = Node::new();
    node.add_link("cni-podman0", TUN0, &["10.88.0.1/16"]);
    let found = node.conditions();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(!prevents(&found));
}

#[test]
fn a_narrower_route_of_a_vpn_overlaps_and_prevents_an_add_only_if_it_has_all_addresses() {
    let mut node = Node::new();
    node.add_link("tun0", TUN0, &[]);
    node.route("10.88.0.128/25", TUN0);
    let found = node.conditions();
    assert_eq!(
        found[0].to_string(),
        "subnet 10.88.0.0/24 of network net overlaps with 10.88.0.128/25 of tun0: pods with these addresses are unreachable"
    );
    assert!(!prevents(&found));
    node.network().ranges = vec![crate::testing::span(
        "10.88.0.0/24",
        "10.88.0.130",
        "10.88.0.140",
    )];
    assert!(prevents(&node.conditions()));
}

#[test]
fn wider_routes_and_unrelated_links_do_not_overlap_with_a_network() {
    let mut node = Node::new();
    node.add_link("tun0", TUN0, &["172.16.0.1/12"]);
    node.route("10.0.0.0/8", TUN0);
    node.route("10.88.0.0/16", TUN0);
    node.route("10.88.1.0/24", TUN0);
    assert_eq!(node.conditions(), []);
}

#[test]
fn a_rule_that_leads_packets_for_pods_elsewhere_is_an_overlap() {
    let node = Node::new();
    let records = Records::new();
    let query = check_query(&node.intent, &node.observed, &records);
    let answers = |way: RouteAnswer| CheckFacts {
        routes: query.routes.iter().map(|one| (one.clone(), way)).collect(),
        ..CheckFacts::default()
    };
    let found = |way| conditions(&node.intent, &node.observed, &records, &answers(way));
    for (way, words) in [
        (RouteAnswer::Leaves(ETH0), "a routing rule to eth0"),
        (RouteAnswer::Unreachable, "a route that drops"),
    ] {
        let found = found(way);
        assert!(found[0].to_string().contains(words), "{found:?}");
        assert!(prevents(&found));
    }
}

/// A network whose gateway is another host is a switch: the node does not route for it.
#[test]
fn a_network_without_a_gateway_of_the_node_is_not_checked() {
    let mut node = Node::new();
    node.network().options.gateway = false;
    node.add_link("cni-podman0", TUN0, &["10.88.0.1/24"]);
    node.strict = [ETH0, CBR0].into();
    assert_eq!(node.conditions(), []);
}

#[test]
fn a_strict_filter_is_fine_where_routes_are_symmetric() {
    let mut node = Node::new();
    node.strict = [ETH0, CBR0].into();
    assert_eq!(node.conditions(), []);
}

/// Pods leave through `tun0` by a rule for packets of the bridge; answers have no such rule.
#[test]
fn a_strict_filter_drops_answers_on_an_asymmetric_way() {
    let mut node = Node::new();
    node.add_link("tun0", TUN0, &["198.51.100.9/24"]);
    let mut own_table = node.observed.routes[2].clone();
    (own_table.link, own_table.table) = (TUN0, 100);
    let answer = |node: &Node, query: &RouteQuery| match &query.received {
        Some((_, name)) if name.as_str() == "cbr0" => RouteAnswer::Leaves(TUN0),
        _ => node.answer(query),
    };
    let found = |node: &Node| {
        let mut observed = node.observed.clone();
        observed.routes.push(own_table.clone());
        let records = Records::new();
        let query = check_query(&node.intent, &observed, &records);
        let routes = query
            .routes
            .iter()
            .map(|one| (one.clone(), answer(node, one)));
        let facts = CheckFacts {
            routes: routes.collect(),
            sysctls: node.sysctls(),
            ..CheckFacts::default()
        };
        conditions(&node.intent, &observed, &records, &facts)
    };
    assert_eq!(found(&node), []);
    node.strict.insert(TUN0);
    let filtered = found(&node);
    assert_eq!(
        filtered[0].to_string(),
        "the reverse path filter of tun0 (rp_filter) drops answers to pods of network net"
    );
    assert!(prevents(&filtered));
}

/// The node answers clients by a rule for its own address; the datapath writes the pod's address.
#[test]
fn a_strict_filter_that_drops_requests_to_published_ports_counts_once_there_are_any() {
    let mut node = Node::new();
    node.add_link("eth1", TUN0, &["198.51.100.9/24"]);
    node.strict.insert(TUN0);
    let mut default = node.observed.routes[2].clone();
    (default.link, default.table) = (TUN0, 100);
    node.observed.routes.push(default);
    let records = publishing();
    let found = |records: &Records| {
        let query = check_query(&node.intent, &node.observed, records);
        let answer = |one: &RouteQuery| match &one.received {
            // By the rule `from 198.51.100.9 lookup 100`, the way back is the same link.
            Some((_, name))
                if name.as_str() == "eth1" && node.way(one.to) == RouteAnswer::Local =>
            {
                RouteAnswer::Local
            }
            _ => node.answer(one),
        };
        let facts = CheckFacts {
            routes: query
                .routes
                .iter()
                .map(|one| (one.clone(), answer(one)))
                .collect(),
            sysctls: node.sysctls(),
            ..CheckFacts::default()
        };
        conditions(&node.intent, &node.observed, records, &facts)
    };
    assert_eq!(found(&Records::new()), []);
    let filtered = found(&records);
    assert!(
        filtered[0].to_string().starts_with(
            "the reverse path filter of eth1 (rp_filter) drops requests to published ports"
        ),
        "{filtered:?}"
    );
    assert!(!prevents(&filtered));
}

#[test]
fn a_link_that_does_not_forward_is_reported_with_its_network() {
    for name in ["eth0", "cbr0"] {
        let node = Node::new();
        let records = Records::new();
        let query = check_query(&node.intent, &node.observed, &records);
        let key = SysctlKey(format!("net/ipv4/conf/{name}/forwarding"));
        assert!(query.sysctls.contains(&key));
        let answer = |one: &RouteQuery| match &one.received {
            Some((_, link)) if link.as_str() == name && node.way(one.to) != RouteAnswer::Local => {
                RouteAnswer::Unreachable
            }
            _ => node.answer(one),
        };
        let mut facts = CheckFacts {
            routes: query
                .routes
                .iter()
                .map(|one| (one.clone(), answer(one)))
                .collect(),
            sysctls: [(key.clone(), Some("0".to_owned()))].into(),
            ..CheckFacts::default()
        };
        let found = |facts: &CheckFacts| conditions(&node.intent, &node.observed, &records, facts);
        assert_eq!(found(&facts)[0].reason(), DegradedReason::ForwardingOff);
        assert!(prevents(&found(&facts)));
        facts.sysctls.insert(key, Some("1".to_owned()));
        let is_off = |one: &NodeCondition| matches!(one, NodeCondition::ForwardingOff { .. });
        assert!(!found(&facts).iter().any(is_off), "there is no route");
    }
}

fn prefix_in(base: u32, length: u8) -> impl Strategy<Value = String> {
    (any::<u32>(), length..=32).prop_map(move |(bits, own)| {
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        let address = Ipv4Addr::from_bits((base & mask) | (bits & !mask));
        let prefix = Cidr::containing(IpAddr::V4(address), own).unwrap();
        prefix.to_string()
    })
}

proptest! {
    /// An ADD is prevented, or some pods are reported as unreachable, exactly if a packet to some
    /// pod leaves through another link.
    #[test]
    fn an_overlap_cuts_pods_off_exactly_if_their_packets_leave_elsewhere(
        routes in prop::collection::vec(
            (prop_oneof![prefix_in(0x0a58_0000, 22), prefix_in(0x0a00_0000, 8)], any::<bool>()),
            0..6,
        ),
    ) {
        let mut node = Node::new();
        node.add_link("tun0", TUN0, &[]);
        for (destination, first) in &routes {
            node.route(destination, TUN0);
            if *first {
                node.observed.routes.rotate_right(1);
            }
        }
        let pods = (2..255).map(|host| IpAddr::from([10, 88, 0, host]));
        let lost = pods.filter(|pod| node.way(*pod) != RouteAnswer::Leaves(CBR0)).count();
        let found = node.conditions();
        let cut_off = found.iter().any(|one| matches!(one, NodeCondition::SubnetOverlap { effect, .. }
            if *effect != OverlapEffect::Others));
        prop_assert_eq!(cut_off, lost > 0, "{:?}", found);
        if lost == 253 && routes.len() == 1 {
            prop_assert!(prevents(&found), "{:?}", found);
        }
        if lost == 0 {
            prop_assert!(!prevents(&found), "{:?}", found);
        }
    }

    /// Where answers come by the link that the request left through, no filter drops them.
    #[test]
    fn a_reverse_path_filter_is_never_reported_where_routes_are_symmetric(
        strict in prop::collection::btree_set(prop_oneof![Just(ETH0), Just(CBR0), Just(TUN0)], 0..3),
        other_default in any::<bool>(),
        other_first in any::<bool>(),
    ) {
        let mut node = Node::new();
        node.strict = strict;
        node.add_link("tun0", TUN0, &["198.51.100.9/24"]);
        if other_default {
            node.route("0.0.0.0/0", TUN0);
            if other_first {
                node.observed.routes.rotate_right(1);
            }
        }
        let filtered = |found: &[NodeCondition]| found
            .iter()
            .any(|one| matches!(one, NodeCondition::ReversePathFilter { .. }));
        prop_assert!(!filtered(&node.conditions()));
    }
}

#[test]
fn route_queries_cover_both_ends_of_the_range_bridge_and_uplink() {
    let node = Node::new();
    let query = check_query(&node.intent, &node.observed, &Records::new());
    let by_link: BTreeMap<Option<&str>, usize> =
        query
            .routes
            .iter()
            .fold(BTreeMap::new(), |mut counts, one| {
                let link = one.received.as_ref().map(|(_, link)| link.as_str());
                *counts.entry(link).or_default() += 1;
                counts
            });
    assert_eq!(by_link[&None], 2, "both ends of the range");
    assert!(by_link.contains_key(&Some("cbr0")) && by_link.contains_key(&Some("eth0")));
}

mod policies;

#[test]
fn an_address_of_a_pod_that_the_node_gets_is_reported_with_its_link() {
    let mut node = Node::new();
    let attached = attachment(&intent("c1"));
    let record = Record {
        attachment: attached.clone(),
        state: State::Attached,
        boot_id: BOOT.to_owned(),
        created_at: 0,
    };
    let records = Records::from([(attached.key.clone(), record)]);
    let reported = |node: &Node| -> Vec<String> {
        let found = conditions(
            &node.intent,
            &node.observed,
            &records,
            &CheckFacts::default(),
        );
        let of_node = |one: &&NodeCondition| one.reason() == DegradedReason::AddressOfNode;
        let found = found.iter().filter(of_node).map(ToString::to_string);
        found.collect()
    };
    assert_eq!(reported(&node), [""; 0]);
    let eth0 = node.observed.links.get_mut(&parse("eth0")).unwrap();
    eth0.addresses.push(parse("10.1.0.2/32"));
    assert_eq!(
        reported(&node),
        [
            "eth0 of the node has 10.1.0.2, the address of net/c1/eth0: packets for it reach the \
          node, not the pod"
        ]
    );
    // A route of the local table does the same without an address.
    node.route("fd00:1::/64", ETH0);
    node.observed.routes.last_mut().unwrap().table = 255;
    assert_eq!(reported(&node).len(), 2);
}
