//! Steps: one effect on the kernel each, with its undo step and its text for people.
//!
//! Plain data: the kernel crate executes steps by netlink, files and maps.

use std::collections::BTreeSet;
use std::fmt;

mod hook;
mod name;
mod settings;
mod spec;
mod undo;
mod vlan;

use model::{IfName, InterfaceAddress, InterfaceSettings, Mac, ManagedLink, Netns, PortOptions};

pub use hook::Hook;
pub use spec::{BridgeSpec, PodSpec, VethSpec, VlanLinkSpec};
use undo::{set_sysctl, undo_put, undo_remove, undo_reservation};
pub use vlan::VlanStep;

use crate::write_changes::write_changes;
use crate::{
    Announcement, Entry, EntryKey, ForwardingStep, NetfilterStep, PortLeave, PortReservation,
    RouteChange, SocketHook, SysctlKey, TunnelStep, XdpPrefilterStep,
};

/// One effect on the kernel. Every step is idempotent: where the effect is already there, it
/// succeeds and changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes a sysctl of the host's namespace.
    SetSysctl {
        /// Path of the sysctl.
        key: SysctlKey,
        /// New value.
        value: String,
        /// Value before the step, for undo.
        previous: String,
    },
    /// Creates a bridge. A bridge with this Ethernet address and no alias was left half-made, and
    /// is completed.
    CreateBridge(BridgeSpec),
    /// Deletes a bridge of ours that has no ports.
    DeleteBridge {
        /// Interface name.
        name: IfName,
        /// Alias that proves the bridge to be ours; with another alias the step fails.
        alias: String,
    },
    /// Changes the VLAN configuration of a bridge.
    Vlan(VlanStep),
    /// Sets a link's Ethernet address.
    SetMac {
        /// Interface name.
        link: IfName,
        /// New Ethernet address.
        mac: Mac,
    },
    /// Sets a link's MTU.
    SetMtu {
        /// Interface name.
        link: IfName,
        /// New MTU in bytes.
        mtu: u32,
    },
    /// Sets the MTU of a pod's interface inside its namespace.
    SetPodMtu {
        /// Pod's network namespace.
        netns: Netns,
        /// Interface name in the pod.
        ifname: IfName,
        /// New MTU in bytes.
        mtu: u32,
    },
    /// Sets a pod's loopback up or down.
    SetLoopback {
        /// Pod's network namespace.
        netns: Netns,
        /// Whether it is set up (`true`) or down.
        up: bool,
    },
    /// Changes settings of a pod's interface and sysctls of its namespace.
    TunePod {
        /// Pod's network namespace.
        netns: Netns,
        /// Interface name in the pod.
        ifname: IfName,
        /// New values; absent ones stay unchanged.
        settings: Box<InterfaceSettings>,
        /// Values of the same settings before the step, for undo.
        previous: Box<InterfaceSettings>,
    },
    /// Turns promiscuous mode of a link on or off.
    SetPromiscuous {
        /// Interface name.
        link: IfName,
        /// Whether promiscuous mode is turned on.
        on: bool,
    },
    /// Sets a link up.
    SetUp {
        /// Interface name.
        link: IfName,
    },
    /// Adds an address to a link, without duplicate address detection.
    AddAddress {
        /// Interface name.
        link: IfName,
        /// Address with the prefix length of its subnet.
        address: InterfaceAddress,
    },
    /// Removes an address from a link.
    RemoveAddress {
        /// Interface name.
        link: IfName,
        /// Address with the prefix length of its subnet.
        address: InterfaceAddress,
    },
    /// Creates a veth pair; fails when either name is taken.
    CreateVeth(VethSpec),
    /// Deletes the host's end of a veth, and with it the pod's end; fails for a link with another
    /// alias.
    DeleteVeth {
        /// Host's end of the veth.
        link: ManagedLink,
        /// Alias that proves the link to be ours.
        alias: String,
    },
    /// Adds the host's end of a veth to a bridge, configures the port, and sets it up.
    JoinBridge {
        /// Host's end of the veth.
        link: ManagedLink,
        /// Interface name of the bridge.
        bridge: IfName,
        /// Whether the port is in hairpin mode.
        hairpin: bool,
        /// Isolation, VLANs and the other options of the port.
        options: PortOptions,
    },
    /// Configures the interface inside the pod: addresses, link up, routes.
    SetUpPod(PodSpec),
    /// Waits until duplicate address detection of the pod's IPv6 addresses is finished; fails when
    /// it finds a duplicate.
    AwaitAddresses {
        /// Pod's network namespace.
        netns: Netns,
        /// Interface name in the pod.
        ifname: IfName,
    },
    /// Announces addresses to the neighbours of a pod, from its interface. A failure is logged
    /// only: the neighbours find out by themselves, later.
    Announce(Announcement),
    /// Attaches programs to a link, or replaces attached ones of ours without losing a packet.
    Attach {
        /// Interface name.
        link: IfName,
        /// Programs to attach.
        hooks: BTreeSet<Hook>,
    },
    /// Detaches programs of ours from a link.
    Detach {
        /// Interface name.
        link: IfName,
        /// Programs to detach.
        hooks: BTreeSet<Hook>,
    },
    /// Attaches programs to the node's cgroup, or replaces attached ones of ours without missing a
    /// socket.
    AttachSocketHooks {
        /// Programs to attach.
        hooks: BTreeSet<SocketHook>,
    },
    /// Detaches programs of ours from the node's cgroup.
    DetachSocketHooks {
        /// Programs to detach.
        hooks: BTreeSet<SocketHook>,
    },
    /// Reserves a host port, so that no other process can bind it; fails when another process has
    /// bound it.
    ReservePort {
        /// Address, port and protocol.
        reservation: PortReservation,
        /// Generation of the attachment that owns the port.
        generation: u32,
    },
    /// Leaves a host port to a container runtime that binds it itself.
    LeavePort(PortLeave),
    /// Releases a host port, unless another attachment owns it.
    ReleasePort {
        /// Address, port and protocol.
        reservation: PortReservation,
        /// Generation of the attachment that owned the port.
        generation: u32,
    },
    /// Writes an entry of a datapath table.
    PutEntry {
        /// Table and key.
        key: EntryKey,
        /// New value.
        entry: Entry,
        /// Value before the step, for undo; `None` where there was no entry.
        previous: Option<Entry>,
    },
    /// Removes an entry of a datapath table.
    RemoveEntry {
        /// Table and key.
        key: EntryKey,
        /// Value before the step, for undo.
        previous: Entry,
    },
    /// Writes or removes our netfilter table.
    Netfilter(Box<NetfilterStep>),
    /// Attaches or detaches the XDP prefilter of an uplink.
    XdpPrefilter(XdpPrefilterStep),
    /// Changes the forwarding rules of a filter table.
    Forwarding(ForwardingStep),
    /// Changes routes to peers. A change that fails stops none of the others, and all that
    /// succeeded stay: the next observation shows what is left to do.
    ChangeRoutes(Vec<RouteChange>),
    /// Creates, changes or deletes tunnels to other nodes.
    Tunnel(TunnelStep),
    /// Removes flows that have timed out or whose pod is gone from the flow table.
    Sweep,
}

impl Step {
    /// Returns the step that restores the state before this one; `None` where nothing needs to be
    /// or can be restored.
    ///
    /// Exception: a row of the pod table is not removed again. Flows may still carry its
    /// generation, so the row becomes a free row that keeps the generation.
    #[expect(
        clippy::match_same_arms,
        reason = "each group of steps without undo has its own reason"
    )]
    pub fn undo(&self) -> Option<Self> {
        match self {
            Self::SetSysctl {
                key,
                value,
                previous,
            } => Some(set_sysctl(key, previous, value)),
            Self::CreateBridge(spec) => Some(Self::DeleteBridge {
                name: spec.name.clone(),
                alias: spec.alias.clone(),
            }),
            Self::Vlan(step) => step.undo().map(Self::Vlan),
            Self::Tunnel(step) => step.undo().map(Self::Tunnel),
            Self::XdpPrefilter(step) => Some(Self::XdpPrefilter(step.undo())),
            Self::Netfilter(step) => Some(Self::Netfilter(Box::new(step.undo()))),
            Self::AddAddress { link, address } => Some(Self::RemoveAddress {
                link: link.clone(),
                address: *address,
            }),
            Self::RemoveAddress { link, address } => Some(Self::AddAddress {
                link: link.clone(),
                address: *address,
            }),
            Self::SetPromiscuous { link, on } => Some(promiscuous(link, !on)),
            Self::CreateVeth(spec) => Some(Self::DeleteVeth {
                link: spec.host.clone(),
                alias: spec.alias.clone(),
            }),
            Self::Attach { link, hooks } => Some(detach(link, hooks)),
            Self::Detach { link, hooks } => Some(attach(link, hooks)),
            Self::ReservePort { .. } | Self::ReleasePort { .. } => undo_reservation(self),
            Self::LeavePort(leave) => Some(Self::ReleasePort {
                reservation: leave.reservation,
                generation: leave.generation,
            }),
            Self::PutEntry {
                key,
                entry,
                previous,
            } => Some(undo_put(key, entry, previous.as_ref())),
            Self::RemoveEntry { key, previous } => undo_remove(key, previous),
            Self::TunePod { .. } => self.restored_settings(),
            Self::ChangeRoutes(changes) => {
                let back = changes.iter().rev().map(RouteChange::undo);
                Some(Self::ChangeRoutes(back.collect()))
            }
            // Undone with the link that they configure; still right where that link stays.
            Self::SetMac { .. }
            | Self::SetMtu { .. }
            | Self::SetPodMtu { .. }
            | Self::SetLoopback { .. }
            | Self::SetUp { .. }
            | Self::JoinBridge { .. }
            | Self::SetUpPod(_) => None,
            // Wait or send only, and leave no state.
            Self::AwaitAddresses { .. } | Self::Announce(_) => None,
            // Shared with other attachments, which may rely on the hooks: they stay as they are.
            Self::AttachSocketHooks { .. } | Self::DetachSocketHooks { .. } => None,
            // Cannot be restored: gone for good, or planned again.
            Self::DeleteBridge { .. } | Self::DeleteVeth { .. } => None,
            Self::Sweep | Self::Forwarding(_) => None,
        }
    }
}

impl Step {
    /// Returns the key of the table entry that the step writes or removes.
    pub fn key(&self) -> Option<&EntryKey> {
        if let Self::PutEntry { key, .. } | Self::RemoveEntry { key, .. } = self {
            Some(key)
        } else {
            None
        }
    }

    /// Returns whether the step publishes a host port.
    pub fn publishes(&self) -> bool {
        matches!(
            self,
            Self::PutEntry {
                key: EntryKey::Hostport { .. },
                ..
            }
        )
    }

    /// Returns the link and the address that the step adds to it.
    pub fn added_address(&self) -> Option<(&IfName, InterfaceAddress)> {
        if let Self::AddAddress { link, address } = self {
            Some((link, *address))
        } else {
            None
        }
    }

    /// Returns the link and the address that the step removes from it.
    pub fn removed_address(&self) -> Option<(&IfName, InterfaceAddress)> {
        if let Self::RemoveAddress { link, address } = self {
            Some((link, *address))
        } else {
            None
        }
    }
}

impl fmt::Display for Step {
    /// Writes one line for people: dry runs and logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetSysctl {
                key,
                value,
                previous,
            } => write!(f, "set sysctl {key} to {value} (now {previous})"),
            Self::CreateBridge(spec) => spec.fmt(f),
            Self::DeleteBridge { name, alias } => {
                write!(f, "delete bridge {name} if its alias is {alias:?}")
            }
            Self::Vlan(step) => step.fmt(f),
            Self::Netfilter(step) => step.fmt(f),
            Self::SetMac { link, mac } => write!(f, "set the MAC address of {link} to {mac}"),
            Self::SetMtu { link, mtu } => write!(f, "set the MTU of {link} to {mtu}"),
            Self::SetPodMtu { .. }
            | Self::SetLoopback { .. }
            | Self::TunePod { .. }
            | Self::AwaitAddresses { .. } => self.write_inside(f),
            Self::SetPromiscuous { link, on } => write_promiscuous(link, *on, f),
            Self::SetUp { link } => write!(f, "set {link} up"),
            Self::AddAddress { link, address } => write!(f, "add address {address} to {link}"),
            Self::RemoveAddress { link, address } => {
                write!(f, "remove address {address} from {link}")
            }
            Self::CreateVeth(spec) => spec.fmt(f),
            Self::DeleteVeth { link, alias } => {
                write!(f, "delete veth {link} if its alias is {alias:?}")
            }
            Self::JoinBridge {
                link,
                bridge,
                hairpin,
                options,
            } => {
                write!(f, "make {link} a port of {bridge} ")?;
                spec::write_port(*hairpin, options, f)
            }
            Self::SetUpPod(spec) => spec.fmt(f),
            Self::Announce(announcement) => announcement.fmt(f),
            Self::Attach { link, hooks } => write!(f, "attach {} to {link}", spec::list(hooks)),
            Self::Detach { link, hooks } => write!(f, "detach {} from {link}", spec::list(hooks)),
            Self::AttachSocketHooks { hooks } => {
                write!(f, "attach {} to the cgroup", spec::list(hooks))
            }
            Self::DetachSocketHooks { hooks } => {
                write!(f, "detach {} from the cgroup", spec::list(hooks))
            }
            Self::XdpPrefilter(step) => step.fmt(f),
            Self::ReservePort { reservation, .. } => write!(f, "reserve port {reservation}"),
            Self::LeavePort(leave) => leave.fmt(f),
            Self::ReleasePort { reservation, .. } => write!(f, "release port {reservation}"),
            Self::PutEntry { key, entry, .. } => write!(f, "write {key}: {entry}"),
            Self::RemoveEntry { key, .. } => write!(f, "remove {key}"),
            Self::ChangeRoutes(changes) => write_changes("routes to peers", changes, f),
            Self::Tunnel(step) => step.fmt(f),
            Self::Sweep => f.write_str("remove ended flows"),
            Self::Forwarding(step) => step.fmt(f),
        }
    }
}

fn attach(link: &IfName, hooks: &BTreeSet<Hook>) -> Step {
    let (link, hooks) = (link.clone(), hooks.clone());
    Step::Attach { link, hooks }
}

fn detach(link: &IfName, hooks: &BTreeSet<Hook>) -> Step {
    let (link, hooks) = (link.clone(), hooks.clone());
    Step::Detach { link, hooks }
}

fn write_promiscuous(link: &IfName, on: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let state = if on { "on" } else { "off" };
    write!(f, "turn promiscuous mode of {link} {state}")
}

fn promiscuous(link: &IfName, on: bool) -> Step {
    let link = link.clone();
    Step::SetPromiscuous { link, on }
}

#[cfg(test)]
mod tests;
