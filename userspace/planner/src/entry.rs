//! Entries of the datapath's tables, as the planner speaks of them: links by name, because an interface index is
//! known only once the link exists. The kernel crate turns them into `abi`'s bytes and back.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use model::{Cidr, IfName, IngressPolicy, InterfaceAddress, Mac, Peers, Protocol};

use crate::Shape;

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
    /// The limits of the pod in a row of the pod table.
    Limit(u32),
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
    /// The network of a bridge.
    Network(LinkRef),
    /// The egress addresses of a bridge's networks.
    Egress(LinkRef),
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
        /// Whether the pod may send with addresses that are not its own.
        trusted: bool,
        /// Whether the bridge does nothing for it but to forward, so that packets may go past it.
        bypass: bool,
        /// Whether the bridge keeps it apart from other isolated ports.
        isolated: bool,
        /// Which other pods are kept from it.
        ingress: IngressPolicy,
    },
    /// A free row that remembers the generation of its last owner. Written in place of a removal.
    FreePod {
        /// Generation of the last owner.
        generation: u32,
    },
    /// The limits of a pod's traffic.
    Limit {
        /// To the pod.
        ingress: Option<Shape>,
        /// From the pod.
        egress: Option<Shape>,
        /// With whom they count. Apart, since entries are many and few of them are limits.
        peers: Box<Peers>,
        /// Generation.
        generation: u32,
    },
    /// The pod of a host link.
    Interface {
        /// Row of the pod table.
        slot: u32,
        /// Whether traffic of the pod is limited.
        limited: bool,
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
        /// Whether ports of the node lead to the pod.
        published: bool,
        /// Whether traffic of the pod is limited.
        limited: bool,
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
    /// The network of a bridge.
    Network {
        /// A gateway of IPv4.
        v4: Option<IpAddr>,
        /// A gateway of IPv6.
        v6: Option<IpAddr>,
        /// Ethernet address of the bridge.
        mac: Mac,
        /// Where we have made the bridge promiscuous: the prefix lengths of the subnets around the gateways, IPv4
        /// first, whose addresses mark duplicates; 0 without a subnet.
        duplicates: Option<[u8; 2]>,
    },
    /// The addresses that pods of a bridge's networks leave with, whatever the uplink.
    Egress {
        /// IPv4 address; `None` for the uplink's.
        v4: Option<IpAddr>,
        /// IPv6 address; `None` for the uplink's.
        v6: Option<IpAddr>,
    },
    /// An uplink.
    Uplink {
        /// Whether packets have an Ethernet header.
        ethernet: bool,
        /// MTU in bytes.
        mtu: u32,
        /// Addresses that MASQUERADE may choose from, in the kernel's order, at most [`abi::SOURCES`].
        sources: Vec<InterfaceAddress>,
        /// Whether our programs are attached: as long as they are not, nothing of a pod may leave by it.
        open: bool,
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

impl LinkRef {
    fn is_gone(&self) -> bool {
        matches!(self, Self::Gone(_))
    }
}

impl EntryKey {
    /// Whether the key names a link that is gone: such a key can be removed, never written.
    pub fn speaks_of_gone(&self) -> bool {
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
    /// Whether the entry names a link that is gone.
    pub fn speaks_of_gone(&self) -> bool {
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
            Self::Local => f.write_str("ours"),
            Self::Prefix {
                no_masquerade,
                pods,
            } => f.write_str(match (no_masquerade, pods) {
                (true, true) => "pods, not masqueraded",
                (true, false) => "not masqueraded",
                (false, true) => "pods",
                (false, false) => "nothing particular",
            }),
            Self::Settings(settings) => write_settings(f, settings),
        }
    }
}

fn write_settings(f: &mut fmt::Formatter<'_>, settings: &abi::Settings) -> fmt::Result {
    write!(
        f,
        "masquerade ports {}-{}, {} flows for a pod, TCP kept for {} s",
        settings.port_low,
        settings.port_high,
        settings.flow_quota,
        settings.timeouts.tcp_established
    )?;
    let guarded = settings.flags & abi::SettingsFlags::GUARDED != 0;
    f.write_str(if guarded {
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
            peers,
            generation,
        } = self
        else {
            return Ok(());
        };
        for (name, shape) in [("to", ingress), ("from", egress)] {
            match shape {
                Some(shape) => write!(f, "{name} it {shape}, ")?,
                None => write!(f, "{name} it no limit, ")?,
            }
        }
        let named = match **peers {
            Peers::All => "",
            Peers::Only(_) => "only with ",
            Peers::Except(_) => "but not with ",
        };
        f.write_str(named)?;
        (peers.prefixes().iter()).try_for_each(|prefix| write!(f, "{prefix}, "))?;
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
        f.write_str(if *trusted { ", not checked" } else { "" })?;
        f.write_str(if *bypass { "" } else { ", by the bridge" })?;
        f.write_str(if *isolated { ", isolated" } else { "" })?;
        match ingress {
            IngressPolicy::Open => Ok(()),
            IngressPolicy::SameBridge | IngressPolicy::Isolated => {
                write!(f, ", ingress policy {ingress}")
            }
        }
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
