//! Desired state of the filter tables, from the networks and attachments of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{Cidr, IfName, Network};
use steps::{AcceptRule, EntryKey, FilterFamily, FilterTable, LinkRef, Observed};

use super::{ForwardingMode, Probe, accept_rules};
use crate::alias::is_our_alias;
use crate::peers::arrivals;
use crate::prefix::covers;
use crate::{NodeIntent, Records};

/// Desired state of the filter tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardingIntent {
    /// Whether dropping defaults are passed by.
    pub mode: ForwardingMode,
    /// Accept rules, see [`accept_rules`].
    pub rules: Vec<AcceptRule>,
    /// Administrator's chains of the `firewall` plugin, by family.
    pub admin_chains: BTreeSet<(FilterFamily, String)>,
    /// Chains that earlier steps have created; they are deleted when they are empty and no longer
    /// needed.
    pub created: BTreeSet<(FilterTable, String)>,
    /// Tables that have refused our rules, with the error: they are left and reported.
    pub refused: BTreeMap<FilterTable, String>,
    /// Address families that pods have: defaults of other families are not reported.
    pub families: BTreeSet<FilterFamily>,
    /// Packet of a pod to the world, for each family.
    pub probes: Vec<Probe>,
}

/// Interface names and prefixes of pods, for the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSources {
    /// Bridges and VLAN interfaces of ours.
    pub links: BTreeSet<IfName>,
    /// Prefixes whose hosts reach pods directly, and the link to the pods.
    pub direct: BTreeSet<(Cidr, IfName)>,
    /// Links by which packets from the pods of peers arrive, with their source prefix; `None` for
    /// a tunnel. Prefixes within those of [`Self::direct`] are left out.
    pub peers: BTreeSet<(IfName, Option<Cidr>)>,
    /// First packet of a pod to the world, for each network and family.
    pub probes: Vec<Probe>,
}

impl PodSources {
    /// Returns the links, prefixes and families of the pods of a node.
    pub fn of(node: &NodeIntent, observed: &Observed) -> Self {
        let ours = |name: &IfName| {
            let link = observed.links.get(name);
            link.is_some_and(|link| is_our_alias(link.alias.as_deref()))
        };
        let links: BTreeSet<IfName> = node
            .networks
            .iter()
            .flat_map(|network| [Some(network.bridge.clone()), network.gateway_link()])
            .flatten()
            .filter(ours)
            .collect();
        // A prefix of all addresses names no hosts of the cluster.
        let of_hosts = |prefix: &&Cidr| prefix.prefix_len() > 0;
        let prefixes: Vec<&Cidr> = node.non_masquerade.iter().filter(of_hosts).collect();
        let direct = links.iter().flat_map(|link| {
            let prefixes = prefixes.iter();
            prefixes.map(move |prefix| (**prefix, link.clone()))
        });
        let mut peers = arrivals(node, observed);
        peers.retain(|(_, source)| {
            let is_within = |source: &Cidr| prefixes.iter().any(|whole| covers(whole, source));
            !source.as_ref().is_some_and(is_within)
        });
        Self {
            direct: direct.collect(),
            peers,
            probes: probes(&node.networks, observed),
            links: links.clone(),
        }
    }
}

impl ForwardingIntent {
    /// Returns the desired state of the filter tables. `firewalled` are addresses of interfaces of
    /// other plugins with `firewall` in their configuration.
    pub fn new(
        mode: ForwardingMode,
        sources: &PodSources,
        records: &Records,
        firewalled: &BTreeSet<IpAddr>,
        admin_chains: BTreeSet<(FilterFamily, String)>,
    ) -> Self {
        let attachments = records.values().map(|record| &record.attachment);
        // The rules for interfaces of other plugins are those of `firewall`, if it is there.
        let own = attachments.filter(|own| own.adopted.is_none() || !own.port_mappings.is_empty());
        let addresses = own
            .flat_map(|own| &own.addresses)
            .map(|one| one.address.address)
            .chain(firewalled.iter().copied());
        let probed = sources.probes.iter().map(|probe| probe.family);
        Self {
            mode,
            rules: accept_rules(sources, records, firewalled),
            admin_chains,
            created: BTreeSet::new(),
            refused: BTreeMap::new(),
            families: probed.chain(addresses.map(FilterFamily::of)).collect(),
            probes: sources.probes.clone(),
        }
    }
}

fn probes(networks: &[Network], observed: &Observed) -> Vec<Probe> {
    let uplinks = observed.entries.keys().filter_map(|key| {
        if let EntryKey::Uplink(LinkRef::Name(name)) = key {
            Some(name.clone())
        } else {
            None
        }
    });
    let outputs: BTreeSet<IfName> = uplinks.collect();
    let of = |network: &Network| {
        let input = network
            .gateway_link()
            .unwrap_or_else(|| network.bridge.clone());
        let outputs = outputs.clone();
        let ranges: Vec<_> = network
            .ranges
            .iter()
            .flat_map(model::RangeSet::ranges)
            .copied()
            .collect();
        ranges.into_iter().map(move |range| {
            let family = FilterFamily::of(range.first());
            Probe::new(family, input.clone(), outputs.clone(), range.first())
        })
    };
    networks.iter().flat_map(of).collect()
}
