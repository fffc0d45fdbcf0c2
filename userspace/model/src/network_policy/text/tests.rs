//! Tests of the text of network policies.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;

fn cidr() -> impl Strategy<Value = Cidr> {
    let v4 = (any::<[u8; 4]>(), 0..=32_u8)
        .prop_map(|(bytes, bits)| Cidr::containing(IpAddr::V4(Ipv4Addr::from(bytes)), bits));
    let v6 = (any::<[u16; 8]>(), 0..=128_u8)
        .prop_map(|(words, bits)| Cidr::containing(IpAddr::V6(Ipv6Addr::from(words)), bits));
    prop_oneof![v4, v6].prop_map(|prefix| prefix.unwrap())
}

/// Any text, with the bytes that separate words, items and lines among them.
fn name() -> impl Strategy<Value = String> {
    "([a-z]|[ ,!@%*/:\r\n]|\\PC){0,4}"
}

fn selector() -> impl Strategy<Value = PodSelector> {
    let named = (name(), name())
        .prop_map(|(namespace, name)| PodSelector::Name(PodName { namespace, name }));
    prop_oneof![named, cidr().prop_map(PodSelector::Prefix)]
}

fn peer() -> impl Strategy<Value = PolicyPeer> {
    let block =
        (cidr(), vec(cidr(), 0..3)).prop_map(|(cidr, except)| PolicyPeer::Block { cidr, except });
    prop_oneof![block, name().prop_map(PolicyPeer::Group)]
}

fn port() -> impl Strategy<Value = PolicyPort> {
    let protocol = prop::sample::select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    (protocol, option::of(any::<(u16, u16)>()))
        .prop_map(|(protocol, ports)| PolicyPort { protocol, ports })
}

fn rules() -> impl Strategy<Value = Option<Vec<PolicyRule>>> {
    let rule = (option::of(vec(peer(), 0..3)), vec(port(), 0..3))
        .prop_map(|(peers, ports)| PolicyRule { peers, ports });
    option::of(vec(rule, 0..3))
}

fn policy() -> impl Strategy<Value = NetworkPolicy> {
    (name(), btree_set(selector(), 0..3), rules(), rules()).prop_map(
        |(name, pods, ingress, egress)| NetworkPolicy {
            name,
            pods,
            ingress,
            egress,
        },
    )
}

proptest! {
    #[test]
    fn network_policies_survive_being_printed(
        policies in vec(policy(), 0..4),
        groups in btree_map(name(), btree_set(cidr(), 0..3), 0..3),
    ) {
        let list = NetworkPolicies { policies, groups };
        prop_assert_eq!(list.to_string().parse(), Ok(list));
    }
}

#[test]
fn the_text_of_network_policies_is_one_line_for_each_item() {
    let text = "group web 10.1.0.7/32,fd00:1::7/128\n\
                policy shop%2fdb\n\
                pod shop db-0\n\
                prefix 10.1.0.0/28\n\
                ingress\n\
                rule @web,10.0.0.0/8!10.9.0.0/16 tcp:5432-5432,sctp\n\
                egress\n\
                rule * \n\
                rule  udp:53-53\n";
    let list: NetworkPolicies = text.parse().unwrap();
    assert_eq!(list.policies[0].name, "shop/db");
    let egress = list.policies[0].egress.as_ref().unwrap();
    assert_eq!(egress[0], PolicyRule::default());
    assert_eq!(egress[1].peers, Some(Vec::new()));
    assert_eq!(list.to_string(), text);
    assert_eq!("".parse(), Ok(NetworkPolicies::default()));
}

#[test]
fn a_text_that_is_no_list_of_network_policies_is_refused_with_its_line() {
    for (text, line) in [
        ("rule * tcp", 1),
        ("policy a\nrule * tcp", 2),
        ("policy a\ningress\nrule * icmp", 3),
        ("policy a\ningress\nrule 10.0.0.1/8 tcp", 3),
        ("policy a\ningress\nrule * tcp:80", 3),
        ("policy a\npod b", 2),
        ("policy a%f", 1),
        ("policy a%ff", 1),
        ("group a 10.0.0.0", 1),
        ("prefix 10.0.0.0/8", 1),
        ("policies a", 1),
    ] {
        let error = text.parse::<NetworkPolicies>().unwrap_err();
        assert_eq!(error.line, line, "{text}");
    }
}
