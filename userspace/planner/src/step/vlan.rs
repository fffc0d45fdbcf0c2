//! Effects on the VLANs of bridges.

use std::fmt;

use model::{IfName, VlanId};

use super::VlanLinkSpec;

/// One effect on a bridge's VLANs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VlanStep {
    /// Let a bridge keep VLANs apart, or take that back; fails on a kernel that cannot.
    Filter {
        /// The bridge.
        bridge: IfName,
        /// Whether it is to.
        on: bool,
    },
    /// Make the node itself a member of a VLAN of a bridge, or take that back.
    Join {
        /// The bridge.
        bridge: IfName,
        /// The VLAN.
        vlan: VlanId,
        /// Whether it is to be one.
        member: bool,
    },
    /// Make the node's end of a VLAN of a bridge; fails when the name is taken by anything else.
    CreateLink(VlanLinkSpec),
    /// Remove such a link that we made.
    DeleteLink {
        /// Interface name.
        name: IfName,
        /// The alias that proves it ours.
        alias: String,
    },
}

impl VlanStep {
    /// What puts things back; what was removed is gone for good.
    pub(super) fn undo(&self) -> Option<Self> {
        match self {
            Self::Filter { bridge, on } => Some(Self::Filter {
                bridge: bridge.clone(),
                on: !on,
            }),
            Self::Join {
                bridge,
                vlan,
                member,
            } => Some(Self::Join {
                bridge: bridge.clone(),
                vlan: *vlan,
                member: !member,
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
                let verb = if *on { "let" } else { "no more let" };
                write!(f, "{verb} {bridge} keep VLANs apart")
            }
            Self::Join {
                bridge,
                vlan,
                member,
            } => {
                let verb = if *member { "add" } else { "remove" };
                write!(f, "{verb} the node as a member of VLAN {vlan} of {bridge}")
            }
            Self::CreateLink(spec) => spec.fmt(f),
            Self::DeleteLink { name, alias } => {
                write!(f, "delete VLAN link {name} if its alias is {alias:?}")
            }
        }
    }
}
