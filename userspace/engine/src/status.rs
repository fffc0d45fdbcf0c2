//! The state of the engine as data, which logs, API and tools render. Decides nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use kernel::Kernel;
use model::{IfName, InterfaceAddress, Mac, Network, NetworkName, Range};
use planner::{BypassMode, ShaperMode};

use crate::{Engine, Report};

/// The state after the last change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Networks, the default one first.
    pub networks: Vec<NetworkStatus>,
    /// Links by which packets leave the node.
    pub uplinks: Vec<UplinkStatus>,
    /// How many attachments there are, in any state.
    pub attachments: usize,
    /// How many entries the flow table has room for, and how many were asked for: one that is there keeps its size.
    pub flow_entries: (u32, u32),
    /// Whether packets go past bridge and stack.
    pub bypass: BypassStatus,
    /// How limits are enforced.
    pub shaper: ShaperStatus,
    /// The last comparison of records and kernel.
    pub last_reconcile: Option<Arc<Report>>,
    /// Everything that does not work as it should.
    pub degraded: Vec<Degraded>,
}

/// Whether packets go past bridge and stack, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BypassStatus {
    /// What the configuration asks for.
    pub mode: BypassMode,
    /// Whether they do.
    pub active: bool,
    /// What is against it: rules of others that packets would miss, connections that netfilter would lose sight of.
    pub rules: BTreeSet<String>,
}

/// How limits are enforced, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShaperStatus {
    /// What the configuration asks for.
    pub mode: ShaperMode,
    /// What it comes to.
    pub chosen: ShaperMode,
    /// Whether sockets can be paced: not everywhere can programs be told of connections.
    pub paces: bool,
    /// Whether a link heeds departure times.
    pub heeds_departure: bool,
}

/// A network and what it has left to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkStatus {
    /// The network.
    pub network: Network,
    /// Whether it is the agent's own.
    pub is_default: bool,
    /// MTU in bytes, once the bridge is there.
    pub mtu: Option<u32>,
    /// Ethernet address of the bridge, once it is there.
    pub bridge_mac: Option<Mac>,
    /// Attachments on it, in any state.
    pub attachments: usize,
    /// Its ranges, in the order of the configuration.
    pub pools: Vec<PoolStatus>,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// The range.
    pub range: Range,
    /// Addresses in use.
    pub used: u64,
    /// Addresses that could be in use; [`u64::MAX`] when there are more than that.
    pub total: u64,
}

/// A link by which packets leave the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkStatus {
    /// Interface name.
    pub name: IfName,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses that masquerading may choose.
    pub addresses: Vec<InterfaceAddress>,
    /// Whether our programs are attached to it.
    pub attached: bool,
    /// Whether a guard stands in front of it.
    pub guard: bool,
}

/// One thing that does not work as it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Degraded {
    /// The default network has no range.
    NoPodCidr,
    /// No link leads out of the node.
    NoUplink,
    /// Programs are missing on a link that leads out of the node.
    NotAttached(IfName),
    /// A network's bridge cannot be used.
    NetworkRefused {
        /// The network.
        network: NetworkName,
        /// Why.
        why: String,
    },
    /// A link that was named as one that leads out of the node is not there.
    UplinkMissing(IfName),
    /// A range has few addresses left.
    PoolNearlyExhausted {
        /// The network.
        network: NetworkName,
        /// The range.
        range: Range,
        /// Addresses left.
        left: u64,
    },
    /// A range has no address left.
    PoolExhausted {
        /// The network.
        network: NetworkName,
        /// The range.
        range: Range,
    },
    /// The node does not have an address that pods are to leave with.
    NoEgressAddress(IpAddr),
    /// The last comparison of records and kernel could not put everything right.
    RepairFailed {
        /// What it could not put right.
        subject: String,
        /// Why.
        why: String,
    },
}

impl Degraded {
    /// A word for machines.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoPodCidr => "no-pod-cidr",
            Self::NoUplink => "no-uplink",
            Self::NotAttached(_) => "programs-missing",
            Self::NetworkRefused { .. } => "network-refused",
            Self::UplinkMissing(_) => "uplink-missing",
            Self::PoolNearlyExhausted { .. } => "pool-nearly-exhausted",
            Self::PoolExhausted { .. } => "pool-exhausted",
            Self::NoEgressAddress(_) => "no-egress-address",
            Self::RepairFailed { .. } => "repair-failed",
        }
    }
}

impl fmt::Display for Degraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPodCidr => {
                f.write_str("the default network has no address range: give the agent a pod CIDR")
            }
            Self::NoUplink => f.write_str(
                "no link leads out of the node: pods reach each other and the node only",
            ),
            Self::NotAttached(link) => write!(
                f,
                "programs are missing on {link}: pods are not masqueraded and not published there"
            ),
            Self::NetworkRefused { network, why } => {
                write!(f, "network {network} cannot be used: {why}")
            }
            Self::UplinkMissing(link) => write!(
                f,
                "{link} is named as an uplink and is not there: nothing leaves the node by it"
            ),
            Self::PoolNearlyExhausted {
                network,
                range,
                left,
            } => write!(
                f,
                "network {network} has {left} addresses left between {} and {}",
                range.first(),
                range.last()
            ),
            Self::PoolExhausted { network, range } => write!(
                f,
                "network {network} has no address left between {} and {}",
                range.first(),
                range.last()
            ),
            Self::NoEgressAddress(address) => write!(
                f,
                "no link of the node has {address}, so pods of the default network do not get out"
            ),
            Self::RepairFailed { subject, why } => {
                write!(f, "{subject} could not be put right: {why}")
            }
        }
    }
}

impl<K: Kernel> Engine<K> {
    /// The state after the last change.
    pub fn status(&self) -> Status {
        let leases: Vec<IpAddr> = self.store.leases().into_keys().collect();
        let networks: Vec<NetworkStatus> = self
            .networks()
            .map(|network| self.network_status(network, &leases))
            .collect();
        Status {
            degraded: self.degraded(&networks),
            networks,
            uplinks: self.node.uplinks.clone(),
            attachments: self.store.records().len(),
            flow_entries: (self.node.flow_entries, self.settings.flow_entries),
            bypass: BypassStatus {
                mode: self.settings.bypass,
                active: self.node.bypass,
                rules: self.node.obstacles.clone(),
            },
            shaper: ShaperStatus {
                mode: self.settings.shaper,
                ..self.node.shaper
            },
            last_reconcile: self.last_reconcile.clone(),
        }
    }

    fn network_status(&self, network: &Network, leases: &[IpAddr]) -> NetworkStatus {
        let ready = self.node.ready.get(&network.name);
        let keys = self.store.records().keys();
        let ranges = network.ranges.iter().flat_map(model::RangeSet::ranges);
        // One address is no pool: that it is given is what it is for.
        let pools = ranges.filter(|range| range.first() != range.last());
        NetworkStatus {
            network: network.clone(),
            is_default: network.name == self.settings.default_network.name,
            mtu: ready.map(|ready| ready.mtu),
            bridge_mac: ready.and_then(|ready| ready.mac),
            attachments: keys.filter(|key| key.network == network.name).count(),
            pools: pools.map(|range| pool(*range, leases)).collect(),
        }
    }

    fn degraded(&self, networks: &[NetworkStatus]) -> Vec<Degraded> {
        let mut degraded = Vec::new();
        if self.settings.default_network.ranges.is_empty() {
            degraded.push(Degraded::NoPodCidr);
        }
        if self.node.uplinks.is_empty() {
            degraded.push(Degraded::NoUplink);
        }
        let named = self.settings.uplinks.iter();
        let is_there = |name: &IfName| self.node.uplinks.iter().any(|uplink| uplink.name == *name);
        let missing = named.filter(|name| !is_there(name));
        degraded.extend(missing.cloned().map(Degraded::UplinkMissing));
        let bare = self.node.uplinks.iter().filter(|uplink| !uplink.attached);
        degraded.extend(bare.map(|uplink| Degraded::NotAttached(uplink.name.clone())));
        let refused = self.node.refused.iter();
        degraded.extend(refused.map(|(network, refusal)| Degraded::NetworkRefused {
            network: network.clone(),
            why: refusal.to_string(),
        }));
        let missing = self.node.no_egress.iter().copied();
        degraded.extend(missing.map(Degraded::NoEgressAddress));
        degraded.extend(networks.iter().flat_map(exhausted));
        degraded.extend(self.last_reconcile.iter().flat_map(|report| failed(report)));
        degraded
    }
}

/// Ranges with no address left, and those with few.
fn exhausted(status: &NetworkStatus) -> impl Iterator<Item = Degraded> + '_ {
    status.pools.iter().filter_map(|pool| {
        let (network, range) = (status.network.name.clone(), pool.range);
        let left = pool.total.saturating_sub(pool.used);
        if left == 0 {
            return Some(Degraded::PoolExhausted { network, range });
        }
        // Nine tenths and more are in use.
        (left <= pool.total / 10).then_some(Degraded::PoolNearlyExhausted {
            network,
            range,
            left,
        })
    })
}

fn failed(report: &Report) -> impl Iterator<Item = Degraded> + '_ {
    report
        .items
        .iter()
        .filter(|item| item.outcome == crate::Outcome::Failed)
        .map(|item| Degraded::RepairFailed {
            subject: item.subject.clone(),
            why: item.message.clone(),
        })
}

fn pool(range: Range, leases: &[IpAddr]) -> PoolStatus {
    let used = leases
        .iter()
        .filter(|address| range.offers(**address))
        .count();
    let (first, last) = (number(range.first()), number(range.last()));
    let gateway = range.gateway().map(number);
    let inside = gateway.is_some_and(|gateway| (first..=last).contains(&gateway));
    let gateways = u128::from(inside);
    let total = last.saturating_sub(first).saturating_add(1) - gateways;
    PoolStatus {
        range,
        used: u64::try_from(used).unwrap_or(u64::MAX),
        total: u64::try_from(total).unwrap_or(u64::MAX),
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}
