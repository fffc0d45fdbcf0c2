//! The kernel in memory does what the real one does: random steps, executed on both, end alike and leave the same.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kernel::fake::Fake;
use kernel::{Host, Kernel, Measured, ObserveError, StepError};
use model::{Attachment, IfName, InterfaceAddress, Mac, Netns, NetnsPath};
use nix::errno::Errno;
use planner::{
    BridgeSpec, Entries, Entry, EntryKey, LinkRef, Observed, RouteEntry, Scope, Step, SysctlKey,
};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use support::*;

/// The names of the pods' namespaces.
const PODS: [&str; 2] = ["pod0", "pod1"];

/// One thing that happens.
#[derive(Clone, Debug)]
enum Happening {
    /// A step of the agent, spoken of with the namespaces of the world it is executed in.
    Step(Abstract),
    /// Somebody else deletes a link.
    LinkDeleted(&'static str),
    /// The agent restarts: nothing may change.
    Restart,
}

/// A step about a bridge, a pod or an entry by number: namespaces differ between the two worlds.
#[derive(Clone, Debug)]
enum Abstract {
    CreateBridge {
        name: &'static str,
        alias: &'static str,
    },
    DeleteBridge {
        name: &'static str,
        alias: &'static str,
    },
    CreateVeth {
        pod: usize,
        mtu: u32,
    },
    DeleteVeth {
        pod: usize,
        ours: bool,
    },
    JoinBridge {
        pod: usize,
        bridge: &'static str,
        hairpin: bool,
    },
    SetUpPod {
        pod: usize,
        routes: bool,
    },
    AttachPod {
        pod: usize,
    },
    DetachPod {
        pod: usize,
    },
    AttachUplink {
        name: &'static str,
    },
    DetachUplink {
        name: &'static str,
    },
    PutEntries {
        pod: usize,
    },
    RemoveEntries {
        pod: usize,
    },
    Plain(Step),
}

const BRIDGES: [&str; 2] = ["cbr0", "cbr1"];
const ALIASES: [&str; 2] = [BRIDGE_ALIAS, "another"];

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        12 => any_step().prop_map(Happening::Step),
        1 => select(&BRIDGES[..]).prop_map(Happening::LinkDeleted),
        1 => Just(Happening::Restart),
    ]
}

fn any_step() -> impl Strategy<Value = Abstract> {
    let bridge = || select(&BRIDGES[..]);
    let alias = || select(&ALIASES[..]);
    let pod = || 0..PODS.len();
    prop_oneof![
        3 => (bridge(), alias()).prop_map(|(name, alias)| Abstract::CreateBridge { name, alias }),
        1 => (bridge(), alias()).prop_map(|(name, alias)| Abstract::DeleteBridge { name, alias }),
        4 => (pod(), select(&[1400, 1500][..]))
            .prop_map(|(pod, mtu)| Abstract::CreateVeth { pod, mtu }),
        2 => (pod(), any::<bool>()).prop_map(|(pod, ours)| Abstract::DeleteVeth { pod, ours }),
        3 => (pod(), bridge(), any::<bool>())
            .prop_map(|(pod, bridge, hairpin)| Abstract::JoinBridge { pod, bridge, hairpin }),
        3 => (pod(), any::<bool>()).prop_map(|(pod, routes)| Abstract::SetUpPod { pod, routes }),
        2 => pod().prop_map(|pod| Abstract::AttachPod { pod }),
        1 => pod().prop_map(|pod| Abstract::DetachPod { pod }),
        1 => bridge().prop_map(|name| Abstract::AttachUplink { name }),
        1 => bridge().prop_map(|name| Abstract::DetachUplink { name }),
        2 => pod().prop_map(|pod| Abstract::PutEntries { pod }),
        1 => pod().prop_map(|pod| Abstract::RemoveEntries { pod }),
        6 => plain_step().prop_map(Abstract::Plain),
        3 => node_entry().prop_map(Abstract::Plain),
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
    ]
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
            };
            (EntryKey::Uplink(named(name)), entry)
        }),
        (prefix, any::<bool>(), any::<bool>()).prop_map(|(prefix, no_masquerade, pods)| {
            let entry = Entry::Prefix {
                no_masquerade,
                pods,
            };
            (EntryKey::Prefix(parse(prefix)), entry)
        }),
        select(&["192.0.2.10", "2001:db8::10"][..])
            .prop_map(|address| (EntryKey::Local(parse(address)), Entry::Local)),
        (0..4_u32, 0..3_u32)
            .prop_map(|(slot, generation)| (EntryKey::Pod(slot), Entry::FreePod { generation })),
        (2040..2050_u32).prop_map(|slot| (EntryKey::Pod(slot), Entry::FreePod { generation: 1 })),
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

fn put(key: EntryKey, entry: Entry) -> Step {
    Step::PutEntry {
        key,
        entry,
        previous: None,
    }
}

/// The real kernel, which an agent after the other opens.
struct Real {
    host: Option<Host>,
}

impl Real {
    fn open(node: &Node) -> Self {
        Self {
            host: Some(node.host()),
        }
    }

    fn restart(&mut self, node: &Node) {
        drop(self.host.take());
        *self = Self::open(node);
    }

    fn host(&mut self) -> &mut Host {
        self.host.as_mut().unwrap()
    }
}

impl Kernel for Real {
    fn observe(&mut self, scope: &Scope) -> Result<Observed, ObserveError> {
        self.host().observe(scope)
    }

    fn execute(&mut self, step: &Step) -> Result<(), StepError> {
        self.host().execute(step)
    }

    fn measure(&mut self) -> Result<Measured, ObserveError> {
        self.host().measure()
    }
}

/// One of the two kernels with its namespaces.
struct World<K> {
    kernel: K,
    pods: Vec<Netns>,
}

impl<K: Kernel> World<K> {
    fn attachment(&self, pod: usize) -> Attachment {
        let number = u8::try_from(pod).unwrap() + 2;
        let mut attachment = attachment(&self.pods[pod], number);
        attachment.port_mappings = vec![model::PortMapping {
            host_port: 8080.try_into().unwrap(),
            container_port: 80.try_into().unwrap(),
            protocol: model::Protocol::Tcp,
            host_address: None,
        }];
        attachment
    }

    fn steps(&self, step: &Abstract) -> Vec<Step> {
        let of = |pod: &usize| self.attachment(*pod);
        let host = |pod: &usize| of(pod).host_link();
        match step {
            Abstract::CreateBridge { name, alias } => vec![Step::CreateBridge(BridgeSpec {
                name: link(name),
                alias: (*alias).to_owned(),
                ..bridge()
            })],
            Abstract::DeleteBridge { name, alias } => vec![Step::DeleteBridge {
                name: link(name),
                alias: (*alias).to_owned(),
            }],
            Abstract::CreateVeth { pod, mtu } => {
                let mut spec = veth(&of(pod));
                spec.mtu = *mtu;
                vec![Step::CreateVeth(spec)]
            }
            Abstract::DeleteVeth { pod, ours } => vec![Step::DeleteVeth {
                link: host(pod),
                alias: if *ours {
                    of(pod).alias()
                } else {
                    "another".to_owned()
                },
            }],
            Abstract::JoinBridge {
                pod,
                bridge,
                hairpin,
            } => vec![Step::JoinBridge {
                link: host(pod),
                bridge: link(bridge),
                hairpin: *hairpin,
            }],
            Abstract::SetUpPod { pod, routes } => {
                let mut spec = inside(&of(pod));
                if !routes {
                    spec.routes.clear();
                }
                vec![Step::SetUpPod(spec)]
            }
            Abstract::AttachPod { pod } => vec![attach(&of(pod))],
            Abstract::DetachPod { pod } => vec![Step::Detach {
                link: host(pod).name().clone(),
                hooks: pod_hooks(),
            }],
            Abstract::AttachUplink { name } => vec![Step::Attach {
                link: link(name),
                hooks: uplink_hooks(),
            }],
            Abstract::DetachUplink { name } => vec![Step::Detach {
                link: link(name),
                hooks: uplink_hooks(),
            }],
            Abstract::PutEntries { pod } => {
                let entries = planner::attachment_entries(&of(pod)).into_iter();
                entries.map(|(key, entry)| put(key, entry)).collect()
            }
            Abstract::RemoveEntries { pod } => {
                let entries = planner::attachment_entries(&of(pod)).into_iter();
                let remove = |(key, previous)| Step::RemoveEntry { key, previous };
                entries.map(remove).collect()
            }
            Abstract::Plain(step) => vec![step.clone()],
        }
    }

    /// What anyone can see, in words that are the same in both worlds.
    fn look(&mut self) -> Vec<Observed> {
        let sysctls = BTreeSet::from([SysctlKey("net/ipv4/ip_forward".to_owned())]);
        let mut scopes = vec![Scope::Node { sysctls }];
        for (pod, netns) in self.pods.iter().enumerate() {
            scopes.push(Scope::Attachment(Box::new(self.attachment(pod))));
            scopes.push(Scope::Netns {
                path: netns.path.clone(),
                ifname: link("eth0"),
                links: BTreeSet::from([link("cbr0"), link("none")]),
            });
        }
        let seen: Vec<_> = scopes
            .iter()
            .map(|scope| self.kernel.observe(scope).unwrap())
            .collect();
        let names = Names::of(&seen[0]);
        let pods = &self.pods;
        seen.into_iter()
            .map(|seen| names.normalise(seen, pods))
            .collect()
    }
}

/// Interface indexes in words that are the same in both worlds.
struct Names {
    indexes: BTreeMap<u32, u32>,
}

impl Names {
    /// Links count by name; those that are gone, by the order of their indexes.
    fn of(node: &Observed) -> Self {
        let links = node.links.values().map(|link| link.index);
        let mut indexes: BTreeMap<u32, u32> = links.zip(1..).collect();
        let gone: BTreeSet<u32> = node
            .entries
            .iter()
            .flat_map(|(key, entry)| refs(key, entry))
            .filter_map(|link| match link {
                LinkRef::Gone(index) => Some(index),
                LinkRef::Name(_) => None,
            })
            .collect();
        indexes.extend(gone.into_iter().zip(1000..));
        Self { indexes }
    }

    fn index(&self, index: u32) -> u32 {
        self.indexes.get(&index).copied().unwrap_or(0)
    }

    fn normalise(&self, mut seen: Observed, pods: &[Netns]) -> Observed {
        for link in seen.links.values_mut() {
            link.index = self.index(link.index);
            link.controller = link.controller.map(|index| self.index(index));
            // The kernel lists IPv4 first, and of IPv6 the newest first.
            link.addresses.retain(|own| !is_link_local(own.address));
            link.addresses.sort();
        }
        seen.routes = self.routes(seen.routes);
        if let Some(pod) = &mut seen.pod {
            pod.peer = pod.peer.map(|index| self.index(index));
        }
        let number = |netns: &Netns| pods.iter().position(|pod| pod == netns).unwrap();
        let netns = seen.netns.values().map(number);
        let named = |number: usize| {
            let path: NetnsPath = parse(&format!("/{}", PODS[number]));
            let netns = Netns {
                path: path.clone(),
                device: 0,
                inode: 0,
            };
            (path, netns)
        };
        seen.netns = netns.map(named).collect();
        seen.entries = self.entries(seen.entries);
        seen
    }

    fn routes(&self, routes: Vec<RouteEntry>) -> Vec<RouteEntry> {
        let plain = |route: &RouteEntry| !is_link_local(route.destination.network());
        let mut routes: Vec<_> = routes.into_iter().filter(plain).collect();
        for route in &mut routes {
            route.link = self.index(route.link);
        }
        routes.sort();
        routes.dedup();
        routes
    }

    fn entries(&self, entries: Entries) -> Entries {
        let link = |link: &mut LinkRef| {
            if let LinkRef::Gone(index) = link {
                *index = self.index(*index);
            }
        };
        let same = |(mut key, mut entry): (EntryKey, Entry)| {
            for named in links_of_key(&mut key)
                .into_iter()
                .chain(links_of_entry(&mut entry))
            {
                link(named);
            }
            (key, entry)
        };
        entries.into_iter().map(same).collect()
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn refs(key: &EntryKey, entry: &Entry) -> Vec<LinkRef> {
    let (mut key, mut entry) = (key.clone(), entry.clone());
    let both = links_of_key(&mut key)
        .into_iter()
        .chain(links_of_entry(&mut entry));
    both.map(|link| link.clone()).collect()
}

fn links_of_key(key: &mut EntryKey) -> Option<&mut LinkRef> {
    match key {
        EntryKey::Interface(link) | EntryKey::Uplink(link) => Some(link),
        EntryKey::Pod(_)
        | EntryKey::Endpoint(_)
        | EntryKey::Hostport { .. }
        | EntryKey::Local(_)
        | EntryKey::Prefix(_)
        | EntryKey::Settings => None,
    }
}

fn links_of_entry(entry: &mut Entry) -> Vec<&mut LinkRef> {
    match entry {
        Entry::Pod { link, bridge, .. } => vec![link, bridge],
        Entry::Endpoint { link, .. } => vec![link],
        Entry::FreePod { .. }
        | Entry::Interface { .. }
        | Entry::Hostport { .. }
        | Entry::Uplink { .. }
        | Entry::Local
        | Entry::Prefix { .. }
        | Entry::Settings(_) => vec![],
    }
}

/// How a step ended, as far as anyone may act on it.
fn ending(result: Result<(), StepError>) -> &'static str {
    match result {
        Ok(()) => "done",
        Err(error) if error.is_gone() => "gone",
        Err(error) if error.is_taken() => "taken",
        Err(error) if error.source.raw_os_error() == Some(Errno::EPERM as i32) => "not ours",
        Err(_) => "failed",
    }
}

/// Makes the real kernel what the one in memory is at first.
fn clear(host: &mut Host) {
    for entry in host
        .observe(&Scope::Node {
            sysctls: BTreeSet::new(),
        })
        .unwrap()
        .entries
    {
        let (key, previous) = entry;
        host.execute(&Step::RemoveEntry { key, previous }).unwrap();
    }
    let others: BTreeSet<IfName> = observe(host).links.into_keys().collect();
    for name in others.iter().filter(|name| **name != link("lo")) {
        run(&format!("ip link del {name}"));
    }
    let off = Step::SetSysctl {
        key: SysctlKey("net/ipv4/ip_forward".to_owned()),
        value: "0".to_owned(),
        previous: String::new(),
    };
    host.execute(&off).unwrap();
}

fn run_script(
    node: &Node,
    real: &mut World<Real>,
    script: &[Happening],
) -> Result<(), TestCaseError> {
    clear(real.kernel.host());
    let fake = Fake::bare();
    let pods = PODS.map(|name| fake.add_netns(&format!("/run/netns/{name}")));
    let mut fake = World {
        kernel: fake,
        pods: pods.into(),
    };
    for happening in script {
        match happening {
            Happening::Step(step) => {
                for (real_step, fake_step) in real.steps(step).iter().zip(fake.steps(step)) {
                    let really = real.kernel.execute(real_step);
                    let detail = really.as_ref().err().map(|error| chain(error));
                    let faked = ending(fake.kernel.execute(&fake_step));
                    prop_assert_eq!(ending(really), faked, "{:?}: {:?}", real_step, detail);
                }
            }
            Happening::LinkDeleted(name) => {
                if succeeds(&format!("ip link del {name}")) {
                    fake.kernel.delete_link(name);
                }
            }
            Happening::Restart => real.kernel.restart(node),
        }
        for (really, faked) in real.look().into_iter().zip(fake.look()) {
            prop_assert_eq!(really, faked, "after {:?}", happening);
        }
    }
    Ok(())
}

#[test]
fn the_kernel_in_memory_does_what_the_real_one_does() {
    on_a_node(|node| {
        let real = RefCell::new(World {
            kernel: Real::open(node),
            pods: PODS.map(|name| node.add_netns(name)).into(),
        });
        let config = Config {
            cases: 64,
            failure_persistence: None,
            ..Config::default()
        };
        let script = prop::collection::vec(happening(), 1..25);
        let outcome = TestRunner::new(config).run(&script, |script| {
            run_script(node, &mut real.borrow_mut(), &script)
        });
        if let Err(failure) = outcome {
            panic!("{failure}");
        }
    });
}
