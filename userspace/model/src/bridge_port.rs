//! What a network demands of the ports of its bridge, besides their addresses.

use std::collections::BTreeSet;
use std::fmt;

use crate::LimitPolicy;

/// A VLAN identifier: 1 to 4094 (IEEE 802.1Q).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanId(u16);

impl VlanId {
    const RANGE: std::ops::RangeInclusive<u16> = 1..=4094;

    /// The identifier, if it is one.
    pub fn new(number: u16) -> Option<Self> {
        Self::RANGE.contains(&number).then_some(Self(number))
    }

    /// The number.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The VLANs of a pod's bridge port. Without any, the port has those that the bridge gives to every port.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortVlans {
    /// The VLAN of what the pod sends and gets without a tag.
    pub access: Option<VlanId>,
    /// VLANs that the pod sends and gets with their tags.
    pub trunk: BTreeSet<VlanId>,
    /// Whether the port stays in the bridge's default VLAN as well.
    pub keeps_default: bool,
}

impl PortVlans {
    /// Whether the port's VLANs are ours to decide.
    pub fn is_managed(&self) -> bool {
        self.access.is_some() || !self.trunk.is_empty()
    }
}

/// Which other pods a pod is kept apart from, by its own address. Published ports lead there all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IngressPolicy {
    /// None.
    #[default]
    Open,
    /// Those of other bridges that have a policy, too.
    SameBridge,
    /// And those of the same bridge that are isolated, too.
    Isolated,
}

/// A text that names no policy.
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

/// What holds for the bridge port of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortOptions {
    /// Whether the bridge keeps it apart from other isolated ports.
    pub isolated: bool,
    /// Its VLANs.
    pub vlans: PortVlans,
    /// Whether the pod may send with addresses that are not its own. Who speaks in several VLANs must.
    pub trusted: bool,
    /// Which other pods are kept from it.
    pub ingress: IngressPolicy,
    /// Whether the pod's end is left down, for whoever gets it to set it up.
    pub left_down: bool,
}

impl PortOptions {
    /// Whether all that the bridge does for the port is to forward.
    pub fn is_plain(&self) -> bool {
        !self.isolated && !self.vlans.is_managed()
    }
}

/// What holds for a network's bridge and its ports, besides its name and its addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BridgeOptions {
    /// Whether the node is the pods' gateway: the bridge, or its VLAN's interface, gets the gateways' addresses.
    pub gateway: bool,
    /// Whether addresses of others on a bridge of others that contradict the gateways are removed.
    pub force_address: bool,
    /// Whether pods make sure that nobody else has their IPv6 addresses.
    pub detects_duplicates: bool,
    /// The pods' ports.
    pub port: PortOptions,
    /// What becomes of the limits of pods.
    pub limits: LimitPolicy,
}

impl Default for BridgeOptions {
    fn default() -> Self {
        Self {
            gateway: true,
            force_address: false,
            detects_duplicates: false,
            port: PortOptions::default(),
            limits: LimitPolicy::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_has_twelve_bits_and_neither_the_first_nor_the_last_number() {
        let numbers = [0, 1, 4094, 4095].map(|number| VlanId::new(number).map(VlanId::get));
        assert_eq!(numbers, [None, Some(1), Some(4094), None]);
    }
}
