//! What the kernel looks like, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{
    Attachment, Cidr, HostLink, IfName, InterfaceAddress, InterfaceSettings, Mac, Netns, NetnsPath,
    PortVlans, Route, VlanId,
};

use crate::entry::Entries;
use crate::{HeldPorts, Hook, Posted, SocketHook, SocketLink, SysctlKey};

/// How much to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All links, routes and addresses of the node, the sysctls asked for, every table entry but the flows, and the
    /// ports that are held.
    Node {
        /// Sysctls to read.
        sysctls: BTreeSet<SysctlKey>,
    },
    /// These sysctls alone.
    Sysctls(BTreeSet<SysctlKey>),
    /// Before an ADD: the namespace, and whether the interface's name is free in it.
    Netns {
        /// Where the namespace can be opened.
        path: NetnsPath,
        /// The interface that is to be made.
        ifname: IfName,
        /// The links of the host to look at (its own end, the bridge), as in [`Scope::Attachment`].
        links: BTreeSet<IfName>,
    },
    /// One attachment: its two links, the inside of its namespace, its table entries, its ports. Of the links no
    /// addresses, which are none of an attachment's matter, and of programs only those of pods, which bridges have none
    /// of: each of these would be one more question in every ADD and DEL.
    Attachment(Box<Attachment>),
    /// As [`Scope::Attachment`], but for the inside of the namespace.
    Outside(Box<Attachment>),
    /// The ports of the node that are held.
    Ports,
    /// Settings of an interface inside of a namespace.
    Settings {
        /// Where the namespace can be opened.
        path: NetnsPath,
        /// The interface.
        ifname: IfName,
        /// Sysctls to read, by path below `/proc/sys`.
        sysctls: BTreeSet<String>,
    },
}

/// What was seen. What the scope did not ask for is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Links of the host's namespace.
    pub links: BTreeMap<IfName, Link>,
    /// Routes of the host's namespace, all tables.
    pub routes: Vec<RouteEntry>,
    /// Values of the sysctls asked for; one that the kernel does not have is missing.
    pub sysctls: BTreeMap<SysctlKey, String>,
    /// Entries of the datapath's tables.
    pub entries: Entries,
    /// Our programs that the node's cgroup can have, and what it has of them. One that this kernel does not take is
    /// missing, and so are all without a cgroup.
    pub socket_hooks: BTreeMap<SocketHook, SocketLink>,
    /// Links that a guard of ours stands at.
    pub guards: BTreeMap<IfName, Posted>,
    /// Whether a link's queue heeds the departure times of packets (`fq`).
    pub heeds_departure: bool,
    /// Ports of the node that are held.
    pub held: HeldPorts,
    /// How many entries the flow table has room for; a flow is two.
    pub flow_entries: u32,
    /// Rules of others that packets on our ways could meet in the stack, in words.
    pub foreign_rules: BTreeSet<String>,
    /// Whether the route of a packet may depend on its ports or its protocol.
    pub routes_by_port: bool,
    /// How many connections netfilter keeps track of.
    pub tracked: u64,
    /// Namespaces that could be opened, by the path asked for.
    pub netns: BTreeMap<NetnsPath, Netns>,
    /// The inside of the pod's namespace, when there is one and the interface is in it.
    pub pod: Option<PodSide>,
    /// Settings of the interface, when it is there; sysctls that the kernel does not have are missing.
    pub settings: Option<InterfaceSettings>,
}

/// What sort of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// The loopback.
    Loopback,
    /// A bridge.
    Bridge,
    /// One end of a veth pair.
    Veth,
    /// Any other link with Ethernet headers.
    Ethernet,
    /// A link without Ethernet headers (tun, `WireGuard`, PPP).
    Raw,
}

/// A link of the host's namespace.
#[expect(
    clippy::struct_excessive_bools,
    reason = "flags of the kernel's, each by itself"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Sort.
    pub kind: LinkKind,
    /// Ethernet address, when it has one.
    pub mac: Option<Mac>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether it is set up.
    pub up: bool,
    /// Whether somebody has made it promiscuous (`IFF_PROMISC`).
    pub promiscuous: bool,
    /// Whether it is a point-to-point link.
    pub point_to_point: bool,
    /// Index of the bridge or bond that it is a port of.
    pub controller: Option<u32>,
    /// Whether the bridge sends frames back by this port.
    pub hairpin: bool,
    /// What it is among VLANs and bridge ports besides.
    pub switching: Switching,
    /// Alias.
    pub alias: Option<String>,
    /// Addresses, in the kernel's order (primary ones before their secondaries).
    pub addresses: Vec<InterfaceAddress>,
    /// Those of them that the kernel leaves with only where it has no other: deprecated ones, and such that may turn out
    /// to be somebody else's. IPv6 only; known where the whole node is looked at.
    pub avoided: BTreeSet<IpAddr>,
    /// Our programs that are attached to it.
    pub hooks: BTreeSet<Hook>,
    /// Those of them that another agent has attached, and that are not the same: they work on, and are to be replaced. Known
    /// where the whole node is looked at.
    pub outdated: BTreeSet<Hook>,
}

/// What a link is among VLANs and bridge ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switching {
    /// Whether a bridge keeps VLANs apart.
    pub filters_vlans: bool,
    /// Whether a bridge port is kept apart from other isolated ports.
    pub isolated: bool,
    /// VLANs of a bridge port, or of the node itself on a bridge, where the bridge keeps them apart.
    pub vlans: BTreeMap<VlanId, VlanMember>,
    /// Of which link and which of its VLANs this is the end.
    pub vlan_of: Option<(u32, VlanId)>,
}

/// How a port is in a VLAN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct VlanMember {
    /// Whether frames that come without a tag are of this VLAN.
    pub pvid: bool,
    /// Whether frames of this VLAN leave without a tag.
    pub untagged: bool,
}

/// The VLANs that a port is to have.
pub fn wanted_vlans(vlans: &PortVlans) -> BTreeMap<VlanId, VlanMember> {
    let access = VlanMember {
        pvid: true,
        untagged: true,
    };
    vlans
        .trunk
        .iter()
        .map(|id| (*id, VlanMember::default()))
        .chain(vlans.access.map(|id| (id, access)))
        .collect()
}

impl Switching {
    /// Whether a port has the VLANs that it is to have, and none besides that it is not to keep.
    pub(crate) fn has(&self, wanted: &PortVlans) -> bool {
        if !wanted.is_managed() {
            return true;
        }
        let all = wanted_vlans(wanted);
        if wanted.keeps_default {
            let mut all = all.iter();
            all.all(|(id, member)| self.vlans.get(id) == Some(member))
        } else {
            all == self.vlans
        }
    }
}

impl Link {
    /// Whether the link is one that we make with this alias and Ethernet address. The kernel takes the address in the
    /// message that makes a link, and the alias only in one behind it: where we were killed between the two there is
    /// no alias, and the address, which derives from the same key as the name, has to vouch for the link.
    pub fn is_signed(&self, alias: &str, mac: Mac) -> bool {
        match &self.alias {
            Some(found) => found == alias,
            None => self.mac == Some(mac),
        }
    }

    /// Whether the link is the host's end of `attachment`.
    pub fn is_host_end_of(&self, attachment: &Attachment) -> bool {
        match attachment.host_link() {
            HostLink::Managed(link) => self.is_signed(&attachment.alias(), link.mac()),
            // Its name is random, and nothing of it is ours to take for proof: what hangs on this is our programs only.
            HostLink::Adopted(_) => self.kind == LinkKind::Veth,
        }
    }
}

/// A route of the host's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteEntry {
    /// Where to.
    pub destination: Cidr,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Outgoing interface's index (one entry for each leg of a multipath route).
    pub link: u32,
    /// Routing table.
    pub table: u32,
    /// Its own MTU in bytes, if it has one.
    pub mtu: Option<u32>,
}

/// The pod's interface, seen from inside its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSide {
    /// Ethernet address.
    pub mac: Option<Mac>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether it is set up.
    pub up: bool,
    /// Addresses, without link-local IPv6.
    pub addresses: BTreeSet<InterfaceAddress>,
    /// Routes by it, without those that the kernel makes for addresses.
    pub routes: BTreeSet<Route>,
    /// Interface index of the peer in the host's namespace.
    pub peer: Option<u32>,
}
