//! One effect on the kernel, what undoes it, and how it reads.
//!
//! Knows nothing of how it is done: no netlink, no file, no map.

use std::collections::BTreeSet;
use std::fmt;

mod hook;
mod spec;
mod vlan;

use model::{IfName, InterfaceAddress, InterfaceSettings, Mac, ManagedLink, Netns, PortOptions};

pub use hook::Hook;
pub use spec::{BridgeSpec, PodSpec, VethSpec, VlanLinkSpec};
pub use vlan::VlanStep;

use crate::{Claim, Entry, EntryKey, GuardStep, SocketHook};

/// A sysctl as a path below `/proc/sys`, for example `net/ipv4/ip_forward`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SysctlKey(pub String);

impl fmt::Display for SysctlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One effect. Every step is idempotent: executed on a kernel that already has it, it succeeds and changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write a sysctl of the host's namespace.
    SetSysctl {
        /// Which.
        key: SysctlKey,
        /// New value.
        value: String,
        /// Value before, for undoing.
        previous: String,
    },
    /// Make a bridge; one with this Ethernet address and no alias is half-made, and is finished.
    CreateBridge(BridgeSpec),
    /// Remove a bridge that we made and that has no port.
    DeleteBridge {
        /// Interface name.
        name: IfName,
        /// The alias that proves it ours.
        alias: String,
    },
    /// Something about VLANs.
    Vlan(VlanStep),
    /// Give a link another Ethernet address.
    SetMac {
        /// The link.
        link: IfName,
        /// New address.
        mac: Mac,
    },
    /// Give a link another MTU.
    SetMtu {
        /// The link.
        link: IfName,
        /// New MTU in bytes.
        mtu: u32,
    },
    /// Give the interface inside of a pod another MTU.
    SetPodMtu {
        /// The pod's namespace.
        netns: Netns,
        /// The pod's interface.
        ifname: IfName,
        /// New MTU in bytes.
        mtu: u32,
    },
    /// Set the loopback inside of a pod up or down.
    SetLoopback {
        /// The pod's namespace.
        netns: Netns,
        /// Whether it is to be up.
        up: bool,
    },
    /// Change settings of the interface inside of a pod, and sysctls around it.
    TunePod {
        /// The pod's namespace.
        netns: Netns,
        /// The pod's interface.
        ifname: IfName,
        /// New settings.
        settings: Box<InterfaceSettings>,
        /// The same before, for undoing.
        previous: Box<InterfaceSettings>,
    },
    /// Make a link promiscuous, or take that back.
    SetPromiscuous {
        /// The link.
        link: IfName,
        /// Whether it is to be promiscuous.
        on: bool,
    },
    /// Set a link up.
    SetUp {
        /// The link.
        link: IfName,
    },
    /// Add an address, without duplicate address detection.
    AddAddress {
        /// The link.
        link: IfName,
        /// The address.
        address: InterfaceAddress,
    },
    /// Remove an address.
    RemoveAddress {
        /// The link.
        link: IfName,
        /// The address.
        address: InterfaceAddress,
    },
    /// Make a veth pair; fails when either name is taken.
    CreateVeth(VethSpec),
    /// Remove the host's end of a veth, and with it the pod's; refuses a link whose alias is another.
    DeleteVeth {
        /// The host's end.
        link: ManagedLink,
        /// The alias that proves it ours.
        alias: String,
    },
    /// Make the host's end a port of a bridge, set what holds for the port, and set it up.
    JoinBridge {
        /// The host's end.
        link: ManagedLink,
        /// The bridge.
        bridge: IfName,
        /// Whether the bridge sends frames back by this port.
        hairpin: bool,
        /// What else holds for the port.
        options: PortOptions,
    },
    /// Set up the inside of the pod.
    SetUpPod(PodSpec),
    /// Wait until IPv6 is sure that nobody else has the pod's addresses; fails when somebody has.
    AwaitAddresses {
        /// The pod's namespace.
        netns: Netns,
        /// The pod's interface.
        ifname: IfName,
    },
    /// Attach programs to a link, or replace those of ours that are attached, without losing a packet.
    Attach {
        /// The link.
        link: IfName,
        /// Which programs.
        hooks: BTreeSet<Hook>,
    },
    /// Detach programs of ours from a link.
    Detach {
        /// The link.
        link: IfName,
        /// Which programs.
        hooks: BTreeSet<Hook>,
    },
    /// Attach programs to the node's cgroup, or replace those of ours that are attached, without missing a socket.
    AttachSockets {
        /// Which programs.
        hooks: BTreeSet<SocketHook>,
    },
    /// Detach programs of ours from the node's cgroup.
    DetachSockets {
        /// Which programs.
        hooks: BTreeSet<SocketHook>,
    },
    /// Hold a port of the node, so that nobody else can serve it; fails when someone does.
    HoldPort {
        /// The port.
        claim: Claim,
        /// Generation of the attachment that it is held for.
        generation: u32,
    },
    /// Let go of a port of the node, unless it is held for another attachment.
    ReleasePort {
        /// The port.
        claim: Claim,
        /// Generation of the attachment that it was held for.
        generation: u32,
    },
    /// Write a table entry.
    PutEntry {
        /// Which.
        key: EntryKey,
        /// What.
        entry: Entry,
        /// What it held before, for undoing.
        previous: Option<Entry>,
    },
    /// Remove a table entry.
    RemoveEntry {
        /// Which.
        key: EntryKey,
        /// What it held, for undoing.
        previous: Entry,
    },
    /// Something about guards.
    Guard(GuardStep),
    /// Forget flows that have timed out or whose pod is gone.
    Sweep,
}

impl Step {
    /// What puts things back as they were; `None` where nothing needs to, or nothing can.
    ///
    /// A row of the pod table is the exception to "as they were": a generation that has been used once may live on
    /// in flows, so the row becomes a free one that remembers it.
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
            Self::Guard(step) => Some(Self::Guard(step.undo())),
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
            Self::Attach { link, hooks } => Some(Self::Detach {
                link: link.clone(),
                hooks: hooks.clone(),
            }),
            Self::Detach { link, hooks } => Some(Self::Attach {
                link: link.clone(),
                hooks: hooks.clone(),
            }),
            &Self::HoldPort { claim, generation } => Some(Self::ReleasePort { claim, generation }),
            &Self::ReleasePort { claim, generation } => Some(Self::HoldPort { claim, generation }),
            Self::PutEntry {
                key,
                entry,
                previous,
            } => Some(undo_put(key, entry, previous.as_ref())),
            Self::RemoveEntry { key, previous } => undo_remove(key, previous),
            Self::TunePod { .. } => self.tuned_back(),
            // The first six go when what they were done to is undone, and are right on what stays; others rely on what
            // sockets are asked by; what the rest removed is gone for good.
            Self::SetMac { .. }
            | Self::SetMtu { .. }
            | Self::SetPodMtu { .. }
            | Self::SetLoopback { .. }
            | Self::SetUp { .. }
            | Self::JoinBridge { .. }
            | Self::SetUpPod(_)
            | Self::AwaitAddresses { .. }
            | Self::AttachSockets { .. }
            | Self::DetachSockets { .. }
            | Self::DeleteBridge { .. }
            | Self::DeleteVeth { .. }
            | Self::Sweep => None,
        }
    }
}

impl Step {
    fn tuned_back(&self) -> Option<Self> {
        let Self::TunePod {
            netns,
            ifname,
            settings,
            previous,
        } = self
        else {
            return None;
        };
        Some(Self::TunePod {
            netns: netns.clone(),
            ifname: ifname.clone(),
            settings: previous.clone(),
            previous: settings.clone(),
        })
    }

    /// The table entry that the step writes or removes.
    pub(crate) fn key(&self) -> Option<&EntryKey> {
        if let Self::PutEntry { key, .. } | Self::RemoveEntry { key, .. } = self {
            Some(key)
        } else {
            None
        }
    }

    /// Whether the step publishes a port of the node.
    pub(crate) fn publishes(&self) -> bool {
        matches!(
            self,
            Self::PutEntry {
                key: EntryKey::Hostport { .. },
                ..
            }
        )
    }

    /// The link that gains an address by the step, and the address.
    pub(crate) fn added_address(&self) -> Option<(&IfName, InterfaceAddress)> {
        if let Self::AddAddress { link, address } = self {
            Some((link, *address))
        } else {
            None
        }
    }

    /// The link that loses an address by the step, and the address.
    pub(crate) fn removed_address(&self) -> Option<(&IfName, InterfaceAddress)> {
        if let Self::RemoveAddress { link, address } = self {
            Some((link, *address))
        } else {
            None
        }
    }
}

fn set_sysctl(key: &SysctlKey, value: &str, previous: &str) -> Step {
    Step::SetSysctl {
        key: key.clone(),
        value: value.to_owned(),
        previous: previous.to_owned(),
    }
}

fn undo_put(key: &EntryKey, entry: &Entry, previous: Option<&Entry>) -> Step {
    let restored = match (entry, previous) {
        (Entry::Pod { generation, .. }, None | Some(Entry::FreePod { .. })) => {
            Some(Entry::FreePod {
                generation: *generation,
            })
        }
        (_, previous) => previous.filter(|entry| !entry.speaks_of_gone()).cloned(),
    };
    match restored {
        Some(restored) => Step::PutEntry {
            key: key.clone(),
            entry: restored,
            previous: Some(entry.clone()),
        },
        None => Step::RemoveEntry {
            key: key.clone(),
            previous: entry.clone(),
        },
    }
}

fn undo_remove(key: &EntryKey, previous: &Entry) -> Option<Step> {
    let gone = key.speaks_of_gone() || previous.speaks_of_gone();
    (!gone).then(|| Step::PutEntry {
        key: key.clone(),
        entry: previous.clone(),
        previous: None,
    })
}

impl fmt::Display for Step {
    /// One line, for people: dry runs and logs.
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
            Self::SetMac { link, mac } => write!(f, "set the MAC address of {link} to {mac}"),
            Self::SetMtu { link, mtu } => write!(f, "set the MTU of {link} to {mtu}"),
            Self::SetPodMtu { .. } | Self::SetLoopback { .. } | Self::TunePod { .. } => {
                self.write_inside(f)
            }
            Self::SetPromiscuous { link, on: true } => write!(f, "make {link} promiscuous"),
            Self::SetPromiscuous { link, on: false } => {
                write!(f, "make {link} promiscuous no more")
            }
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
            Self::AwaitAddresses { netns, ifname } => write!(
                f,
                "wait until nobody else has the addresses of {ifname} in {}",
                netns.path
            ),
            Self::Attach { link, hooks } => write!(f, "attach {} to {link}", list(hooks)),
            Self::Detach { link, hooks } => write!(f, "detach {} from {link}", list(hooks)),
            Self::AttachSockets { hooks } => write!(f, "attach {} to the cgroup", list(hooks)),
            Self::DetachSockets { hooks } => write!(f, "detach {} from the cgroup", list(hooks)),
            Self::Guard(step) => step.fmt(f),
            Self::HoldPort { claim, .. } => write!(f, "hold port {claim}"),
            Self::ReleasePort { claim, .. } => write!(f, "release port {claim}"),
            Self::PutEntry { key, entry, .. } => write!(f, "write {key}: {entry}"),
            Self::RemoveEntry { key, .. } => write!(f, "remove {key}"),
            Self::Sweep => f.write_str("forget flows that have ended"),
        }
    }
}

impl Step {
    /// Changes inside of a pod.
    fn write_inside(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::SetPodMtu { netns, ifname, mtu } = self {
            write!(f, "set the MTU of {ifname} in {} to {mtu}", netns.path)?;
        }
        if let Self::SetLoopback { netns, up } = self {
            let state = if *up { "up" } else { "down" };
            write!(f, "set lo in {} {state}", netns.path)?;
        }
        if let Self::TunePod {
            netns,
            ifname,
            settings,
            ..
        } = self
        {
            write!(f, "tune {ifname} in {}: {settings:?}", netns.path)?;
        }
        Ok(())
    }
}

fn promiscuous(link: &IfName, on: bool) -> Step {
    let link = link.clone();
    Step::SetPromiscuous { link, on }
}

fn list<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    items.join(", ")
}

#[cfg(test)]
mod tests;
