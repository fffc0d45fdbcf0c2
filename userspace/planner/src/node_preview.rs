//! What a node does to packets of pods, without an agent that could say so: before an agent is
//! installed, or while it is stopped.
//!
//! The conditions are those of a running agent. Attachments are not known, and neither are
//! answers of the routing table while the network's bridge does not exist.

use std::collections::BTreeSet;

use model::{IfName, RangeSet};
use steps::{
    CheckFacts, CheckQuery, FORWARD_CHAIN, FilterFamily, ForwardTables, Link, LinkKind, NodeLink,
    Observed,
};

use crate::forwarding::{
    DefaultState, DroppingDefault, ForwardingIntent, ForwardingMode, Probe, plan_forwarding,
};
use crate::node_check::{NodeCondition, check_query, conditions, mtu_of_ports};
use crate::own_links::OwnLinks;
use crate::peers::{PeerProblem, plan_peers};
use crate::uplink::uplinks;
use crate::{NodeIntent, Records};

/// Interface index of a bridge that does not exist; the kernel's are positive `int`s.
const NO_INDEX: u32 = u32::MAX;

/// A node without an agent.
#[derive(Debug)]
pub struct NodePreview<'a> {
    intent: &'a NodeIntent,
    observed: Observed,
    /// Links of networks that an agent would create.
    created: BTreeSet<IfName>,
}

impl<'a> NodePreview<'a> {
    /// Takes the node as it was observed, and adds the bridges that an agent would create.
    pub fn new(intent: &'a NodeIntent, mut observed: Observed) -> Self {
        let mut created = BTreeSet::new();
        for network in intent.networks.iter().filter(|it| !it.ranges.is_empty()) {
            for name in [Some(network.bridge.clone()), network.gateway_link()] {
                let Some(name) = name.filter(|name| !observed.links.contains_key(name)) else {
                    continue;
                };
                let mut bridge = NodeLink::from(Link::plain(NO_INDEX, LinkKind::Bridge));
                bridge.addresses = network.gateways().into_iter().collect();
                bridge.link.mtu = crate::network_mtu(network, &observed);
                observed.links.insert(name.clone(), bridge);
                created.insert(name);
            }
        }
        Self {
            intent,
            observed,
            created,
        }
    }

    /// Returns what to observe for [`NodePreview::conditions`]. Routes to pods of a bridge that
    /// does not exist are not queried: they will be others.
    pub fn query(&self) -> CheckQuery {
        let mut query = check_query(self.intent, &self.observed, &Records::new());
        if !self.created.is_empty() {
            query.routes.clear();
        }
        query
    }

    /// Returns what makes packets of pods die, or will.
    pub fn conditions(&self, facts: &CheckFacts) -> Vec<NodeCondition> {
        let mut found = conditions(self.intent, &self.observed, &Records::new(), facts);
        let bridges: BTreeSet<&IfName> = self.intent.networks.iter().map(|it| &it.bridge).collect();
        found.extend(
            bridges
                .into_iter()
                .filter_map(|bridge| mtu_of_ports(bridge, &self.observed)),
        );
        found
    }

    /// Returns what would prevent routes or tunnels to peers.
    pub fn peer_problems(&self) -> Vec<PeerProblem> {
        plan_peers(self.intent, &self.observed).problems
    }

    /// Returns the links by which packets leave the node.
    pub fn uplinks(&self) -> BTreeSet<IfName> {
        let ours = OwnLinks::of_networks(&self.intent.networks, &self.observed);
        uplinks(&self.intent.uplinks, &self.observed, &ours)
    }

    /// Returns the defaults of filter tables that drop packets of pods now, and what an agent with
    /// this mode would do about each: carry the packets past it, or report why not. Defaults of a
    /// table with rules of an agent are left out.
    pub fn dropping_defaults(
        &self,
        tables: &ForwardTables,
        mode: ForwardingMode,
    ) -> BTreeSet<DroppingDefault> {
        let mut tables = tables.clone();
        tables
            .tables
            .retain(|_, state| !state.rules.contains_key(FORWARD_CHAIN));
        let now: BTreeSet<String> =
            plan_forwarding(&self.forwarding(ForwardingMode::Leave), &tables)
                .defaults
                .into_iter()
                .filter(|default| matches!(default.state, DefaultState::Drops(_)))
                .map(|default| default.what)
                .collect();
        let mut defaults = plan_forwarding(&self.forwarding(mode), &tables).defaults;
        defaults.retain(|default| now.contains(&default.what));
        defaults
    }

    fn forwarding(&self, mode: ForwardingMode) -> ForwardingIntent {
        let outputs = self.uplinks();
        let probes: Vec<Probe> = self
            .intent
            .networks
            .iter()
            .flat_map(|network| {
                let input = network
                    .gateway_link()
                    .unwrap_or_else(|| network.bridge.clone());
                let ranges = network.ranges.iter().flat_map(RangeSet::ranges);
                ranges.map(move |range| (input.clone(), range.first()))
            })
            .map(|(input, source)| {
                Probe::new(FilterFamily::of(source), input, outputs.clone(), source)
            })
            .collect();
        ForwardingIntent {
            mode,
            families: probes.iter().map(|probe| probe.family).collect(),
            probes,
            ..ForwardingIntent::default()
        }
    }
}

#[cfg(test)]
mod tests;
