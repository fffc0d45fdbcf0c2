//! Parts of the text of entries.

use std::fmt;

use model::{Families, IngressPolicy, NetworkAccess, ShapedSubnets};

use super::Entry;

pub(super) fn write_prefix(
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

pub(super) fn write_settings(f: &mut fmt::Formatter<'_>, settings: &abi::Settings) -> fmt::Result {
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
    pub(super) fn write_network(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    pub(super) fn write_limit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    pub(super) fn write_uplink(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    pub(super) fn write_pod(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

pub(super) fn write_from<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    addresses: impl IntoIterator<Item = T>,
) -> fmt::Result {
    f.write_str("from")?;
    let mut addresses = addresses.into_iter();
    addresses.try_for_each(|address| write!(f, " {address}"))
}

pub(super) fn limits(on: bool) -> &'static str {
    if on { ", limited" } else { "" }
}

pub(super) fn masquerading(families: Families) -> &'static str {
    match (families.v4, families.v6) {
        (true, true) => "masqueraded",
        (true, false) => "IPv4 masqueraded",
        (false, true) => "IPv6 masqueraded",
        (false, false) => "not masqueraded",
    }
}
