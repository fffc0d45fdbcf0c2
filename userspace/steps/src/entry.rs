//! Entries of the datapath's tables in the planner's form. Links are named, because an interface
//! index is known only once the link exists. The kernel crate converts entries to and from the byte
//! layout of `abi`.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use model::{
    Cidr, IfName, IngressPolicy, InterfaceAddress, Mac, NetworkAccess, Protocol, ShapedSubnets,
};

use crate::Shape;

/// A link that an entry refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkRef {
    /// One that exists, or will when the entry is written.
    Name(IfName),
    /// Interface index of a link that is gone; observed only, never planned.
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
    /// Uplink, by its link.
    Uplink(LinkRef),
    /// Address of the node itself.
    Local(IpAddr),
    /// Prefix that decides whether packets to it are masqueraded.
    Prefix(Cidr),
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
        /// Whether flows to the outside are masqueraded.
        masquerade: bool,
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
        /// Whether flows to the outside are masqueraded.
        masquerade: bool,
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
    },
    /// Node-wide settings of the datapath.
    Settings(abi::Settings),
}

/// Table entries by key.
pub type Entries = BTreeMap<EntryKey, Entry>;

impl LinkRef {
    fn is_gone(&self) -> bool {
        matches!(self, Self::Gone(_))
    }
}

impl EntryKey {
    /// Returns whether the key refers to a link that is gone: such an entry can be removed, never
    /// written.
    pub fn refers_to_gone_link(&self) -> bool {
        match self {
            Self::Interface(link)
            | Self::Network(link)
            | Self::Egress(link)
            | Self::Uplink(link) => link.is_gone(),
            Self::Pod(_)
            | Self::Limit(_)
            | Self::Endpoint(_)
            | Self::Hostport { .. }
            | Self::Local(_)
            | Self::Prefix(_)
            | Self::Settings => false,
        }
    }
}

impl Entry {
    /// Returns whether the value refers to a link that is gone.
    pub fn refers_to_gone_link(&self) -> bool {
        match self {
            Self::Pod { link, bridge, .. } => link.is_gone() || bridge.is_gone(),
            Self::Endpoint { link, .. } => link.is_gone(),
            Self::FreePod { .. }
            | Self::Limit { .. }
            | Self::Interface { .. }
            | Self::Hostport { .. }
            | Self::Network { .. }
            | Self::Egress { .. }
            | Self::Uplink { .. }
            | Self::Local
            | Self::Prefix { .. }
            | Self::Settings(_) => false,
        }
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(slot) => write!(f, "pod {slot}"),
            Self::Limit(slot) => write!(f, "limits of pod {slot}"),
            Self::Interface(link) => write!(f, "interface {link}"),
            Self::Endpoint(address) => write!(f, "endpoint {address}"),
            Self::Hostport {
                address,
                ipv4,
                port,
                protocol,
            } => {
                let any = if *ipv4 {
                    IpAddr::from([0; 4])
                } else {
                    IpAddr::from([0; 16])
                };
                let socket = SocketAddr::new(address.unwrap_or(any), *port);
                write!(f, "hostport {socket}/{protocol}")
            }
            Self::Network(bridge) => write!(f, "network of {bridge}"),
            Self::Egress(bridge) => write!(f, "egress of {bridge}"),
            Self::Uplink(link) => write!(f, "uplink {link}"),
            Self::Local(address) => write!(f, "local address {address}"),
            Self::Prefix(cidr) => write!(f, "prefix {cidr}"),
            Self::Settings => f.write_str("settings"),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod { .. } => self.write_pod(f),
            Self::FreePod { generation } => write!(f, "free, last generation {generation}"),
            Self::Limit { .. } => self.write_limit(f),
            Self::Interface { slot, limited } => write!(f, "pod {slot}{}", limits(*limited)),
            Self::Endpoint {
                slot,
                generation,
                link,
                mac,
                masquerade,
                published,
                limited,
            } => {
                let limited = limits(*limited);
                let mode = masquerading(*masquerade);
                let published = if *published { ", published" } else { "" };
                write!(
                    f,
                    "pod {slot} generation {generation}, {mac} behind {link}, {mode}{published}{limited}"
                )
            }
            Self::Hostport {
                address,
                port,
                slot,
                generation,
            } => {
                let socket = SocketAddr::new(*address, *port);
                write!(f, "{socket} of pod {slot} generation {generation}")
            }
            Self::Network { .. } => self.write_network(f),
            Self::Egress { v4, v6 } => write_from(f, [v4, v6].into_iter().flatten()),
            Self::Uplink {
                ethernet,
                mtu,
                sources,
                open,
            } => {
                let framing = if *ethernet { "Ethernet" } else { "raw" };
                write!(f, "{framing}, MTU {mtu}, ")?;
                write_from(f, sources)?;
                f.write_str(if *open { "" } else { ", closed" })
            }
            Self::Local => f.write_str("local"),
            Self::Prefix {
                no_masquerade,
                pods,
                shared,
                complete,
            } => write_prefix(f, [*no_masquerade, *pods, *shared, *complete]),
            Self::Settings(settings) => write_settings(f, settings),
        }
    }
}

fn write_prefix(
    f: &mut fmt::Formatter<'_>,
    [no_masquerade, pods, shared, complete]: [bool; 4],
) -> fmt::Result {
    f.write_str(match (no_masquerade, pods) {
        (true, true) => "pods, not masqueraded",
        (true, false) => "not masqueraded",
        (false, true) => "pods",
        (false, false) => "default",
    })?;
    f.write_str(if shared { ", shared" } else { "" })?;
    f.write_str(if complete { ", complete" } else { "" })
}

fn write_settings(f: &mut fmt::Formatter<'_>, settings: &abi::Settings) -> fmt::Result {
    write!(
        f,
        "masquerade ports {}-{}, at most {} flows per pod, TCP idle timeout {} s",
        settings.port_low,
        settings.port_high,
        settings.flow_quota,
        settings.timeouts.tcp_established
    )?;
    let exit_check = settings.flags & abi::SettingsFlags::EXIT_CHECK != 0;
    f.write_str(if exit_check {
        ", pods leave by uplinks only"
    } else {
        ""
    })
}

impl Entry {
    fn write_network(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Network {
            v4,
            v6,
            mac,
            duplicates,
        } = self
        else {
            return Ok(());
        };
        write!(f, "{mac}, gateways")?;
        let mut gateways = [v4, v6].into_iter().flatten();
        gateways.try_for_each(|gateway| write!(f, " {gateway}"))?;
        f.write_str(duplicates.map_or("", |_| ", promiscuous"))
    }

    fn write_limit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Limit {
            ingress,
            egress,
            shaped_subnets,
            generation,
        } = self
        else {
            return Ok(());
        };
        for (name, shape) in [("ingress", ingress), ("egress", egress)] {
            match shape {
                Some(shape) => write!(f, "{name} {shape}, ")?,
                None => write!(f, "{name} unlimited, ")?,
            }
        }
        let named = match **shaped_subnets {
            ShapedSubnets::All => "",
            ShapedSubnets::Only(_) => "only for ",
            ShapedSubnets::Except(_) => "except for ",
        };
        f.write_str(named)?;
        (shaped_subnets.prefixes().iter()).try_for_each(|prefix| write!(f, "{prefix}, "))?;
        write!(f, "generation {generation}")
    }

    fn write_pod(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Pod {
            v4,
            v6,
            mac,
            link,
            bridge,
            generation,
            masquerade,
            trusted,
            bypass,
            isolated,
            ingress,
            access,
        } = self
        else {
            return Ok(());
        };
        for address in [v4, v6].into_iter().flatten() {
            write!(f, "{address}, ")?;
        }
        let mode = masquerading(*masquerade);
        write!(
            f,
            "{mac} behind {link} on {bridge}, generation {generation}, {mode}"
        )?;
        f.write_str(if *trusted { ", source not checked" } else { "" })?;
        f.write_str(if *bypass { "" } else { ", no bypass" })?;
        f.write_str(if *isolated { ", isolated" } else { "" })?;
        match ingress {
            IngressPolicy::Open => {}
            IngressPolicy::SameBridge | IngressPolicy::Isolated => {
                write!(f, ", ingress policy {ingress}")?;
            }
        }
        f.write_str(match access {
            NetworkAccess::Direct => "",
            NetworkAccess::Published => ", no direct access",
            NetworkAccess::Internal => ", internal",
        })
    }
}

fn write_from<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    addresses: impl IntoIterator<Item = T>,
) -> fmt::Result {
    f.write_str("from")?;
    let mut addresses = addresses.into_iter();
    addresses.try_for_each(|address| write!(f, " {address}"))
}

fn limits(on: bool) -> &'static str {
    if on { ", limited" } else { "" }
}

fn masquerading(on: bool) -> &'static str {
    if on { "masqueraded" } else { "not masqueraded" }
}
