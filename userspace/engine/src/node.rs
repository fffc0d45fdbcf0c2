//! Reconciles the node with the requirements of its networks.
//!
//! The node is its bridges, uplinks, sysctls and their table entries. [`NodeState`] is the state at
//! the last observation. This module does not handle attachments.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use kernel::{Kernel, ObserveError};
use model::{IfName, Mac, Network, NetworkName};
use planner::{ContainerLinks, HoldingRule, NodeIntent, NodePlan, Plan, PodSources, Refusal};
use steps::{
    Entries, Entry, EntryKey, Hook, LinkRef, NetfilterState, NetfilterTable, NodeQuery, Observed,
    SocketHook, SocketHookState, Step, SysctlKey,
};
use store::Store;

use crate::peers_status::PeersStatus;
use crate::sysctl_records::record_sysctls;
use crate::{EngineError, ShaperStatus, UplinkStatus};

/// Rounds of planning after which reconciliation stops. Two rounds are usual: settings of a bridge
/// can be planned only when the bridge exists, and an uplink entry is written only when its
/// programs are attached.
const MAX_ROUNDS: usize = 5;

/// State of the node at the last observation.
#[derive(Debug, Default)]
pub(crate) struct NodeState {
    /// Networks whose bridge is configured.
    pub(crate) ready: BTreeMap<NetworkName, ReadyNetwork>,
    /// Networks whose bridge is refused, with the reason.
    pub(crate) refused: BTreeMap<NetworkName, Refusal>,
    /// Uplinks of the node.
    pub(crate) uplinks: Vec<UplinkStatus>,
    /// Configured egress addresses that no link of the node has.
    pub(crate) missing_egress: Vec<IpAddr>,
    /// Capacity of the flow table in entries.
    pub(crate) flow_entries: u32,
    /// Whether packets bypass the bridge and netfilter.
    pub(crate) bypass: bool,
    /// Whether packets of established connections do so beside rules of other software.
    pub(crate) offload: bool,
    /// Rules that must see every packet, and so prevent that.
    pub(crate) holding_rules: BTreeSet<HoldingRule>,
    /// Rules that must see every packet of UDP flows without a reply.
    pub(crate) holding_unreplied: BTreeSet<HoldingRule>,
    /// Host links with the TCX fast path.
    pub(crate) tcx_links: BTreeSet<IfName>,
    /// Other nodes and their state.
    pub(crate) peers: Arc<PeersStatus>,
    /// State of the cgroup socket programs.
    pub(crate) sockets: BTreeMap<SocketHook, SocketHookState>,
    /// How bandwidth limits are enforced.
    pub(crate) shaper: ShaperStatus,
    /// Rules and connections that prevent the bypass.
    pub(crate) obstacles: BTreeSet<String>,
    /// Links and prefixes of pods, for the forwarding rules.
    pub(crate) pod_sources: PodSources,
    /// Links that lead to containers of other software.
    pub(crate) containers: ContainerLinks,
    /// Links that have a network entry: bridges, and container links.
    pub(crate) network_links: BTreeSet<IfName>,
    /// State of our netfilter table.
    pub(crate) netfilter: NetfilterState,
    /// The netfilter table that the node's links and sockets need, without hostports.
    pub(crate) netfilter_base: NetfilterTable,
}

/// Network whose bridge is configured.
#[derive(Clone, Debug)]
pub(crate) struct ReadyNetwork {
    /// Definition that the bridge was configured for.
    pub(crate) network: Network,
    /// MTU of the network in bytes.
    pub(crate) mtu: u32,
    /// Ethernet address of the bridge.
    pub(crate) mac: Option<Mac>,
}

/// Result of a reconciliation of the node.
pub(crate) struct ReconciledNode {
    /// Last observation.
    pub(crate) observed: Observed,
    /// Plan for what is still different, and the networks that are refused.
    left: NodePlan,
}

impl ReconciledNode {
    /// Returns whether TCP sockets are paced by the limits of their pods, or will be from the first
    /// limit on.
    fn paces(&self) -> bool {
        let pace = SocketHook::Pace;
        let lacks = |step: &Step| matches!(step, Step::AttachSocketHooks { hooks } if hooks.contains(&pace));
        self.observed.socket_hooks.contains_key(&pace) && !self.left.plan.steps().iter().any(lacks)
    }
}

/// Reconciles the node with the requirements of its networks.
#[derive(Debug, Default)]
pub(crate) struct NodeReconciler {
    /// Sysctls that the last plan needed. The set depends on the observed links. It seldom changes,
    /// so one observation is usually enough.
    sysctls: BTreeSet<SysctlKey>,
}

impl NodeReconciler {
    /// Observes, plans and executes until the plan is empty, repeats itself, or after
    /// [`MAX_ROUNDS`] rounds.
    pub(crate) fn reconcile<K: Kernel>(
        &mut self,
        kernel: &mut K,
        intent: &NodeIntent,
        store: &mut Store,
        mut execute: impl FnMut(&mut K, &Plan) -> Result<(), EngineError>,
    ) -> Result<ReconciledNode, EngineError> {
        let mut last = Plan::default();
        for _ in 0..MAX_ROUNDS {
            let observed = self.observe(kernel, intent)?;
            let node = planner::plan_node(intent, &observed, store.records());
            if node.plan.is_empty() || node.plan == last {
                return Ok(ReconciledNode {
                    observed,
                    left: node,
                });
            }
            // Recorded before they are written, so that an uninstall can restore them.
            record_sysctls(store, &observed, &node.plan)?;
            execute(kernel, &node.plan)?;
            last = node.plan;
        }
        let observed = self.observe(kernel, intent)?;
        let left = planner::plan_node(intent, &observed, store.records());
        Ok(ReconciledNode { observed, left })
    }

    fn observe(
        &mut self,
        kernel: &mut impl Kernel,
        intent: &NodeIntent,
    ) -> Result<Observed, ObserveError> {
        let sysctls = self.sysctls.clone();
        let observed = kernel.observe(&NodeQuery { sysctls })?;
        let needed = planner::node_sysctls(intent, &observed);
        if needed.is_subset(&self.sysctls) {
            return Ok(observed);
        }
        self.sysctls.clone_from(&needed);
        kernel.observe(&NodeQuery { sysctls: needed })
    }
}

impl NodeState {
    /// Returns the state of the node for the networks of `intent`.
    pub(crate) fn of(intent: &NodeIntent, reconciled: ReconciledNode) -> Self {
        let paces = reconciled.paces();
        let ReconciledNode { observed, left } = reconciled;
        let refused = left.refused;
        let ready = intent
            .networks
            .iter()
            .filter(|network| !refused.contains_key(&network.name))
            .filter_map(|network| {
                let bridge = observed.links.get(&network.bridge)?;
                let ready = ReadyNetwork {
                    network: network.clone(),
                    mtu: planner::network_mtu(network, &observed),
                    mac: bridge.mac,
                };
                Some((network.name.clone(), ready))
            });
        Self {
            ready: ready.collect(),
            uplinks: uplinks(&observed),
            missing_egress: missing_egress(intent, &observed),
            peers: Arc::new(PeersStatus::of(intent, &observed)),
            flow_entries: observed.flow_entries,
            bypass: intent.bypass.is_active(&observed),
            offload: intent.bypass.offloads(&observed),
            holding_rules: planner::holding_rules(&observed),
            holding_unreplied: planner::holding_unreplied(&observed),
            tcx_links: tcx_links(&observed),
            shaper: ShaperStatus {
                mode: intent.shaper,
                chosen: intent.shaper.choose(&observed),
                paces,
                heeds_departure: observed.heeds_departure,
            },
            obstacles: planner::obstacles(&observed),
            pod_sources: PodSources::of(intent, &observed),
            containers: left.containers,
            network_links: network_links(&observed),
            netfilter: observed.netfilter,
            netfilter_base: left.netfilter,
            sockets: observed.socket_hooks,
            refused,
        }
    }
}

/// Returns the highest generation in the tables.
pub(crate) fn highest_generation(entries: &Entries) -> u32 {
    entries
        .values()
        .filter_map(Entry::generation)
        .max()
        .unwrap_or(0)
}

fn tcx_links(observed: &Observed) -> BTreeSet<IfName> {
    observed
        .links
        .iter()
        .filter(|(_, link)| link.hooks.contains(&Hook::FromBusyPod))
        .map(|(name, _)| name.clone())
        .collect()
}

fn network_links(observed: &Observed) -> BTreeSet<IfName> {
    let keys = observed.entries.keys();
    let name = |key: &EntryKey| {
        let EntryKey::Network(LinkRef::Name(name)) = key else {
            return None;
        };
        Some(name.clone())
    };
    keys.filter_map(name).collect()
}

fn missing_egress(intent: &NodeIntent, observed: &Observed) -> Vec<IpAddr> {
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
                xdp_prefilter: observed.xdp_prefilters.contains_key(name),
            })
        })
        .collect()
}
