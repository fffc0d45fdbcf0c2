//! Keys and entries as text.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use model::{Families, IngressPolicy, NetworkAccess, ShapedSubnets};

use super::{Entry, EntryKey};

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
            Self::TrustedLink { bridge, link } => write!(f, "trusted link {link} of {bridge}"),
            Self::Uplink(link) => write!(f, "uplink {link}"),
            Self::Local(address) => write!(f, "local address {address}"),
            Self::Prefix(cidr) => write!(f, "prefix {cidr}"),
            Self::TunnelPeer(address) => write!(f, "tunnel peer {address}"),
            Self::RuleSets(slot) => write!(f, "rule sets of pod {slot}"),
            Self::Identity(prefix) => write!(f, "identity of {prefix}"),
            Self::PolicyRule(key) => write!(f, "{key}"),
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
            Self::Uplink { .. } => self.write_uplink(f),
            Self::Local => f.write_str("local"),
            Self::Prefix {
                no_masquerade,
                pods,
                shared,
                complete,
                peer,
            } => write_prefix(f, [*no_masquerade, *pods, *shared, *complete, *peer]),
            Self::TrustedLink => f.write_str("trusted link"),
            Self::TunnelPeer => f.write_str("tunnel peer"),
            Self::RuleSets {
                generation,
                ingress,
                egress,
            } => write!(
                f,
                "generation {generation}, ingress {ingress:08x}, egress {egress:08x}"
            ),
            Self::Identity(identity) => write!(f, "{identity:08x}"),
            Self::PolicyRule => f.write_str("allowed"),
            Self::Settings(settings) => write_settings(f, settings),
        }
    }
}

fn write_prefix(
    f: &mut fmt::Formatter<'_>,
    [no_masquerade, pods, shared, complete, peer]: [bool; 5],
) -> fmt::Result {
    f.write_str(match (no_masquerade, pods) {
        (true, true) => "pods, not masqueraded",
        (true, false) => "not masqueraded",
        (false, true) => "pods",
        (false, false) => "default",
    })?;
    f.write_str(if shared { ", shared" } else { "" })?;
    f.write_str(if complete { ", complete" } else { "" })?;
    f.write_str(if peer { ", of a peer" } else { "" })
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

    fn write_uplink(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Uplink {
            ethernet,
            mtu,
            sources,
            open,
            tunnel,
        } = self
        else {
            return Ok(());
        };
        let framing = match (tunnel, ethernet) {
            (true, _) => "tunnel",
            (false, true) => "Ethernet",
            (false, false) => "raw",
        };
        write!(f, "{framing}, MTU {mtu}, ")?;
        write_from(f, sources)?;
        f.write_str(if *open { "" } else { ", closed" })
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
            routed,
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
        })?;
        f.write_str(match (routed.v4, routed.v6) {
            (true, true) => ", routed",
            (true, false) => ", IPv4 routed",
            (false, true) => ", IPv6 routed",
            (false, false) => "",
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

fn masquerading(families: Families) -> &'static str {
    match (families.v4, families.v6) {
        (true, true) => "masqueraded",
        (true, false) => "IPv4 masqueraded",
        (false, true) => "IPv6 masqueraded",
        (false, false) => "not masqueraded",
    }
}
