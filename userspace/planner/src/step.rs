//! One effect on the kernel.

use std::collections::BTreeSet;
use std::fmt;

use model::{IfName, InterfaceAddress, Mac, ManagedLink, Netns, Route};

use crate::{Entry, EntryKey};

/// A sysctl as a path below `/proc/sys`, for example `net/ipv4/ip_forward`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SysctlKey(pub String);

impl fmt::Display for SysctlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which of our programs goes where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// `from_pod`, where packets of a pod enter the host.
    FromPod,
    /// `to_pod`, where packets leave the host for a pod.
    ToPod,
    /// `uplink_in`, where packets enter the node.
    UplinkIn,
    /// `uplink_out`, where packets leave the node.
    UplinkOut,
}

/// A bridge to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeSpec {
    /// Interface name.
    pub name: IfName,
    /// Ethernet address, set in the same message that makes the bridge: udev never sees another.
    pub mac: Mac,
    /// MTU in bytes.
    pub mtu: u32,
    /// Alias, by which we know the bridge to be ours.
    pub alias: String,
}

/// A veth pair to make: one end in the host's namespace, the other at once in the pod's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VethSpec {
    /// The host's end.
    pub host: ManagedLink,
    /// Alias of the host's end, by which we know it to be ours.
    pub alias: String,
    /// Ethernet address of the host's end.
    pub host_mac: Mac,
    /// Name of the pod's end.
    pub pod: IfName,
    /// Ethernet address of the pod's end.
    pub pod_mac: Mac,
    /// MTU of both ends in bytes.
    pub mtu: u32,
    /// The pod's namespace.
    pub netns: Netns,
}

/// What to set up inside of a pod's namespace: loopback up, no duplicate address detection, addresses, link up,
/// routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSpec {
    /// The pod's namespace.
    pub netns: Netns,
    /// The pod's interface.
    pub ifname: IfName,
    /// Addresses, set with `IFA_F_NODAD`.
    pub addresses: Vec<InterfaceAddress>,
    /// Routes, each with its gateway.
    pub routes: Vec<Route>,
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
    /// Make a bridge.
    CreateBridge(BridgeSpec),
    /// Remove a bridge that we made and that has no port.
    DeleteBridge {
        /// Interface name.
        name: IfName,
        /// The alias that proves it ours.
        alias: String,
    },
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
    /// Make the host's end a port of a bridge, set the port's hairpin flag, and set it up.
    JoinBridge {
        /// The host's end.
        link: ManagedLink,
        /// The bridge.
        bridge: IfName,
        /// Whether the bridge sends frames back by this port.
        hairpin: bool,
    },
    /// Set up the inside of the pod.
    SetUpPod(PodSpec),
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
    /// Forget flows that have timed out or whose pod is gone.
    Sweep,
}
