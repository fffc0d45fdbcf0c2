//! Entries of the datapath's tables in the planner's form. Links are named, because an interface
//! index is known only once the link exists. The kernel crate converts entries to and from the byte
//! layout of `abi`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use abi::maps::{self, MapShape};
use model::{
    Cidr, Families, IngressPolicy, InterfaceAddress, Mac, NetworkAccess, Protocol, ShapedSubnets,
};

use crate::{AllowedKey, Shape};

mod display;
mod link_ref;

pub use link_ref::LinkRef;

/// Table and key of an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKey {
    /// Row of the pod table, by slot.
    Pod(u32),
    /// Rate limits of a pod, by slot.
    Limit(u32),
    /// Pod behind a host link.
    Interface(LinkRef),
    /// Pod that has an address.
    Endpoint(IpAddr),
    /// Pod that publishes a host port.
    Hostport {
        /// Address of the node; `None` for every address of the family.
        address: Option<IpAddr>,
        /// Whether the entry is IPv4: the family of the wildcard, or of the address.
        ipv4: bool,
        /// Port of the node in host byte order.
        port: u16,
        /// Transport protocol.
        protocol: Protocol,
    },
    /// Gateways and Ethernet address of a bridge.
    Network(LinkRef),
    /// Egress addresses of the networks of a bridge.
    Egress(LinkRef),
    /// Uplink that the networks of a bridge trust.
    TrustedLink {
        /// The bridge.
        bridge: LinkRef,
        /// The uplink.
        link: LinkRef,
    },
    /// Uplink, by its link.
    Uplink(LinkRef),
    /// Address of the node itself.
    Local(IpAddr),
    /// Prefix that decides whether packets to it are masqueraded.
    Prefix(Cidr),
    /// Address of a node whose tunnelled packets are accepted.
    TunnelPeer(IpAddr),
    /// Rule sets of network policies, by the pod's slot.
    RuleSets(u32),
    /// Prefix of addresses with the same identity in network policies.
    Identity(Cidr),
    /// What a rule set of network policies allows.
    PolicyRule(AllowedKey),
    /// Node-wide settings of the datapath.
    Settings,
}

/// Value of an entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    /// A row of the pod table.
    Pod {
        /// First IPv4 address of the pod.
        v4: Option<IpAddr>,
        /// First IPv6 address of the pod.
        v6: Option<IpAddr>,
        /// Ethernet address that the pod must send from; zero for any.
        mac: Mac,
        /// Host's end of the pod's veth.
        link: LinkRef,
        /// Bridge that the link is a port of.
        bridge: LinkRef,
        /// Generation of the attachment.
        generation: u32,
        /// Families whose flows to the outside are masqueraded.
        masquerade: Families,
        /// Whether the source address check is off: the pod may send with any address.
        trusted: bool,
        /// Whether packets may bypass the bridge, which only forwards for this port.
        bypass: bool,
        /// Whether the bridge port is isolated from other isolated ports.
        isolated: bool,
        /// Ingress policy: the pods whose packets are dropped.
        ingress: IngressPolicy,
        /// Which packets enter and leave the pod's network.
        access: NetworkAccess,
        /// Families whose addresses are routed.
        routed: Families,
    },
    /// A free row that keeps the generation of its last owner. Written in place of a removal.
    FreePod {
        /// Generation of the last owner.
        generation: u32,
    },
    /// The rate limits of a pod.
    Limit {
        /// Limit of traffic to the pod.
        ingress: Option<Shape>,
        /// Limit of traffic from the pod.
        egress: Option<Shape>,
        /// Subnets whose traffic is limited. Boxed, since most entries are no limits.
        shaped_subnets: Box<ShapedSubnets>,
        /// Generation of the attachment.
        generation: u32,
    },
    /// The pod behind a host link.
    Interface {
        /// Row of the pod table.
        slot: u32,
        /// Whether traffic of the pod is limited.
        limited: bool,
    },
    /// The pod that has an address.
    Endpoint {
        /// Row of the pod table.
        slot: u32,
        /// Generation of the attachment.
        generation: u32,
        /// Host's end of the pod's veth.
        link: LinkRef,
        /// Ethernet address of the pod's end.
        mac: Mac,
        /// Families whose flows to the outside are masqueraded.
        masquerade: Families,
        /// Whether the pod publishes host ports.
        published: bool,
        /// Whether traffic of the pod is limited.
        limited: bool,
    },
    /// The pod that publishes a host port.
    Hostport {
        /// Pod's address.
        address: IpAddr,
        /// Pod's port in host byte order.
        port: u16,
        /// Row of the pod table.
        slot: u32,
        /// Generation of the attachment.
        generation: u32,
    },
    /// Gateways and Ethernet address of a bridge.
    Network {
        /// First IPv4 gateway.
        v4: Option<IpAddr>,
        /// First IPv6 gateway.
        v6: Option<IpAddr>,
        /// Ethernet address of the bridge.
        mac: Mac,
        /// Set where this agent has made the bridge promiscuous: prefix lengths of the gateways'
        /// subnets, IPv4 first, 0 without a subnet. Addresses of these subnets identify duplicate
        /// frames.
        duplicates: Option<[u8; 2]>,
    },
    /// SNAT source addresses for pods of a bridge's networks, whichever uplink they use.
    Egress {
        /// IPv4 address; `None` for the uplink's.
        v4: Option<IpAddr>,
        /// IPv6 address; `None` for the uplink's.
        v6: Option<IpAddr>,
    },
    /// An uplink.
    Uplink {
        /// Whether frames have an Ethernet header.
        ethernet: bool,
        /// MTU in bytes: the link's, or that of a route with a smaller one.
        mtu: u32,
        /// Source addresses for MASQUERADE, in the kernel's order, at most [`abi::SOURCES`].
        sources: Vec<InterfaceAddress>,
        /// Whether both programs are attached. Until then no packet of a pod may leave by the
        /// uplink.
        open: bool,
        /// Whether it is a tunnel to other nodes.
        tunnel: bool,
    },
    /// An address of the node itself.
    Local,
    /// A prefix that decides whether packets to it are masqueraded.
    Prefix {
        /// Whether packets to it keep the pod's address.
        no_masquerade: bool,
        /// Whether it is a subnet of this node's pods.
        pods: bool,
        /// Whether containers of other software have addresses of it too.
        shared: bool,
        /// Whether every address of it that is in use is a pod's or the node's.
        complete: bool,
        /// Whether pods of another node have addresses of it.
        peer: bool,
    },
    /// An uplink by which every port of a network's pods is reached.
    TrustedLink,
    /// An address of a node whose tunnelled packets are accepted.
    TunnelPeer,
    /// The rule sets of a pod's network policies; 0 where everything is allowed.
    RuleSets {
        /// Generation of the attachment.
        generation: u32,
        /// For connections to the pod.
        ingress: u32,
        /// For connections of the pod.
        egress: u32,
    },
    /// The identity of addresses in network policies; 0 for those that no rule names, within a
    /// prefix that has one.
    Identity(u32),
    /// What a rule set of network policies allows.
    PolicyRule,
    /// Node-wide settings of the datapath.
    Settings(abi::Settings),
}

/// Table entries by key.
pub type Entries = BTreeMap<EntryKey, Entry>;

/// Returns the links in a key, of a reference or a mutable one.
macro_rules! links_of_key {
    ($key:expr) => {
        match $key {
            EntryKey::Interface(link)
            | EntryKey::Network(link)
            | EntryKey::Egress(link)
            | EntryKey::Uplink(link) => [Some(link), None],
            EntryKey::TrustedLink { bridge, link } => [Some(bridge), Some(link)],
            EntryKey::Pod(_)
            | EntryKey::Limit(_)
            | EntryKey::Endpoint(_)
            | EntryKey::Hostport { .. }
            | EntryKey::Local(_)
            | EntryKey::Prefix(_)
            | EntryKey::TunnelPeer(_)
            | EntryKey::RuleSets(_)
            | EntryKey::Identity(_)
            | EntryKey::PolicyRule(_)
            | EntryKey::Settings => [None, None],
        }
    };
}

impl EntryKey {
    /// Returns the map with the entries of the key's table, or the first of several.
    pub const fn map(&self) -> MapShape {
        match self {
            Self::Pod(_) => maps::PODS.shape(),
            Self::Limit(_) => maps::LIMITS.shape(),
            Self::Interface(_) => maps::INTERFACES.shape(),
            Self::Endpoint(_) => maps::ENDPOINTS.shape(),
            Self::Hostport { .. } => maps::HOSTPORTS.shape(),
            Self::Network(_) => maps::NETWORKS.shape(),
            Self::Egress(_) => maps::EGRESS.shape(),
            Self::TrustedLink { .. } => maps::TRUSTED_LINKS.shape(),
            Self::Uplink(_) => maps::UPLINKS.shape(),
            Self::Local(_) => maps::LOCALS.shape(),
            Self::Prefix(_) => maps::PREFIXES.shape(),
            Self::TunnelPeer(_) => maps::TUNNEL_PEERS.shape(),
            Self::RuleSets(_) => maps::RULE_SETS.shape(),
            Self::Identity(_) => maps::IDENTITIES.shape(),
            Self::PolicyRule(_) => maps::POLICY_RULES.shape(),
            Self::Settings => maps::SETTINGS.shape(),
        }
    }

    /// Returns the links that the key names.
    pub fn links_mut(&mut self) -> impl Iterator<Item = &mut LinkRef> {
        links_of_key!(self).into_iter().flatten()
    }

    /// Returns whether the key refers to a link that is gone: such an entry can be removed, never
    /// written.
    pub fn refers_to_gone_link(&self) -> bool {
        let mut links = links_of_key!(self).into_iter().flatten();
        links.any(LinkRef::is_gone)
    }

    /// Returns whether the entry describes the node, and not an attachment. Such an entry is stale
    /// where the plan of the node does not have it. The settings are never removed.
    pub fn is_of_node(&self) -> bool {
        match self {
            Self::Network(_)
            | Self::Egress(_)
            | Self::TrustedLink { .. }
            | Self::Uplink(_)
            | Self::Local(_)
            | Self::Prefix(_)
            | Self::TunnelPeer(_)
            | Self::RuleSets(_)
            | Self::Identity(_)
            | Self::PolicyRule(_) => true,
            Self::Pod(_)
            | Self::Limit(_)
            | Self::Interface(_)
            | Self::Endpoint(_)
            | Self::Hostport { .. }
            | Self::Settings => false,
        }
    }

    /// Returns whether the entry belongs to the table of this key.
    pub fn fits(&self, entry: &Entry) -> bool {
        match self {
            Self::Pod(_) => matches!(entry, Entry::Pod { .. } | Entry::FreePod { .. }),
            Self::Limit(_) => matches!(entry, Entry::Limit { .. }),
            Self::Interface(_) => matches!(entry, Entry::Interface { .. }),
            Self::Endpoint(_) => matches!(entry, Entry::Endpoint { .. }),
            Self::Hostport { .. } => matches!(entry, Entry::Hostport { .. }),
            Self::Network(_) => matches!(entry, Entry::Network { .. }),
            Self::Egress(_) => matches!(entry, Entry::Egress { .. }),
            Self::TrustedLink { .. } => matches!(entry, Entry::TrustedLink),
            Self::Uplink(_) => {
                matches!(entry, Entry::Uplink { sources, .. } if sources.len() <= abi::SOURCES)
            }
            Self::Local(_) => matches!(entry, Entry::Local),
            Self::Prefix(_) => matches!(entry, Entry::Prefix { .. }),
            Self::TunnelPeer(_) => matches!(entry, Entry::TunnelPeer),
            Self::RuleSets(_) => matches!(entry, Entry::RuleSets { .. }),
            Self::Identity(_) => matches!(entry, Entry::Identity(_)),
            Self::PolicyRule(_) => matches!(entry, Entry::PolicyRule),
            Self::Settings => matches!(entry, Entry::Settings(_)),
        }
    }
}

/// Returns the links in an entry, of a reference or a mutable one.
macro_rules! links_of {
    ($entry:expr) => {
        match $entry {
            Entry::Pod { link, bridge, .. } => [Some(link), Some(bridge)],
            Entry::Endpoint { link, .. } => [Some(link), None],
            Entry::FreePod { .. }
            | Entry::Limit { .. }
            | Entry::Interface { .. }
            | Entry::Hostport { .. }
            | Entry::Network { .. }
            | Entry::Egress { .. }
            | Entry::Uplink { .. }
            | Entry::Local
            | Entry::Prefix { .. }
            | Entry::TrustedLink
            | Entry::TunnelPeer
            | Entry::RuleSets { .. }
            | Entry::Identity(_)
            | Entry::PolicyRule
            | Entry::Settings(_) => [None, None],
        }
    };
}

impl Entry {
    /// Returns the links that the value refers to.
    pub fn links_mut(&mut self) -> impl Iterator<Item = &mut LinkRef> {
        links_of!(self).into_iter().flatten()
    }

    /// Returns whether the entry belongs to an attachment. Without one it is stale.
    pub fn is_of_pod(&self) -> bool {
        match self {
            Self::Pod { .. }
            | Self::Limit { .. }
            | Self::Interface { .. }
            | Self::Endpoint { .. }
            | Self::Hostport { .. } => true,
            Self::FreePod { .. }
            | Self::Network { .. }
            | Self::Egress { .. }
            | Self::Uplink { .. }
            | Self::Local
            | Self::Prefix { .. }
            | Self::TrustedLink
            | Self::TunnelPeer
            | Self::RuleSets { .. }
            | Self::Identity(_)
            | Self::PolicyRule
            | Self::Settings(_) => false,
        }
    }

    /// Returns the generation of the attachment that the entry belongs or belonged to.
    pub fn generation(&self) -> Option<u32> {
        match self {
            Self::Pod { generation, .. }
            | Self::FreePod { generation }
            | Self::Limit { generation, .. }
            | Self::Endpoint { generation, .. }
            | Self::Hostport { generation, .. }
            | Self::RuleSets { generation, .. } => Some(*generation),
            Self::Interface { .. }
            | Self::Network { .. }
            | Self::Egress { .. }
            | Self::Uplink { .. }
            | Self::Local
            | Self::Prefix { .. }
            | Self::TrustedLink
            | Self::TunnelPeer
            | Self::Identity(_)
            | Self::PolicyRule
            | Self::Settings(_) => None,
        }
    }

    /// Returns whether the value refers to a link that is gone.
    pub fn refers_to_gone_link(&self) -> bool {
        links_of!(self).into_iter().flatten().any(LinkRef::is_gone)
    }
}
