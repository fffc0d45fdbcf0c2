//! Entries of the datapath's tables, as the planner speaks of them: links by name, because an interface index is
//! known only once the link exists. The kernel crate turns them into `abi`'s bytes and back.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use model::{Cidr, IfName, InterfaceAddress, Mac, Protocol};

/// A link that an entry speaks of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkRef {
    /// One that exists, or will when the entry is written.
    Name(IfName),
    /// Interface index of one that is gone; only ever observed, never planned.
    Gone(u32),
}

impl fmt::Display for LinkRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Gone(index) => write!(f, "gone link #{index}"),
        }
    }
}

/// Which entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKey {
    /// Row of the pod table.
    Pod(u32),
    /// The pod of a host link.
    Interface(LinkRef),
    /// The pod of an address.
    Endpoint(IpAddr),
    /// The owner of a port of the node; the address is `None` for every address of the family.
    Hostport {
        /// Address of the node.
        address: Option<IpAddr>,
        /// Whether a wildcard is IPv4's; for a particular address, whether that is.
        ipv4: bool,
        /// Port of the node.
        port: u16,
        /// Protocol.
        protocol: Protocol,
    },
    /// An uplink.
    Uplink(LinkRef),
    /// An address of the node itself.
    Local(IpAddr),
    /// A prefix that decides about masquerading.
    Prefix(Cidr),
    /// The settings.
    Settings,
}

/// What an entry holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// A row of the pod table.
    Pod {
        /// IPv4 address.
        v4: Option<IpAddr>,
        /// IPv6 address.
        v6: Option<IpAddr>,
        /// Ethernet address of the pod's end.
        mac: Mac,
        /// The host's end.
        link: LinkRef,
        /// The bridge.
        bridge: LinkRef,
        /// Generation.
        generation: u32,
        /// Whether flows to the outside are masqueraded.
        masquerade: bool,
    },
    /// A free row that remembers the generation of its last owner. Written in place of a removal.
    FreePod {
        /// Generation of the last owner.
        generation: u32,
    },
    /// The pod of a host link.
    Interface {
        /// Row of the pod table.
        slot: u32,
    },
    /// The pod of an address.
    Endpoint {
        /// Row of the pod table.
        slot: u32,
        /// Generation.
        generation: u32,
        /// The host's end.
        link: LinkRef,
        /// Ethernet address of the pod's end.
        mac: Mac,
        /// Whether flows to the outside are masqueraded.
        masquerade: bool,
    },
    /// The owner of a port of the node.
    Hostport {
        /// The pod's address.
        address: IpAddr,
        /// The pod's port.
        port: u16,
        /// Row of the pod table.
        slot: u32,
        /// Generation.
        generation: u32,
    },
    /// An uplink.
    Uplink {
        /// Whether packets have an Ethernet header.
        ethernet: bool,
        /// MTU in bytes.
        mtu: u32,
        /// Addresses that MASQUERADE may choose from, in the kernel's order, at most [`abi::SOURCES`].
        sources: Vec<InterfaceAddress>,
    },
    /// An address of the node itself.
    Local,
    /// A prefix that decides about masquerading.
    Prefix {
        /// Packets to it keep the pod's address.
        no_masquerade: bool,
        /// Pods of this node have addresses of it.
        pods: bool,
    },
    /// The settings.
    Settings(abi::Settings),
}

/// Table entries by key.
pub type Entries = BTreeMap<EntryKey, Entry>;
