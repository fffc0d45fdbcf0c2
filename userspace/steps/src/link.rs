//! Links of the host's namespace, as observed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};

use model::{Attachment, HostLink, InterfaceAddress, Mac, PortVlans, VlanId};

use crate::Hook;

/// Kind of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// The loopback interface.
    Loopback,
    /// A Linux bridge.
    Bridge,
    /// One end of a veth pair.
    Veth,
    /// A tap device: the network card of a virtual machine.
    Tap,
    /// A dummy device, which leads nowhere.
    Dummy,
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
    /// Kind of the link.
    pub kind: LinkKind,
    /// Ethernet address; `None` for links without one.
    pub mac: Option<Mac>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether it is set up (`IFF_UP`).
    pub up: bool,
    /// Whether it is set promiscuous (`IFF_PROMISC`).
    pub promiscuous: bool,
    /// Whether it is a point-to-point link (`IFF_POINTOPOINT`).
    pub point_to_point: bool,
    /// Index of the bridge or bond that it is a port of.
    pub controller: Option<u32>,
    /// Index of a veth pair's other end, if that is in the same namespace.
    pub peer: Option<u32>,
    /// Whether the bridge port is in hairpin mode.
    pub hairpin: bool,
    /// VLAN and bridge port properties.
    pub switching: Switching,
    /// Alias (`IFLA_IFALIAS`).
    pub alias: Option<String>,
}

impl Link {
    /// Returns a link that is up, has no addresses, is no port, and has an MTU of 0 bytes.
    pub fn plain(index: u32, kind: LinkKind) -> Self {
        Self {
            index,
            kind,
            mac: None,
            mtu: 0,
            up: true,
            promiscuous: false,
            point_to_point: false,
            controller: None,
            peer: None,
            hairpin: false,
            switching: Switching::default(),
            alias: None,
        }
    }
}

/// A link of the host's namespace, with what only an observation of the whole node reads: for an
/// ADD or a DEL it would cost further requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLink {
    /// The link itself.
    pub link: Link,
    /// Whether this agent has set the Ethernet address since its start. A bridge whose address was
    /// never set has the lowest one of its ports. Netlink does not report which is the case.
    pub mac_is_set: bool,
    /// Addresses, in the kernel's order (primary ones before their secondaries).
    pub addresses: Vec<InterfaceAddress>,
    /// Addresses that the kernel uses as a source only where it has no other: deprecated and
    /// tentative ones, and detected duplicates. IPv6 only.
    pub avoided: BTreeSet<IpAddr>,
    /// Programs of ours that are attached to it.
    pub hooks: BTreeSet<Hook>,
    /// Attached programs of a previous agent that differ from this agent's: they keep running until
    /// they are replaced.
    pub outdated: BTreeSet<Hook>,
}

impl From<Link> for NodeLink {
    /// Returns a link without addresses and programs.
    fn from(link: Link) -> Self {
        Self {
            link,
            mac_is_set: false,
            addresses: Vec::new(),
            avoided: BTreeSet::new(),
            hooks: BTreeSet::new(),
            outdated: BTreeSet::new(),
        }
    }
}

impl Deref for NodeLink {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.link
    }
}

impl DerefMut for NodeLink {
    fn deref_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}

/// VLAN and bridge port properties of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switching {
    /// Whether VLAN filtering is on; of bridges.
    pub filters_vlans: bool,
    /// Whether a bridge port is isolated from other isolated ports.
    pub isolated: bool,
    /// VLAN memberships of a bridge port, or of the bridge device itself, where VLAN filtering is
    /// on.
    pub vlans: BTreeMap<VlanId, VlanMember>,
    /// For the node's interface in a VLAN: index of the bridge (or other link), and the VLAN. Such
    /// an interface is a VLAN device, or a veth pair whose other end is a bridge port with this
    /// PVID.
    pub vlan_of: Option<(u32, VlanId)>,
}

/// VLAN membership of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct VlanMember {
    /// Whether untagged frames that the port receives are in this VLAN (PVID).
    pub pvid: bool,
    /// Whether frames of this VLAN leave the port untagged.
    pub untagged: bool,
}

/// Returns the VLAN memberships that a port is to have. The native VLAN is untagged, also where the
/// trunk lists it.
pub fn wanted_vlans(vlans: &PortVlans) -> BTreeMap<VlanId, VlanMember> {
    let native = VlanMember {
        pvid: true,
        untagged: true,
    };
    vlans
        .trunk
        .iter()
        .map(|id| (*id, VlanMember::default()))
        .chain(vlans.native().map(|id| (id, native)))
        .collect()
}

impl Switching {
    /// Returns whether a port has the wanted VLANs, and no others besides the default VLAN where
    /// that is kept.
    pub fn has(&self, wanted: &PortVlans) -> bool {
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
    /// Returns whether this agent created the link with this alias and Ethernet address. The kernel
    /// accepts the address in the message that creates a link, and the alias only in a later one.
    /// After a crash between the two there is no alias, and the address, which derives from the
    /// same key as the name, identifies the link.
    pub fn is_signed(&self, alias: &str, mac: Mac) -> bool {
        match &self.alias {
            Some(found) => found == alias,
            None => self.mac == Some(mac),
        }
    }

    /// Returns whether the link is the host's end of `attachment`.
    pub fn is_host_end_of(&self, attachment: &Attachment) -> bool {
        match attachment.host_link() {
            HostLink::Managed(link) => self.is_signed(&attachment.alias(), link.mac()),
            // Its name is random and it has no mark of ours. Only attaching our programs depends on
            // this.
            HostLink::Adopted(_) => self.kind == LinkKind::Veth,
        }
    }
}
