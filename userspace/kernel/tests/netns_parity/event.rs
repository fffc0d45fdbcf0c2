//! Events of a script: steps of the agent, restarts, and links that are deleted by other software.

use model::{Attachment, InterfaceAddress, Mac, PortOptions, Protocol};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use steps::{
    AllowedKey, AllowedPorts, Entry, EntryKey, LinkRef, NetfilterState, NetfilterStep,
    NetfilterTable, Step, SysctlKey,
};

use crate::PODS;
use crate::support::*;

/// One event.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A step of the agent, without the namespaces, which differ between the two kernels.
    Step(Box<AbstractStep>),
    /// Other software deletes a link.
    LinkDeleted(&'static str),
    /// The agent restarts: only its port reservations end.
    Restart,
}

/// A step for a bridge, a pod by number, or an entry: namespaces differ between the two kernels.
#[derive(Clone, Debug)]
pub(crate) enum AbstractStep {
    CreateBridge {
        name: &'static str,
        alias: &'static str,
    },
    DeleteBridge {
        name: &'static str,
        alias: &'static str,
    },
    AttachUplink {
        name: &'static str,
    },
    DetachUplink {
        name: &'static str,
    },
    Pod {
        pod: usize,
        step: PodStep,
    },
    Plain(Box<Step>),
}

/// A step for a pod.
#[derive(Clone, Debug)]
pub(crate) enum PodStep {
    CreateVeth {
        mtu: u32,
    },
    DeleteVeth {
        ours: bool,
    },
    JoinBridge {
        bridge: &'static str,
        hairpin: bool,
        isolated: bool,
    },
    SetUp {
        routes: bool,
    },
    Attach,
    Detach,
    HoldPorts,
    ReleasePorts,
    PutEntries,
    RemoveEntries,
}

/// Returns the steps for a pod of one of the kernels.
pub(crate) fn steps_of_pod(attachment: &Attachment, step: &PodStep) -> Vec<Step> {
    let host = model::ManagedLink::of(&attachment.key);
    let entries = planner::attachment_entries(attachment).into_iter();
    let reservations = planner::attachment_reservations(attachment).into_iter();
    let generation = attachment.generation;
    match step {
        PodStep::CreateVeth { mtu } => {
            let mut spec = veth(attachment);
            spec.mtu = *mtu;
            vec![Step::CreateVeth(spec)]
        }
        PodStep::DeleteVeth { ours: true } => vec![delete(attachment)],
        PodStep::DeleteVeth { ours: false } => vec![Step::DeleteVeth {
            link: host,
            alias: "another".to_owned(),
        }],
        PodStep::JoinBridge {
            bridge,
            hairpin,
            isolated,
        } => vec![Step::JoinBridge {
            link: host,
            bridge: link(bridge),
            hairpin: *hairpin,
            options: PortOptions {
                isolated: *isolated,
                ..PortOptions::default()
            },
        }],
        PodStep::SetUp { routes } => {
            let mut spec = inside(attachment);
            if !routes {
                spec.routes.clear();
            }
            vec![Step::SetUpPod(spec)]
        }
        PodStep::Attach => vec![attach(attachment)],
        PodStep::Detach => vec![Step::Detach {
            link: host.name().clone(),
            hooks: pod_hooks(),
        }],
        PodStep::HoldPorts => reservations
            .map(|reservation| Step::ReservePort {
                reservation,
                generation,
            })
            .collect(),
        PodStep::ReleasePorts => reservations
            .map(|reservation| Step::ReleasePort {
                reservation,
                generation,
            })
            .collect(),
        PodStep::PutEntries => entries.map(|(key, entry)| put(key, entry)).collect(),
        PodStep::RemoveEntries => entries
            .map(|(key, previous)| Step::RemoveEntry { key, previous })
            .collect(),
    }
}

const BRIDGES: [&str; 2] = ["cbr0", "cbr1"];
const ALIASES: [&str; 2] = [BRIDGE_ALIAS, "another"];

/// Generates an event.
pub(crate) fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => any_step().prop_map(|step| Event::Step(Box::new(step))),
        1 => select(&BRIDGES[..]).prop_map(Event::LinkDeleted),
        1 => Just(Event::Restart),
    ]
}

fn any_step() -> impl Strategy<Value = AbstractStep> {
    let bridge = || select(&BRIDGES[..]);
    let alias = || select(&ALIASES[..]);
    prop_oneof![
        3 => (bridge(), alias()).prop_map(|(name, alias)| AbstractStep::CreateBridge { name, alias }),
        1 => (bridge(), alias()).prop_map(|(name, alias)| AbstractStep::DeleteBridge { name, alias }),
        1 => bridge().prop_map(|name| AbstractStep::AttachUplink { name }),
        1 => bridge().prop_map(|name| AbstractStep::DetachUplink { name }),
        18 => (0..PODS.len(), pod_step()).prop_map(|(pod, step)| AbstractStep::Pod { pod, step }),
        6 => plain_step().prop_map(|step| AbstractStep::Plain(Box::new(step))),
        3 => node_entry().prop_map(|step| AbstractStep::Plain(Box::new(step))),
    ]
}

fn pod_step() -> impl Strategy<Value = PodStep> {
    let bridge = select(&BRIDGES[..]);
    prop_oneof![
        4 => select(&[1400, 1500][..]).prop_map(|mtu| PodStep::CreateVeth { mtu }),
        2 => any::<bool>().prop_map(|ours| PodStep::DeleteVeth { ours }),
        3 => (bridge, any::<bool>(), any::<bool>()).prop_map(|(bridge, hairpin, isolated)| {
            PodStep::JoinBridge { bridge, hairpin, isolated }
        }),
        3 => any::<bool>().prop_map(|routes| PodStep::SetUp { routes }),
        2 => Just(PodStep::Attach),
        1 => Just(PodStep::Detach),
        1 => Just(PodStep::HoldPorts),
        1 => Just(PodStep::ReleasePorts),
        2 => Just(PodStep::PutEntries),
        1 => Just(PodStep::RemoveEntries),
    ]
}

fn plain_step() -> impl Strategy<Value = Step> {
    let name = || select(&["cbr0", "cbr1", "none"][..]).prop_map(link);
    let addresses = [
        "10.88.0.1/24",
        "10.88.0.9/24",
        "10.88.0.9/16",
        "10.99.0.1/16",
        "fd88::1/64",
        "fd88::1/48",
        "fd99::1/64",
    ];
    let address = move || select(addresses.to_vec()).prop_map(parse::<InterfaceAddress>);
    let key = || SysctlKey("net/ipv4/ip_forward".to_owned());
    prop_oneof![
        (name(), any::<u8>()).prop_map(|(link, byte)| Step::SetMac {
            link,
            mac: Mac([2, 0, 0, 0, 0, byte]),
        }),
        (name(), 1280..1500_u32).prop_map(|(link, mtu)| Step::SetMtu { link, mtu }),
        name().prop_map(|link| Step::SetUp { link }),
        (name(), address()).prop_map(|(link, address)| Step::AddAddress { link, address }),
        (name(), address()).prop_map(|(link, address)| Step::AddAddress { link, address }),
        (name(), address()).prop_map(|(link, address)| Step::RemoveAddress { link, address }),
        any::<bool>().prop_map(move |on| Step::SetSysctl {
            key: key(),
            value: u8::from(on).to_string(),
            previous: String::new(),
        }),
        Just(Step::SetSysctl {
            key: SysctlKey("net/ipv4/no_such_thing".to_owned()),
            value: "1".to_owned(),
            previous: String::new(),
        }),
        Just(Step::Sweep),
        netfilter().prop_map(|step| Step::Netfilter(Box::new(step))),
        netfilter().prop_map(|step| Step::Netfilter(Box::new(step))),
    ]
}

fn netfilter() -> impl Strategy<Value = NetfilterStep> {
    let links = subsequence(vec!["lo", "cbr0", "cbr1", "none"], 0..4);
    let prefixes = || subsequence(vec!["10.88.0.0/16", "10.99.0.0/17", "fd88::/64"], 0..3);
    let flags = any::<[bool; 3]>();
    let sets = [prefixes(), prefixes(), prefixes(), prefixes()];
    (links, flags, sets).prop_map(
        |(links, [hostports, remove, output], [pods, closed, routed, hairpin])| {
            let previous = NetfilterState::Absent;
            if remove {
                return NetfilterStep::Remove { previous };
            }
            let hairpin = if hostports { hairpin } else { Vec::new() };
            let table = NetfilterTable {
                links: links.into_iter().map(link).collect(),
                pods: pods.into_iter().map(parse).collect(),
                routed: closed
                    .iter()
                    .filter(|prefix| routed.contains(prefix))
                    .map(|prefix| parse(prefix))
                    .collect(),
                closed: closed.into_iter().map(parse).collect(),
                hostports,
                output: hostports && output,
                hairpin: hairpin.into_iter().map(parse).collect(),
            };
            NetfilterStep::Put { table, previous }
        },
    )
}

fn node_entry() -> impl Strategy<Value = Step> {
    let name = || select(&["cbr0", "cbr1", "none"][..]);
    let named = |name: &str| LinkRef::Name(link(name));
    let prefix = select(&["10.0.0.0/8", "10.88.0.0/16", "::/0", "fd88::/64"][..]);
    let entry = prop_oneof![
        (name(), any::<bool>()).prop_map(move |(name, ethernet)| {
            let entry = Entry::Uplink {
                ethernet,
                mtu: 1500,
                sources: vec![parse("192.0.2.10/24"), parse("2001:db8::10/64")],
                open: ethernet,
                tunnel: ethernet,
            };
            (EntryKey::Uplink(named(name)), entry)
        }),
        (prefix, any::<[bool; 5]>()).prop_map(
            |(prefix, [no_masquerade, pods, shared, complete, peer])| {
                let entry = Entry::Prefix {
                    no_masquerade,
                    pods,
                    shared,
                    complete,
                    peer,
                };
                (EntryKey::Prefix(parse(prefix)), entry)
            }
        ),
        select(&["192.0.2.10", "2001:db8::10"][..])
            .prop_map(|address| (EntryKey::Local(parse(address)), Entry::Local)),
        (0..4_u32, 0..3_u32)
            .prop_map(|(slot, generation)| (EntryKey::Pod(slot), Entry::FreePod { generation })),
        (2040..2050_u32).prop_map(|slot| (EntryKey::Pod(slot), Entry::FreePod { generation: 1 })),
        policy_entry(),
        Just(abi::Settings::default())
            .prop_map(|settings| (EntryKey::Settings, Entry::Settings(settings))),
        Just((EntryKey::Settings, Entry::Local)),
    ];
    (entry, any::<bool>()).prop_map(|((key, entry), remove)| {
        if remove {
            Step::RemoveEntry {
                key,
                previous: entry,
            }
        } else {
            put(key, entry)
        }
    })
}

fn policy_entry() -> impl Strategy<Value = (EntryKey, Entry)> {
    let prefix = select(&["10.88.0.2/32", "0.0.0.0/0", "::/0", "fd88::/64"][..]);
    let ports = prop_oneof![
        Just(AllowedPorts::All),
        select(&[(0, 0), (80, 16), (8_080, 12)][..]).prop_map(|(port, bits)| {
            AllowedPorts::Block {
                protocol: Protocol::Udp,
                port,
                bits,
            }
        }),
    ];
    prop_oneof![
        (0..4_u32, any::<[u32; 3]>()).prop_map(|(slot, [generation, ingress, egress])| {
            let entry = Entry::RuleSets {
                generation,
                ingress,
                egress,
            };
            (EntryKey::RuleSets(slot), entry)
        }),
        (prefix, 0..4_u32).prop_map(|(prefix, identity)| {
            (EntryKey::Identity(parse(prefix)), Entry::Identity(identity))
        }),
        (1..3_u32, 0..3_u32, ports).prop_map(|(rules, identity, ports)| {
            let key = AllowedKey {
                rules,
                identity,
                ports,
            };
            (EntryKey::PolicyRule(key), Entry::PolicyRule)
        }),
    ]
}

fn put(key: EntryKey, entry: Entry) -> Step {
    Step::PutEntry {
        key,
        entry,
        previous: None,
    }
}
