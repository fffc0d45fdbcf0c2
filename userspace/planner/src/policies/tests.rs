//! Tests of compiled policies: their keys allow what the rules say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{
    Cidr, NetworkPolicies, NetworkPolicy, PodName, PodSelector, PolicyDirection, PolicyPeer,
    PolicyPort, PolicyRule, Protocol,
};
use proptest::prelude::*;
use steps::{AllowedKey, AllowedPorts};

use super::rule_sets::{AssignedSets, PodRuleSets, SelectablePod, is_selecting};
use super::*;

const SLOT: u32 = 7;

/// A connection, as seen from the selected pod.
#[derive(Clone, Copy, Debug)]
struct Connection {
    direction: PolicyDirection,
    peer: IpAddr,
    /// `None` for a protocol without ports.
    port: Option<(Protocol, u16)>,
}

/// What the datapath's tables contain.
#[derive(Debug)]
struct Compiled {
    identities: BTreeMap<Cidr, u32>,
    allowed: BTreeSet<AllowedKey>,
    pods: BTreeMap<u32, PodRuleSets>,
}

fn compile(list: &NetworkPolicies, pod: SelectablePod<'_>) -> Compiled {
    let index = PolicyIndex::new(list.clone()).unwrap();
    let AssignedSets { numbers, pods } = index.assign([pod]);
    Compiled {
        allowed: index.keys(numbers.iter()),
        identities: index.identities,
        pods,
    }
}

/// Evaluates the policies as Kubernetes' documentation describes them.
fn expected(list: &NetworkPolicies, pod: &SelectablePod<'_>, connection: Connection) -> bool {
    let selecting = list
        .policies
        .iter()
        .filter(|policy| is_selecting(policy, pod));
    let isolating: Vec<&[PolicyRule]> = selecting
        .filter_map(|policy| policy.rules(connection.direction))
        .collect();
    let contains = |peer: &PolicyPeer| match peer {
        PolicyPeer::Block { cidr, except } => {
            cidr.contains(connection.peer)
                && !except.iter().any(|hole| hole.contains(connection.peer))
        }
        PolicyPeer::Group(name) => list
            .groups
            .get(name)
            .is_some_and(|group| group.iter().any(|own| own.contains(connection.peer))),
    };
    let has_port = |port: &PolicyPort| {
        connection.port.is_some_and(|(protocol, number)| {
            let (low, high) = port.ports.unwrap_or((0, u16::MAX));
            port.protocol == protocol && (low..=high).contains(&number)
        })
    };
    let allows = |rule: &PolicyRule| {
        let peers = rule.peers.as_ref();
        peers.is_none_or(|peers| peers.iter().any(contains))
            && (rule.ports.is_empty() || rule.ports.iter().any(has_port))
    };
    isolating.is_empty() || isolating.into_iter().flatten().any(allows)
}

/// Looks up the tables as the datapath does.
fn found(compiled: &Compiled, connection: Connection) -> bool {
    let own = compiled.pods.get(&SLOT).copied().unwrap_or_default();
    let rules = match connection.direction {
        PolicyDirection::Ingress => own.ingress,
        PolicyDirection::Egress => own.egress,
    };
    if rules == 0 {
        return true;
    }
    // The trie has IPv4 addresses as mapped ones.
    let mapped = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let matching = compiled.identities.iter().filter(|(prefix, _)| {
        let length = u32::from(prefix.prefix_len()) + if prefix.is_ipv4() { 96 } else { 0 };
        let differing = mapped(prefix.network()).to_bits() ^ mapped(connection.peer).to_bits();
        differing.leading_zeros() >= length
    });
    let longest = matching
        .max_by_key(|(prefix, _)| prefix.prefix_len() + if prefix.is_ipv4() { 96 } else { 0 });
    let identity = longest.map_or(0, |(_, identity)| *identity);
    compiled.allowed.iter().any(|key| {
        key.rules == rules
            && (key.identity == 0 || key.identity == identity)
            && match key.ports {
                AllowedPorts::All => true,
                AllowedPorts::Block {
                    protocol,
                    port,
                    bits,
                } => connection.port.is_some_and(|(own, number)| {
                    own == protocol && u32::from(port ^ number) >> (16 - bits) == 0
                }),
            }
    })
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0..8_u32).prop_map(|low| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | low))),
        (0..8_u128).prop_map(|low| IpAddr::V6(Ipv6Addr::from_bits(0xfd << 120 | low))),
    ]
}

fn cidr() -> impl Strategy<Value = Cidr> {
    (address(), 0..=4_u8).prop_map(|(address, left_out)| {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        // Of four host bits, all are those of every address of the family.
        let length = if left_out == 4 { 0 } else { bits - left_out };
        Cidr::containing(address, length).unwrap()
    })
}

fn peer() -> impl Strategy<Value = PolicyPeer> {
    prop_oneof![
        (cidr(), prop::collection::vec(cidr(), 0..3)).prop_map(|(cidr, except)| {
            let inside = |hole: &Cidr| crate::prefix::covers(&cidr, hole) && *hole != cidr;
            let except = except.into_iter().filter(inside).collect();
            PolicyPeer::Block { cidr, except }
        }),
        (0..4_u8).prop_map(|number| PolicyPeer::Group(number.to_string())),
    ]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![
        Just(Protocol::Tcp),
        Just(Protocol::Udp),
        Just(Protocol::Sctp)
    ]
}

fn port() -> impl Strategy<Value = PolicyPort> {
    (protocol(), prop::option::of((0..20_u16, 0..20_u16))).prop_map(|(protocol, ports)| {
        PolicyPort {
            protocol,
            ports: ports.map(|(one, other)| (one.min(other), one.max(other))),
        }
    })
}

fn rule() -> impl Strategy<Value = PolicyRule> {
    let peers = prop::option::of(prop::collection::vec(peer(), 0..4));
    (peers, prop::collection::vec(port(), 0..3))
        .prop_map(|(peers, ports)| PolicyRule { peers, ports })
}

fn policy() -> impl Strategy<Value = NetworkPolicy> {
    let rules = || prop::option::of(prop::collection::vec(rule(), 0..3));
    (prop::option::of(cidr()), rules(), rules()).prop_map(|(pods, ingress, egress)| {
        let named = PodSelector::Name(name());
        NetworkPolicy {
            name: "shop/web".to_owned(),
            pods: [pods.map_or(named, PodSelector::Prefix)].into(),
            ingress,
            egress,
        }
    })
}

fn policies() -> impl Strategy<Value = NetworkPolicies> {
    let group = prop::collection::btree_set(cidr(), 0..4);
    let groups = prop::collection::btree_map((0..4_u8).prop_map(|it| it.to_string()), group, 0..4);
    (prop::collection::vec(policy(), 0..4), groups)
        .prop_map(|(policies, groups)| NetworkPolicies { policies, groups })
}

fn connection() -> impl Strategy<Value = Connection> {
    let direction = prop_oneof![
        Just(PolicyDirection::Ingress),
        Just(PolicyDirection::Egress)
    ];
    (
        direction,
        address(),
        prop::option::of((protocol(), 0..22_u16)),
    )
        .prop_map(|(direction, peer, port)| Connection {
            direction,
            peer,
            port,
        })
}

fn name() -> PodName {
    PodName {
        namespace: "shop".to_owned(),
        name: "web-1".to_owned(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_tables_allow_what_the_rules_allow(
        list in policies(),
        connections in prop::collection::vec(connection(), 1..20),
    ) {
        let (name, addresses) = (name(), ["10.0.0.1".parse().unwrap()]);
        let pod = SelectablePod { slot: SLOT, name: Some(&name), addresses: &addresses };
        let compiled = compile(&list, pod);
        for connection in connections {
            prop_assert_eq!(
                found(&compiled, connection),
                expected(&list, &pod, connection),
                "{:?}: {:#?}", connection, compiled
            );
        }
    }

    /// No number changes its meaning while the tables are written: policies of other pods may split
    /// identities, so that a rule set has more keys, but none fewer that are looked up.
    #[test]
    fn what_stays_keeps_its_numbers(list in policies(), more in policies()) {
        let (name, addresses) = (name(), ["10.0.0.1".parse().unwrap()]);
        let pod = SelectablePod { slot: SLOT, name: Some(&name), addresses: &addresses };
        let before = compile(&list, pod);
        let mut larger = list.clone();
        larger.policies.extend(more.policies.into_iter().map(|mut policy| {
            policy.pods = [PodSelector::Prefix("10.9.0.0/16".parse().unwrap())].into();
            policy
        }));
        let after = compile(&larger, pod);
        prop_assert_eq!(&before.pods, &after.pods);
        let addresses = after.identities.values();
        for identity in addresses.filter(|number| before.identities.values().any(|it| it == *number)) {
            let of_identity = |compiled: &Compiled| -> BTreeSet<AllowedKey> {
                let keys = compiled.allowed.iter();
                keys.filter(|key| key.identity == *identity).copied().collect()
            };
            prop_assert_eq!(of_identity(&before), of_identity(&after));
        }
    }
}

#[test]
fn a_pod_without_policies_has_no_rule_set_and_an_empty_list_allows_nothing() {
    let pod = SelectablePod {
        slot: SLOT,
        name: None,
        addresses: &["10.0.0.1".parse().unwrap()],
    };
    let none = compile(&NetworkPolicies::default(), pod);
    assert!(none.allowed.is_empty() && none.identities.is_empty() && none.pods.is_empty());
    let list = NetworkPolicies {
        policies: vec![NetworkPolicy {
            name: "shop/none".to_owned(),
            pods: [PodSelector::Prefix("10.0.0.0/24".parse().unwrap())].into(),
            ingress: Some(Vec::new()),
            egress: None,
        }],
        ..NetworkPolicies::default()
    };
    let compiled = compile(&list, pod);
    assert_eq!(compiled.allowed, BTreeSet::new());
    let own = compiled.pods[&SLOT];
    assert!(own.ingress != 0 && own.egress == 0, "{own:?}");
}

/// 1,000 policies, each with a group of its own of ten pods, for one pod each.
#[test]
fn a_thousand_policies_with_ten_thousand_pods_are_a_row_for_each_pod_and_group() {
    let group = |number: u32| -> BTreeSet<Cidr> {
        let address = |low| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | (number * 16 + low)));
        (0..10)
            .filter_map(|low| Cidr::containing(address(low), 32))
            .collect()
    };
    let policy = |number: u32| NetworkPolicy {
        name: format!("shop/{number}"),
        pods: [PodSelector::Prefix("10.0.0.1/32".parse().unwrap())].into(),
        ingress: Some(vec![PolicyRule {
            peers: Some(vec![PolicyPeer::Group(number.to_string())]),
            ports: vec![PolicyPort {
                protocol: Protocol::Tcp,
                ports: Some((80, 80)),
            }],
        }]),
        egress: None,
    };
    let list = NetworkPolicies {
        policies: (0..1000).map(policy).collect(),
        groups: (0..1000)
            .map(|number| (number.to_string(), group(number)))
            .collect(),
    };
    let pod = SelectablePod {
        slot: SLOT,
        name: None,
        addresses: &["10.0.0.1".parse().unwrap()],
    };
    let compiled = compile(&list, pod);
    assert_eq!(compiled.identities.len(), 10_000);
    assert_eq!(compiled.allowed.len(), 1000);
}

/// A policy for every pod, whose only rule allows these peers and ports.
fn policy_of(number: u32, peers: Vec<PolicyPeer>, ports: Vec<PolicyPort>) -> NetworkPolicy {
    NetworkPolicy {
        name: format!("shop/{number}"),
        pods: [PodSelector::Prefix("10.0.0.0/8".parse().unwrap())].into(),
        ingress: Some(vec![PolicyRule {
            peers: Some(peers),
            ports,
        }]),
        egress: None,
    }
}

/// Each block contains the exceptions of all others: their classes have as many members as the
/// square of their number.
#[test]
fn policies_whose_peers_overlap_too_much_are_refused_before_they_take_memory() {
    let block = |number: u32| {
        let hole = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | number));
        PolicyPeer::Block {
            cidr: "0.0.0.0/0".parse().unwrap(),
            except: vec![Cidr::containing(hole, 32).unwrap()],
        }
    };
    let list = |count| NetworkPolicies {
        policies: (0..count)
            .map(|number| policy_of(number, vec![block(number)], Vec::new()))
            .collect(),
        ..NetworkPolicies::default()
    };
    assert!(PolicyIndex::new(list(200)).is_ok());
    assert_eq!(PolicyIndex::new(list(4000)), Err(PolicyLimit::Overlaps));
}

#[test]
fn rules_that_need_more_entries_than_the_table_has_are_refused_by_the_name_of_the_largest() {
    let even = |number: u16| PolicyPort {
        protocol: Protocol::Tcp,
        ports: Some((2 * number, 2 * number)),
    };
    let even_ports: Vec<PolicyPort> = (0..1000).map(even).collect();
    let list = NetworkPolicies {
        policies: vec![
            policy_of(1, vec![PolicyPeer::Group("0".to_owned())], Vec::new()),
            policy_of(
                2,
                (0..300)
                    .map(|number| PolicyPeer::Group(number.to_string()))
                    .collect(),
                even_ports,
            ),
        ],
        groups: (0..300_u32)
            .map(|number| {
                let own = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | number));
                (
                    number.to_string(),
                    [Cidr::containing(own, 32).unwrap()].into(),
                )
            })
            .collect(),
    };
    let refused = PolicyIndex::new(list).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the rules need 300001 entries for their addresses and ports, those of policy shop/2 the \
         most: 262144 is the maximum"
    );
}
