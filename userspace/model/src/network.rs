//! A network: a bridge, its addresses and what holds for its pods.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::{BridgeOptions, Cidr, IfName, InterfaceAddress, NetworkName, RangeSet, Route, VlanId};

/// How a pod reaches itself through the bridge (kubelet's `--hairpin-mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HairpinMode {
    /// The hairpin flag of each bridge port.
    #[default]
    HairpinVeth,
    /// A promiscuous bridge.
    PromiscuousBridge,
    /// Not at all.
    None,
}

/// A text that names no hairpin mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of hairpin-veth, promiscuous-bridge and none")]
pub struct UnknownHairpinMode(pub String);

impl HairpinMode {
    const NAMES: [(Self, &'static str); 3] = [
        (Self::HairpinVeth, "hairpin-veth"),
        (Self::PromiscuousBridge, "promiscuous-bridge"),
        (Self::None, "none"),
    ];
}

impl FromStr for HairpinMode {
    type Err = UnknownHairpinMode;

    fn from_str(text: &str) -> Result<Self, UnknownHairpinMode> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == text);
        found.map_or_else(
            || Err(UnknownHairpinMode(text.to_owned())),
            |(mode, _)| Ok(*mode),
        )
    }
}

impl fmt::Display for HairpinMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::NAMES.iter().find(|(mode, _)| mode == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

/// A network as configured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    /// The configuration's name.
    pub name: NetworkName,
    /// The bridge's interface name.
    pub bridge: IfName,
    /// A pod gets one address of each set.
    pub ranges: Vec<RangeSet>,
    /// Routes that pods get; one without a gateway goes by the gateway of its family.
    pub routes: Vec<Route>,
    /// Whether pods get a default route by the gateway of each family, where `routes` has none.
    pub default_route: bool,
    /// MTU in bytes; `None` for kubenet's rule (behaviour K1).
    pub mtu: Option<u32>,
    /// How a pod reaches itself.
    pub hairpin: HairpinMode,
    /// Whether flows to the outside get the uplink's address.
    pub masquerade: bool,
    /// What else holds for the bridge and its ports.
    pub options: BridgeOptions,
}

impl Network {
    /// The gateway of every range, whoever has its address.
    pub fn gateways(&self) -> BTreeSet<InterfaceAddress> {
        let ranges = self.ranges.iter().flat_map(RangeSet::ranges);
        let address = |range: &crate::Range| {
            Some(InterfaceAddress {
                address: range.gateway()?,
                prefix_len: range.subnet().prefix_len(),
            })
        };
        ranges.filter_map(address).collect()
    }

    /// The VLAN that pods are in without knowing it, and the node with them as their gateway.
    pub fn gateway_vlan(&self) -> Option<VlanId> {
        let access = self.options.port.vlans.access;
        access.filter(|_| self.options.gateway)
    }

    /// The link that has the gateways' addresses: the bridge, or `<bridge>.<vlan>`; `None` when that is no name for a
    /// link.
    pub fn gateway_link(&self) -> Option<IfName> {
        match self.gateway_vlan() {
            Some(vlan) => format!("{}.{vlan}", self.bridge).parse().ok(),
            None => Some(self.bridge.clone()),
        }
    }

    /// The subnets that pods of this network have addresses of.
    pub fn subnets(&self) -> BTreeSet<Cidr> {
        self.ranges
            .iter()
            .flat_map(RangeSet::ranges)
            .map(crate::Range::subnet)
            .collect()
    }

    /// Ranges that both networks would give addresses of.
    pub fn overlap(&self, other: &Self) -> Option<(Cidr, Cidr)> {
        let mut pairs = self
            .ranges
            .iter()
            .flat_map(|a| other.ranges.iter().map(move |b| (a, b)));
        pairs.find_map(|(a, b)| a.overlap(b))
    }
}
