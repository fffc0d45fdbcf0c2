//! Steps that change the VLAN configuration of bridges.

use std::fmt;

use model::IfName;

use super::spec::VlanLinkSpec;

/// One effect on a bridge's VLANs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanStep {
    /// Turns a bridge's VLAN filtering on or off; fails on a kernel without
    /// `CONFIG_BRIDGE_VLAN_FILTERING`.
    Filter {
        /// Interface name of the bridge.
        bridge: IfName,
        /// Whether filtering is turned on.
        on: bool,
    },
    /// Creates the node's interface in a VLAN of a bridge; fails when another link has the name.
    CreateLink(VlanLinkSpec),
    /// Deletes an interface in a VLAN that this agent created, with its bridge port.
    DeleteLink {
        /// Interface name.
        name: IfName,
        /// Alias that proves the link to be ours; with another alias the step fails.
        alias: String,
    },
}

impl VlanStep {
    /// Returns the step that undoes this one; `None` for a deleted link, which is gone for good.
    pub(super) fn undo(&self) -> Option<Self> {
        match self {
            Self::Filter { bridge, on } => Some(Self::Filter {
                bridge: bridge.clone(),
                on: !on,
            }),
            Self::CreateLink(spec) => Some(Self::DeleteLink {
                name: spec.name.clone(),
                alias: spec.alias.clone(),
            }),
            Self::DeleteLink { .. } => None,
        }
    }
}

impl fmt::Display for VlanStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filter { bridge, on } => {
                let state = if *on { "on" } else { "off" };
                write!(f, "turn VLAN filtering of {bridge} {state}")
            }
            Self::CreateLink(spec) => spec.fmt(f),
            Self::DeleteLink { name, alias } => {
                write!(f, "delete VLAN link {name} if its alias is {alias:?}")
            }
        }
    }
}
