//! Networks: a bridge, its address ranges, and the options of its pods.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::{BridgeOptions, Cidr, IfName, InterfaceAddress, NetworkName, RangeSet, Route, VlanId};

/// How a pod reaches itself through the bridge (kubelet's `--hairpin-mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HairpinMode {
    /// Hairpin flag of each bridge port.
    #[default]
    HairpinVeth,
    /// A promiscuous bridge.
    PromiscuousBridge,
    /// No hairpin: a pod cannot reach itself through the bridge.
    None,
}

/// Error of a text that names no hairpin mode.
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

/// A CNI network as configured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    /// `name` of the CNI configuration.
    pub name: NetworkName,
    /// Interface name of the bridge.
    pub bridge: IfName,
    /// Range sets: a pod gets one address of each.
    pub ranges: Vec<RangeSet>,
    /// Routes of pods; a route without a gateway uses the gateway of its family.
    pub routes: Vec<Route>,
    /// Whether pods get a default route via the gateway of each family, where `routes` has none.
    pub default_route: bool,
    /// MTU in bytes; `None` for kubenet's rule (behaviour K1).
    pub mtu: Option<u32>,
    /// How a pod reaches itself through the bridge.
    pub hairpin: HairpinMode,
    /// Whether flows to the outside are masqueraded with the uplink's address.
    pub masquerade: bool,
    /// Options of the bridge and its ports.
    pub options: BridgeOptions,
}

impl Network {
    /// Returns the gateway of every range, whether the node or another host has the address.
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

    /// Returns the access VLAN of the pods, where the node is their gateway in it.
    pub fn gateway_vlan(&self) -> Option<VlanId> {
        let access = self.options.port.vlans.access;
        access.filter(|_| self.options.gateway)
    }

    /// Returns the link that has the gateway addresses: the bridge, or `<bridge>.<vlan>`; `None`
    /// where that is no valid interface name.
    pub fn gateway_link(&self) -> Option<IfName> {
        match self.gateway_vlan() {
            Some(vlan) => format!("{}.{vlan}", self.bridge).parse().ok(),
            None => Some(self.bridge.clone()),
        }
    }

    /// Returns the subnets of all ranges.
    pub fn subnets(&self) -> BTreeSet<Cidr> {
        self.ranges
            .iter()
            .flat_map(RangeSet::ranges)
            .map(crate::Range::subnet)
            .collect()
    }

    /// Returns the subnets of the first pair of ranges that share addresses.
    pub fn overlap(&self, other: &Self) -> Option<(Cidr, Cidr)> {
        let mut pairs = self
            .ranges
            .iter()
            .flat_map(|a| other.ranges.iter().map(move |b| (a, b)));
        pairs.find_map(|(a, b)| a.overlap(b))
    }
}
