//! Options of a network's bridge and its ports: VLANs, isolation, ingress policy.

use std::collections::BTreeSet;
use std::fmt;

use crate::{EgressAddresses, IfName, LimitPolicy};

/// A VLAN identifier: 1 to 4094 (IEEE 802.1Q).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanId(u16);

impl VlanId {
    /// The default VLAN of a bridge and its ports.
    pub const DEFAULT: Self = Self(1);

    const RANGE: std::ops::RangeInclusive<u16> = 1..=4094;

    /// Returns the identifier; `None` outside of 1 to 4094.
    pub fn new(number: u16) -> Option<Self> {
        Self::RANGE.contains(&number).then_some(Self(number))
    }

    /// Returns the number, 1 to 4094.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// VLANs of a pod's bridge port. Without any, the port has the VLANs that the bridge gives to every
/// port.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortVlans {
    /// Configured VLAN of the pod's untagged frames (access VLAN, or native VLAN of a trunk).
    pub access: Option<VlanId>,
    /// VLANs of the pod's tagged frames (trunk).
    pub trunk: BTreeSet<VlanId>,
    /// Whether the port stays in the bridge's default VLAN as well.
    pub keeps_default: bool,
}

impl PortVlans {
    /// Returns the VLAN of untagged frames (PVID): the configured one, or 1 on a trunk without one,
    /// as in the bridge plugin since release 1.8.
    pub fn native(&self) -> Option<VlanId> {
        let default = (!self.trunk.is_empty()).then_some(VlanId::DEFAULT);
        self.access.or(default)
    }

    /// Returns whether this agent configures the port's VLANs.
    pub fn is_managed(&self) -> bool {
        self.access.is_some() || !self.trunk.is_empty()
    }
}

/// Ingress policy of a pod: the pods whose packets to the pod's own address are dropped. Hostports
/// stay reachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IngressPolicy {
    /// No pod's packets are dropped.
    #[default]
    Open,
    /// Packets of pods on other bridges that have a policy, too, are dropped.
    SameBridge,
    /// As `SameBridge`, and packets of isolated pods on the same bridge are dropped.
    Isolated,
}

/// Error of a text that names no ingress policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of open, same-bridge and isolated")]
pub struct UnknownIngressPolicy(pub String);

impl std::str::FromStr for IngressPolicy {
    type Err = UnknownIngressPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownIngressPolicy> {
        match text {
            "open" => Ok(Self::Open),
            "same-bridge" => Ok(Self::SameBridge),
            "isolated" => Ok(Self::Isolated),
            other => Err(UnknownIngressPolicy(other.to_owned())),
        }
    }
}

impl fmt::Display for IngressPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::SameBridge => "same-bridge",
            Self::Isolated => "isolated",
        })
    }
}

/// Which packets may leave a network, and enter it, besides those of its published ports. The node
/// always reaches the pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetworkAccess {
    /// All packets.
    #[default]
    Direct,
    /// Packets of the pods leave, and their replies enter. Nothing else enters from outside the
    /// node or from other networks (`directAccess: false`).
    Published,
    /// No packet leaves or enters (`internal: true`).
    Internal,
}

/// Error of a text that names no access of a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of direct, published and internal")]
pub struct UnknownNetworkAccess(pub String);

impl std::str::FromStr for NetworkAccess {
    type Err = UnknownNetworkAccess;

    fn from_str(text: &str) -> Result<Self, UnknownNetworkAccess> {
        match text {
            "direct" => Ok(Self::Direct),
            "published" => Ok(Self::Published),
            "internal" => Ok(Self::Internal),
            other => Err(UnknownNetworkAccess(other.to_owned())),
        }
    }
}

impl fmt::Display for NetworkAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Published => "published",
            Self::Internal => "internal",
        })
    }
}

impl NetworkAccess {
    /// Returns the access of a network with these settings; an internal network has no direct
    /// access.
    pub fn new(internal: bool, direct_access: bool) -> Self {
        match (internal, direct_access) {
            (true, _) => Self::Internal,
            (false, false) => Self::Published,
            (false, true) => Self::Direct,
        }
    }
}

/// Address families to which a property applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Families {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

impl Families {
    /// Neither family.
    pub const NONE: Self = Self::both(false);

    /// Returns both families, or neither.
    pub const fn both(both: bool) -> Self {
        Self { v4: both, v6: both }
    }

    /// Returns whether a family is one of these.
    pub const fn contains(self, ipv4: bool) -> bool {
        if ipv4 { self.v4 } else { self.v6 }
    }

    /// Returns the families that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self {
            v4: self.v4 && !other.v4,
            v6: self.v6 && !other.v6,
        }
    }
}

/// Options of a pod's bridge port.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortOptions {
    /// Whether the port is isolated from other isolated ports.
    pub isolated: bool,
    /// VLANs of the port.
    pub vlans: PortVlans,
    /// Whether the source address check is off. A pod with trunk VLANs needs that.
    pub trusted: bool,
    /// Ingress policy of the pod.
    pub ingress: IngressPolicy,
    /// Which packets enter and leave the pod's network.
    pub access: NetworkAccess,
    /// Families whose addresses are routed: not masqueraded, and reached from outside by the ports
    /// that are published at the address itself, and by echo requests, also where `access` is
    /// [`NetworkAccess::Published`].
    pub routed: Families,
    /// Whether the pod's end is left down, so that the container itself sets it up.
    pub left_down: bool,
}

impl PortOptions {
    /// Returns whether the bridge only forwards for the port: no isolation, no managed VLANs.
    pub fn is_plain(&self) -> bool {
        !self.isolated && !self.vlans.is_managed()
    }
}

/// Options of a network's bridge and its ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BridgeOptions {
    /// Whether the node is the pods' gateway: the bridge, or its VLAN interface, gets the gateway
    /// addresses.
    pub gateway: bool,
    /// Whether conflicting addresses on a foreign bridge are removed (`forceAddress`).
    pub force_address: bool,
    /// Whether pods perform IPv6 duplicate address detection.
    pub detects_duplicates: bool,
    /// Options of the pods' bridge ports.
    pub port: PortOptions,
    /// Default and maximum rate limits of pods.
    pub limits: LimitPolicy,
    /// Source addresses of masqueraded flows. Those of the agent's default network are a setting of
    /// the agent instead.
    pub egress: EgressAddresses,
    /// Uplinks by which every port of the pods is reached from outside, also where their access is
    /// [`NetworkAccess::Published`].
    pub trusted_links: BTreeSet<IfName>,
}

impl Default for BridgeOptions {
    fn default() -> Self {
        Self {
            gateway: true,
            force_address: false,
            detects_duplicates: false,
            port: PortOptions::default(),
            limits: LimitPolicy::default(),
            egress: EgressAddresses::default(),
            trusted_links: BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// behaviour F8
    #[test]
    fn the_native_vlan_of_a_trunk_is_the_configured_one_or_1() {
        let vlans = |access, trunk: &[u16]| PortVlans {
            access: VlanId::new(access),
            trunk: trunk.iter().copied().filter_map(VlanId::new).collect(),
            keeps_default: false,
        };
        let native = |vlans: PortVlans| vlans.native().map(VlanId::get);
        assert_eq!(native(vlans(0, &[])), None);
        assert_eq!(native(vlans(7, &[])), Some(7));
        assert_eq!(native(vlans(0, &[5])), Some(1));
        assert_eq!(native(vlans(7, &[5])), Some(7));
    }

    #[test]
    fn a_vlan_has_twelve_bits_and_neither_the_first_nor_the_last_number() {
        let numbers = [0, 1, 4094, 4095].map(|number| VlanId::new(number).map(VlanId::get));
        assert_eq!(numbers, [None, Some(1), Some(4094), None]);
    }
}
