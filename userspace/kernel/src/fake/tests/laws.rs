//! Properties of plans, executed on random nodes: they converge, leave foreign links alone, and
//! repair damage.

use model::{Attachment, BridgeOptions, PortOptions, PortVlans, VlanId};
use planner::NodeIntent;
use proptest::prelude::*;
use steps::{Entry, EntryKey, LinkKind, LinkRef, NodeLink};

use super::{Node, netns_of, network_of};
use crate::fake::{Fake, parse};

/// A foreign link.
#[derive(Clone, Debug)]
struct ForeignLink {
    kind: LinkKind,
    up: bool,
    mtu: u32,
    addresses: Vec<&'static str>,
    routed: bool,
}

fn foreign_link() -> impl Strategy<Value = ForeignLink> {
    let kinds = [
        LinkKind::Bridge,
        LinkKind::Veth,
        LinkKind::Tap,
        LinkKind::Dummy,
        LinkKind::Ethernet,
        LinkKind::Raw,
    ];
    let addresses = [
        "172.16.0.1/16",
        "10.1.0.1/24",
        "fd00:9::1/64",
        "fe80::1/64",
        "10.1.0.9/24",
    ];
    let addresses = prop::sample::subsequence(addresses.to_vec(), 0..=addresses.len());
    let mtus = prop::sample::select(vec![576, 1280, 1400, 1500, 9000]);
    (
        prop::sample::select(kinds.to_vec()),
        any::<bool>(),
        mtus,
        addresses,
        any::<bool>(),
    )
        .prop_map(|(kind, up, mtu, addresses, routed)| ForeignLink {
            kind,
            up,
            mtu,
            addresses,
            routed,
        })
}

fn options() -> impl Strategy<Value = BridgeOptions> {
    let vlan = prop::option::of(prop::sample::select(vec![5, 7]));
    let flags = any::<[bool; 2]>();
    (vlan, flags, 0..4_u8).prop_map(|(vlan, [gateway, isolated], force)| BridgeOptions {
        gateway,
        force_address: force == 0,
        port: PortOptions {
            isolated,
            vlans: PortVlans {
                access: vlan.and_then(VlanId::new),
                ..PortVlans::default()
            },
            ..PortOptions::default()
        },
        ..BridgeOptions::default()
    })
}

/// Generates nodes with random links, some of which have the names of our bridges.
fn nodes() -> impl Strategy<Value = Node> {
    let names = ["eth1", "cbr0", "cni0", "wg0", "docker0"];
    let links =
        prop::collection::btree_map(prop::sample::select(names.to_vec()), foreign_link(), 0..5);
    let networks = prop::collection::vec(
        (
            prop::sample::select(vec!["cbr0", "cni0", "eth0"]),
            prop::sample::subsequence(
                vec!["10.1.0.0/24", "10.2.0.0/16", "fd00:1::/64", "fd00:9::/64"],
                0..=3,
            ),
            prop::option::of(prop::sample::select(vec![1400, 9000])),
            options(),
        ),
        0..4,
    );
    let prefixes = prop::sample::subsequence(
        vec![
            "0.0.0.0/0",
            "10.0.0.0/8",
            "10.1.0.0/16",
            "fd00::/8",
            "10.1.0.128/25",
        ],
        0..=5,
    );
    let uplinks = prop::sample::subsequence(vec!["eth0", "eth1", "cbr0", "nowhere"], 0..=4);
    (links, networks, prefixes, uplinks).prop_map(|(links, networks, prefixes, uplinks)| {
        let fake = Fake::new();
        for (name, link) in &links {
            fake.add_link(name, link.kind);
            for address in &link.addresses {
                fake.add_address(name, address);
            }
            if link.routed {
                fake.add_route("172.31.0.0/16", None, name);
            }
            fake.edit_link(name, |present| {
                present.up = link.up;
                present.mtu = link.mtu;
            });
        }
        let network = |(index, (bridge, cidrs, mtu, options)): (usize, (&str, Vec<&str>, _, _))| {
            let mut network = network_of(&format!("net{index}"), bridge, &cidrs);
            network.mtu = mtu;
            network.options = options;
            network
        };
        let intent = NodeIntent {
            networks: networks.into_iter().enumerate().map(network).collect(),
            uplinks: uplinks.into_iter().map(parse).collect(),
            non_masquerade: prefixes.into_iter().map(parse).collect(),
            egress: std::collections::BTreeMap::new(),
            bypass: planner::BypassMode::Auto,
            shaper: planner::ShaperMode::Auto,
            xdp_prefilter: planner::XdpPrefilterMode::Off,
            peers: planner::PeerIntent::default(),
            policies: std::sync::Arc::default(),
        };
        Node::new(fake, intent)
    })
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#?}\n{:#?}", self.intent, self.fake.snapshot())
    }
}

/// Changes of the kernel that the agent does not make.
#[derive(Clone, Debug)]
enum Interference {
    RemoveNetns(usize),
    DeleteHostLink(usize),
    DetachPrograms(usize),
    LeaveBridge(usize),
    DeleteBridge,
    ClearEntries(u32),
    StaleEntry(u8),
    ForeignAddress,
}

fn interference() -> impl Strategy<Value = Interference> {
    prop_oneof![
        (0..4_usize).prop_map(Interference::RemoveNetns),
        (0..4_usize).prop_map(Interference::DeleteHostLink),
        (0..4_usize).prop_map(Interference::DetachPrograms),
        (0..4_usize).prop_map(Interference::LeaveBridge),
        Just(Interference::DeleteBridge),
        any::<u32>().prop_map(Interference::ClearEntries),
        any::<u8>().prop_map(Interference::StaleEntry),
        Just(Interference::ForeignAddress),
    ]
}

fn interfere(fake: &Fake, pods: &[Attachment], what: &Interference) {
    let links = fake.snapshot().links;
    let host = |index: &usize| pods[*index].host_link().name().to_string();
    let edit = |index: &usize, change: fn(&mut NodeLink)| {
        let name = host(index);
        if links.contains_key(&parse(&name)) {
            fake.edit_link(&name, change);
        }
    };
    match what {
        Interference::RemoveNetns(index) => {
            fake.remove_netns(&pods[*index].netns.path.to_string());
        }
        Interference::DeleteHostLink(index) => fake.delete_link(&host(index)),
        Interference::DetachPrograms(index) => edit(index, |link| link.hooks.clear()),
        Interference::LeaveBridge(index) => edit(index, |link| link.controller = None),
        Interference::DeleteBridge => fake.delete_link("cbr0"),
        Interference::ClearEntries(mask) => {
            let mut count = 0;
            fake.clear_entries(|_, _| {
                count += 1;
                mask.rotate_left(count) & 1 == 1
            });
        }
        Interference::StaleEntry(low) => {
            let key = EntryKey::Endpoint([10, 1, 0, *low].into());
            let entry = Entry::Endpoint {
                slot: 99,
                generation: 1,
                link: LinkRef::Name(parse("eth0")),
                mac: parse("02:00:00:00:00:01"),
                masquerade: model::Families::both(true),
                published: false,
                limited: false,
            };
            fake.put_entry(&key, &entry);
        }
        Interference::ForeignAddress => {
            if links.contains_key(&parse("cbr0")) {
                fake.add_address("cbr0", "172.16.9.1/24");
            }
        }
    }
}

proptest! {
    /// For any node: after one plan, and one that opens the uplinks, the next plan is empty.
    #[test]
    fn a_third_plan_is_empty(mut node in nodes()) {
        let first = node.plan();
        node.execute(&first).unwrap();
        let second = node.plan();
        node.execute(&second).unwrap();
        let third = node.plan();
        prop_assert!(third.is_empty(), "{}\nthen:\n{}\nthen:\n{}", first, second, third);
    }

    /// Foreign links are neither changed nor removed.
    #[test]
    fn foreign_links_survive_every_plan(mut node in nodes()) {
        for network in &mut node.intent.networks {
            network.options.force_address = false;
        }
        let before = node.fake.snapshot().links;
        node.converge();
        let after = node.fake.snapshot().links;
        for (name, link) in before {
            let now = &after[&name];
            prop_assert_eq!((link.kind, link.mac, link.mtu), (now.kind, now.mac, now.mtu));
            let kept = link.addresses.iter().all(|own| now.addresses.contains(own));
            prop_assert!(kept, "{} lost an address", name);
        }
    }

    /// After any interference and one repair, every pod that still has its link passes CHECK, and
    /// the tables have no other pod entries.
    #[test]
    fn a_repair_converges(what in prop::collection::vec(interference(), 0..6)) {
        let mut node = Node::ready();
        let mut pods = Vec::new();
        for index in 0..4_u16 {
            let name = format!("c{index}");
            node.fake.add_netns(&netns_of(&name));
            pods.push(node.add(&name, &[8000 + index]).unwrap());
        }
        for what in &what {
            interfere(&node.fake, &pods, what);
        }
        node.repair();
        let again = node.plan_repair();
        prop_assert!(node.plan().is_empty());
        prop_assert!(again.is_empty(), "{:#?}", again);
        let live: Vec<Attachment> = node.records.values().map(|r| r.attachment.clone()).collect();
        for attachment in &live {
            prop_assert_eq!(node.check(attachment), [""; 0]);
        }
        let mut expected = steps::Entries::new();
        for attachment in &live {
            expected.extend(planner::attachment_entries(attachment));
        }
        let of_pods = |key: &EntryKey| matches!(
            key,
            EntryKey::Pod(_) | EntryKey::Interface(_) | EntryKey::Endpoint(_) | EntryKey::Hostport { .. }
        );
        let mut seen = node.without_free_slots().entries;
        seen.retain(|key, _| of_pods(key));
        prop_assert_eq!(seen, expected);
    }
}
