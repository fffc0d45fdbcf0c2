//! Status of the engine as data, which logs, API and tools render. Decides nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use kernel::Kernel;
use model::{IfName, InterfaceAddress, Mac, Network, NetworkName, Range};
use planner::{BypassMode, ContainerLinks, ShaperMode};

use crate::{Engine, Report};

/// Status after the last finished request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Networks, the default one first.
    pub networks: Vec<NetworkStatus>,
    /// Uplinks of the node.
    pub uplinks: Vec<UplinkStatus>,
    /// Links that lead to containers of other software.
    pub containers: ContainerLinks,
    /// Number of attachments, in any state.
    pub attachments: usize,
    /// Capacity of the flow table in entries: actual and configured. A pinned table keeps its
    /// capacity.
    pub flow_entries: (u32, u32),
    /// State of the netfilter bypass.
    pub bypass: BypassStatus,
    /// How bandwidth limits are enforced.
    pub shaper: ShaperStatus,
    /// Report of the last reconciliation.
    pub last_reconcile: Option<Arc<Report>>,
    /// Active degradations.
    pub degraded: Vec<Degraded>,
}

impl Status {
    /// Returns whether containers of other software have addresses of this network.
    pub fn shares_addresses(&self, network: &NetworkName) -> bool {
        let mut overlaps = self.containers.overlaps.iter();
        overlaps.any(|overlap| overlap.network == *network)
    }
}

/// Whether packets bypass the bridge and netfilter, and why not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BypassStatus {
    /// Configured mode.
    pub mode: BypassMode,
    /// Whether packets bypass the bridge and netfilter.
    pub active: bool,
    /// Reasons against the bypass: foreign rules that packets would miss, and connections that
    /// netfilter tracks.
    pub rules: BTreeSet<String>,
}

/// How bandwidth limits are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShaperStatus {
    /// Configured mode.
    pub mode: ShaperMode,
    /// Mode that the kernel supports and that is in effect.
    pub chosen: ShaperMode,
    /// Whether TCP sockets are paced. Needs a cgroup to which socket programs can be attached.
    pub paces: bool,
    /// Whether a link's queueing discipline honours departure times (`fq`).
    pub heeds_departure: bool,
}

/// Network and the use of its address ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkStatus {
    /// Definition of the network.
    pub network: Network,
    /// Whether it is the agent's default network.
    pub is_default: bool,
    /// MTU in bytes; `None` until the bridge is configured.
    pub mtu: Option<u32>,
    /// MAC address of the bridge; `None` until the bridge is configured.
    pub bridge_mac: Option<Mac>,
    /// Number of attachments to the network, in any state.
    pub attachments: usize,
    /// Use of its ranges, in the order of the configuration.
    pub pools: Vec<PoolStatus>,
}

/// Use of an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStatus {
    /// First and last address, and the gateway.
    pub range: Range,
    /// Number of allocated addresses.
    pub used: u64,
    /// Number of addresses without the gateway; [`u64::MAX`] if there are more.
    pub total: u64,
}

/// Uplink of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkStatus {
    /// Interface name.
    pub name: IfName,
    /// MTU in bytes.
    pub mtu: u32,
    /// Addresses that masquerading may use as SNAT source.
    pub addresses: Vec<InterfaceAddress>,
    /// Whether both uplink programs are attached.
    pub attached: bool,
    /// Whether the XDP prefilter is attached.
    pub xdp_prefilter: bool,
}

/// Degradation: one function that does not work on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Degraded {
    /// The default network has no range.
    NoPodCidr,
    /// The node has no uplink.
    NoUplink,
    /// Programs are missing on an uplink.
    ProgramsMissing(IfName),
    /// The bridge of a network is refused.
    NetworkRefused {
        /// The network.
        network: NetworkName,
        /// The refusal.
        why: String,
    },
    /// A configured uplink does not exist.
    UplinkMissing(IfName),
    /// At most a tenth of the addresses of a range are free.
    PoolNearlyExhausted {
        /// The network.
        network: NetworkName,
        /// The range.
        range: Range,
        /// Number of free addresses.
        left: u64,
    },
    /// No address of a range is free.
    PoolExhausted {
        /// The network.
        network: NetworkName,
        /// The range.
        range: Range,
    },
    /// No link of the node has a configured egress address.
    NoEgressAddress(IpAddr),
    /// A repair of the last reconciliation failed.
    RepairFailed {
        /// Attachment key, link name, `tables` or `node`.
        subject: String,
        /// Difference and error.
        why: String,
    },
}

impl Degraded {
    /// Returns the reason word of the API, such as `no-uplink`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoPodCidr => "no-pod-cidr",
            Self::NoUplink => "no-uplink",
            Self::ProgramsMissing(_) => "programs-missing",
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
            Self::NoUplink => {
                f.write_str("the node has no uplink: pods reach only each other and the node")
            }
            Self::ProgramsMissing(link) => write!(
                f,
                "BPF programs are missing on uplink {link}: no masquerading and no hostports there"
            ),
            Self::NetworkRefused { network, why } => {
                write!(f, "network {network} cannot be used: {why}")
            }
            Self::UplinkMissing(link) => write!(
                f,
                "configured uplink {link} does not exist: no pod traffic leaves the node through it"
            ),
            Self::PoolNearlyExhausted {
                network,
                range,
                left,
            } => write!(
                f,
                "network {network} has {left} free addresses between {} and {}",
                range.first(),
                range.last()
            ),
            Self::PoolExhausted { network, range } => write!(
                f,
                "network {network} has no free address between {} and {}",
                range.first(),
                range.last()
            ),
            Self::NoEgressAddress(address) => write!(
                f,
                "no link of the node has the egress address {address}: pods of the default network cannot send outside the node"
            ),
            Self::RepairFailed { subject, why } => {
                write!(f, "repair of {subject} failed: {why}")
            }
        }
    }
}

impl<K: Kernel> Engine<K> {
    /// Returns the status.
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
            containers: self.node.containers.clone(),
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
        // A range of one address is not reported: it is exhausted whenever it is used.
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
        degraded.extend(bare.map(|uplink| Degraded::ProgramsMissing(uplink.name.clone())));
        let refused = self.node.refused.iter();
        degraded.extend(refused.map(|(network, refusal)| Degraded::NetworkRefused {
            network: network.clone(),
            why: refusal.to_string(),
        }));
        let missing = self.node.missing_egress.iter().copied();
        degraded.extend(missing.map(Degraded::NoEgressAddress));
        degraded.extend(networks.iter().flat_map(exhausted));
        degraded.extend(self.last_reconcile.iter().flat_map(|report| failed(report)));
        degraded
    }
}

/// Returns degradations for ranges with no free address, and for those with few.
fn exhausted(status: &NetworkStatus) -> impl Iterator<Item = Degraded> + '_ {
    status.pools.iter().filter_map(|pool| {
        let (network, range) = (status.network.name.clone(), pool.range);
        let left = pool.total.saturating_sub(pool.used);
        if left == 0 {
            return Some(Degraded::PoolExhausted { network, range });
        }
        // At least nine tenths are in use.
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
