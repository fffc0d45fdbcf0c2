//! The node as it was when last looked at, and how it is brought to what the networks need. Knows no attachment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kernel::{Kernel, ObserveError};
use model::{IfName, Mac, Network, NetworkName};
use planner::{
    Entries, Entry, EntryKey, Hook, LinkRef, NodeIntent, NodePlan, Observed, Plan, Refusal, Scope,
    SocketHook, SocketLink, Step, SysctlKey,
};
use store::Store;

use crate::uninstall::remember_sysctls;
use crate::{EngineError, ShaperStatus, UplinkStatus};

/// Rounds of planning after which the node is taken as it is. Two are usual: what can be set on a bridge is seen only
/// when the bridge is there, and an uplink is open only when it is seen to have our programs.
const ROUNDS: usize = 5;

/// What the last look told.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// Networks whose bridge is as it should be.
    pub(crate) ready: BTreeMap<NetworkName, Ready>,
    /// Networks whose bridge is refused.
    pub(crate) refused: BTreeMap<NetworkName, Refusal>,
    /// Links by which packets leave the node.
    pub(crate) uplinks: Vec<UplinkStatus>,
    /// Egress addresses that the node does not have.
    pub(crate) no_egress: Vec<IpAddr>,
    /// How many entries the flow table has room for.
    pub(crate) flow_entries: u32,
    /// Whether packets go past bridge and stack.
    pub(crate) bypass: bool,
    /// Links of pods whose packets take the short way.
    pub(crate) busy: BTreeSet<IfName>,
    /// What the cgroup has of our programs.
    pub(crate) sockets: BTreeMap<SocketHook, SocketLink>,
    /// How limits are enforced.
    pub(crate) shaper: ShaperStatus,
    /// What is against it.
    pub(crate) obstacles: BTreeSet<String>,
}

/// A network that can be used.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    /// What the bridge was made for.
    pub(crate) network: Network,
    /// MTU in bytes.
    pub(crate) mtu: u32,
    /// Ethernet address of the bridge.
    pub(crate) mac: Option<Mac>,
}

/// A node that no plan changes any more, or that a plan could not change.
pub(crate) struct Settled {
    pub(crate) observed: Observed,
    /// What could not be done, and the networks that are refused.
    left: NodePlan,
}

impl Settled {
    /// Whether sockets are told the limits on their way, or will be when one counts.
    fn paces(&self) -> bool {
        let pace = SocketHook::Pace;
        let lacks =
            |step: &Step| matches!(step, Step::AttachSockets { hooks } if hooks.contains(&pace));
        self.observed.socket_hooks.contains_key(&pace) && !self.left.plan.steps().iter().any(lacks)
    }
}

/// Looks at the node and brings it to what the networks need.
#[derive(Debug, Default)]
pub(crate) struct Surveyor {
    /// The sysctls that planning needed the last time. Which it needs is known only behind a look; most often the
    /// same as before, so that one look is enough.
    sysctls: BTreeSet<SysctlKey>,
}

impl Surveyor {
    /// Plans and executes until there is nothing left to do, or no progress.
    pub(crate) fn settle<K: Kernel>(
        &mut self,
        kernel: &mut K,
        intent: &NodeIntent,
        store: &mut Store,
        mut execute: impl FnMut(&mut K, &Plan) -> Result<(), EngineError>,
    ) -> Result<Settled, EngineError> {
        let mut last = Plan::default();
        for _ in 0..ROUNDS {
            let observed = self.look(kernel, intent)?;
            let node = planner::plan_node(intent, &observed, store.records());
            if node.plan.is_empty() || node.plan == last {
                return Ok(Settled {
                    observed,
                    left: node,
                });
            }
            remember_sysctls(store, &observed, &node.plan)?;
            execute(kernel, &node.plan)?;
            last = node.plan;
        }
        let observed = self.look(kernel, intent)?;
        let left = planner::plan_node(intent, &observed, store.records());
        Ok(Settled { observed, left })
    }

    fn look(
        &mut self,
        kernel: &mut impl Kernel,
        intent: &NodeIntent,
    ) -> Result<Observed, ObserveError> {
        let sysctls = self.sysctls.clone();
        let observed = kernel.observe(&Scope::Node { sysctls })?;
        let needed = planner::node_sysctls(intent, &observed);
        if needed.is_subset(&self.sysctls) {
            return Ok(observed);
        }
        self.sysctls.clone_from(&needed);
        kernel.observe(&Scope::Node { sysctls: needed })
    }
}

impl Node {
    /// What `settled` tells about the networks of `intent`.
    pub(crate) fn of(intent: &NodeIntent, settled: Settled) -> Self {
        let paces = settled.paces();
        let Settled { observed, left } = settled;
        let refused = left.refused;
        let ready = intent
            .networks
            .iter()
            .filter(|network| !refused.contains_key(&network.name))
            .filter_map(|network| {
                let bridge = observed.links.get(&network.bridge)?;
                let ready = Ready {
                    network: network.clone(),
                    mtu: planner::network_mtu(network, &observed),
                    mac: bridge.mac,
                };
                Some((network.name.clone(), ready))
            });
        Self {
            ready: ready.collect(),
            uplinks: uplinks(&observed),
            no_egress: no_egress(intent, &observed),
            flow_entries: observed.flow_entries,
            bypass: intent.bypass.is_active(&observed),
            busy: busy(&observed),
            shaper: ShaperStatus {
                mode: intent.shaper,
                chosen: intent.shaper.choose(&observed),
                paces,
                heeds_departure: observed.heeds_departure,
            },
            obstacles: planner::obstacles(&observed),
            sockets: observed.socket_hooks,
            refused,
        }
    }
}

/// The highest generation in a table.
pub(crate) fn highest_generation(entries: &Entries) -> u32 {
    entries
        .values()
        .filter_map(|entry| match entry {
            Entry::Pod { generation, .. }
            | Entry::FreePod { generation }
            | Entry::Limit { generation, .. }
            | Entry::Endpoint { generation, .. }
            | Entry::Hostport { generation, .. } => Some(*generation),
            Entry::Interface { .. }
            | Entry::Network { .. }
            | Entry::Egress { .. }
            | Entry::Uplink { .. }
            | Entry::Local
            | Entry::Prefix { .. }
            | Entry::Settings(_) => None,
        })
        .max()
        .unwrap_or(0)
}

fn busy(observed: &Observed) -> BTreeSet<IfName> {
    observed
        .links
        .iter()
        .filter(|(_, link)| link.hooks.contains(&Hook::FromBusyPod))
        .map(|(name, _)| name.clone())
        .collect()
}

fn no_egress(intent: &NodeIntent, observed: &Observed) -> Vec<IpAddr> {
    let wanted = intent.egress.values().flatten().copied();
    let local = |address: &IpAddr| observed.entries.contains_key(&EntryKey::Local(*address));
    wanted.filter(|address| !local(address)).collect()
}

fn uplinks(observed: &Observed) -> Vec<UplinkStatus> {
    observed
        .entries
        .iter()
        .filter_map(|(key, entry)| {
            let (EntryKey::Uplink(LinkRef::Name(name)), Entry::Uplink { mtu, sources, .. }) =
                (key, entry)
            else {
                return None;
            };
            let hooks = observed.links.get(name).map(|link| &link.hooks);
            let both = [Hook::UplinkIn, Hook::UplinkOut];
            Some(UplinkStatus {
                name: name.clone(),
                mtu: *mtu,
                addresses: sources.clone(),
                attached: hooks.is_some_and(|hooks| both.iter().all(|hook| hooks.contains(hook))),
                guard: observed.guards.contains_key(name),
            })
        })
        .collect()
}
