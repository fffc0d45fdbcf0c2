//! Options of networks (`docker network create --opt NAME=VALUE`).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU64;
use std::str::FromStr;

use model::{EgressAddresses, Families, IfName, Rates};

use crate::Refused;

/// An option of Docker's drivers, or one that Viaduct adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkOption {
    /// Name of the option.
    pub name: &'static str,
    /// What becomes of it.
    pub support: Support,
}

/// What becomes of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It is honoured, as this key of a CNI configuration would be.
    Key(&'static str),
    /// It is refused with its name, for this reason.
    Refused(&'static str),
}

const BRIDGE: &str = "com.docker.network.bridge.name";
const MASQUERADE: &str = "com.docker.network.bridge.enable_ip_masquerade";
const ICC: &str = "com.docker.network.bridge.enable_icc";
const BINDING: &str = "com.docker.network.bridge.host_binding_ipv4";
const MODE_V4: &str = "com.docker.network.bridge.gateway_mode_ipv4";
const MODE_V6: &str = "com.docker.network.bridge.gateway_mode_ipv6";
const MTU: &str = "com.docker.network.driver.mtu";
const TRUSTED: &str = "com.docker.network.bridge.trusted_host_interfaces";
const HOST_V4: &str = "com.docker.network.host_ipv4";
const HOST_V6: &str = "com.docker.network.host_ipv6";
const PREFIX: &str = "com.docker.network.container_iface_prefix";
const INGRESS: &str = "viaduct.ingress-rate";
const EGRESS: &str = "viaduct.egress-rate";

/// All known options. Others are refused as unknown.
pub const NETWORK_OPTIONS: [NetworkOption; 17] = [
    honoured(BRIDGE, "bridge"),
    honoured(MASQUERADE, "ipMasq"),
    honoured(ICC, "portIsolation, ingressPolicy"),
    honoured(BINDING, "hostIP"),
    honoured(MODE_V4, "directAccess, isGateway, ipMasq"),
    honoured(MODE_V6, "directAccess, isGateway, ipMasq"),
    honoured(TRUSTED, "directAccess"),
    honoured(MTU, "mtu"),
    honoured(HOST_V4, "egressAddresses"),
    honoured(HOST_V6, "egressAddresses"),
    honoured(PREFIX, "CNI_IFNAME"),
    honoured(INGRESS, "bandwidth.ingressRate"),
    honoured(EGRESS, "bandwidth.egressRate"),
    refused(
        "com.docker.network.bridge.default_bridge",
        "the network `bridge` is of Docker's own driver",
    ),
    refused(
        "com.docker.network.bridge.inhibit_ipv4",
        "the mode `isolated` of an internal network has no gateway address",
    ),
    refused("parent", "it is an option of macvlan and ipvlan"),
    refused("ipvlan_mode", "it is an option of ipvlan"),
];

const fn honoured(name: &'static str, key: &'static str) -> NetworkOption {
    let support = Support::Key(key);
    NetworkOption { name, support }
}

const fn refused(name: &'static str, why: &'static str) -> NetworkOption {
    let support = Support::Refused(why);
    NetworkOption { name, support }
}

/// Smallest MTU of IPv4 (RFC 791).
const MIN_MTU: u32 = 68;
/// Longest name of an interface.
const IFNAME_LENGTH: usize = 15;
/// Length of the number that dockerd adds to the prefix of an interface.
const NUMBER_LENGTH: usize = 2;

/// How the outside reaches containers in a family, and how they reach it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum GatewayMode {
    /// Only published ports are reached, by addresses of the node.
    #[default]
    Nat,
    /// As `Nat`; besides, all ports are reached by the addresses of the containers.
    NatUnprotected,
    /// Only published ports are reached, by the addresses of the containers, which they keep on the
    /// way out.
    Routed,
    /// The node has no address on the bridge.
    Isolated,
}

/// The gateway modes of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GatewayModes {
    /// Whether all ports of the containers are reached from outside.
    pub(crate) is_open: bool,
    /// Whether the node has no address on the bridge.
    pub(crate) is_isolated: bool,
    /// Families in mode [`GatewayMode::Routed`].
    pub(crate) routed: Families,
}

/// The options of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) bridge: Option<IfName>,
    pub(crate) masquerade: bool,
    /// Whether containers of the network reach each other.
    pub(crate) icc: bool,
    /// Address of ports that are published without one.
    pub(crate) binding: Option<Ipv4Addr>,
    /// Modes for IPv4 and IPv6; `None` if not set.
    pub(crate) modes: [Option<GatewayMode>; 2],
    /// Uplinks by which all ports of the containers are reached.
    pub(crate) trusted_links: BTreeSet<IfName>,
    /// MTU in bytes; `None` for that of the node's links.
    pub(crate) mtu: Option<u32>,
    pub(crate) egress: EgressAddresses,
    pub(crate) prefix: String,
    /// Limits of each container.
    pub(crate) limits: Rates,
}

impl Options {
    /// Parses the options; one that Viaduct does not have is refused.
    pub(crate) fn read(map: &BTreeMap<String, String>) -> Result<Self, Refused> {
        for (name, value) in map {
            check_support(name, value)?;
        }
        Ok(Self {
            bridge: parsed(map, BRIDGE, "a name of an interface")?,
            masquerade: flag(map, MASQUERADE)?.unwrap_or(true),
            icc: flag(map, ICC)?.unwrap_or(true),
            binding: parsed::<Ipv4Addr>(map, BINDING, "an IPv4 address")?
                .filter(|address| !address.is_unspecified()),
            modes: [mode(map, MODE_V4)?, mode(map, MODE_V6)?],
            trusted_links: links(map, TRUSTED)?,
            mtu: mtu(map)?,
            egress: EgressAddresses {
                v4: parsed(map, HOST_V4, "an IPv4 address")?,
                v6: parsed::<Ipv6Addr>(map, HOST_V6, "an IPv6 address")?,
            },
            prefix: prefix(map)?,
            limits: Rates {
                ingress: rate(map, INGRESS)?,
                egress: rate(map, EGRESS)?,
            },
        })
    }

    /// Returns the modes of the families that the network has. `nat` and `routed` can be combined,
    /// all others must agree: a container has one access.
    pub(crate) fn gateway_modes(
        &self,
        has_ipv4: bool,
        has_ipv6: bool,
    ) -> Result<GatewayModes, Refused> {
        use GatewayMode::{Isolated, Nat, NatUnprotected, Routed};
        let [v4, v6] = self.modes.map(Option::unwrap_or_default);
        let (v4, v6) = match (has_ipv4, has_ipv6) {
            (true, true) => (v4, v6),
            (true, false) => (v4, v4),
            (false, _) => (v6, v6),
        };
        if v4 != v6 && !matches!((v4, v6), (Nat, Routed) | (Routed, Nat)) {
            return Err(Refused::new(format!(
                "{MODE_V4} and {MODE_V6} differ: only nat and routed can be combined"
            )));
        }
        Ok(GatewayModes {
            is_open: v4 == NatUnprotected,
            is_isolated: v4 == Isolated,
            routed: Families {
                v4: has_ipv4 && v4 == Routed,
                v6: has_ipv6 && v6 == Routed,
            },
        })
    }
}

fn check_support(name: &str, value: &str) -> Result<(), Refused> {
    let known = NETWORK_OPTIONS.iter().find(|option| option.name == name);
    match known.map(|option| option.support) {
        Some(Support::Key(_)) => Ok(()),
        // The default of the reference.
        Some(Support::Refused(_)) if value == "false" => Ok(()),
        Some(Support::Refused(why)) => Err(Refused::option(name, value, why)),
        None => Err(Refused::option(
            name,
            value,
            "the driver viaduct has no such option",
        )),
    }
}

fn parsed<T: FromStr>(
    map: &BTreeMap<String, String>,
    name: &str,
    what: &str,
) -> Result<Option<T>, Refused> {
    let Some(text) = map.get(name).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let value = text.parse();
    let invalid = |_| Refused::option(name, text, &format!("{what} is expected"));
    value.map(Some).map_err(invalid)
}

/// Parses a flag as Go does.
fn flag(map: &BTreeMap<String, String>, name: &str) -> Result<Option<bool>, Refused> {
    match map.get(name).map(String::as_str) {
        None | Some("") => Ok(None),
        Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Some(true)),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Some(false)),
        Some(text) => Err(Refused::option(name, text, "true or false is expected")),
    }
}

fn mode(map: &BTreeMap<String, String>, name: &str) -> Result<Option<GatewayMode>, Refused> {
    match map.get(name).map(String::as_str) {
        None | Some("") => Ok(None),
        Some("nat") => Ok(Some(GatewayMode::Nat)),
        Some("nat-unprotected") => Ok(Some(GatewayMode::NatUnprotected)),
        Some("routed") => Ok(Some(GatewayMode::Routed)),
        Some("isolated") => Ok(Some(GatewayMode::Isolated)),
        Some(text) => Err(Refused::option(
            name,
            text,
            "nat, nat-unprotected, routed or isolated is expected",
        )),
    }
}

/// Parses names of interfaces, separated by colons.
fn links(map: &BTreeMap<String, String>, name: &str) -> Result<BTreeSet<IfName>, Refused> {
    let text = map.get(name).map_or("", String::as_str);
    let names = text.split(':').filter(|name| !name.is_empty());
    names
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(|_| Refused::option(name, text, "names of interfaces are expected, as eth0:eth1"))
}

/// Parses the MTU; 0 is that of the node's links.
fn mtu(map: &BTreeMap<String, String>) -> Result<Option<u32>, Refused> {
    let bytes: Option<u32> = parsed(map, MTU, "a number of bytes")?;
    let Some(bytes) = bytes.filter(|bytes| *bytes > 0) else {
        return Ok(None);
    };
    if (MIN_MTU..=65_535).contains(&bytes) {
        Ok(Some(bytes))
    } else {
        let text = bytes.to_string();
        Err(Refused::option(
            MTU,
            &text,
            "68 to 65535 bytes are possible",
        ))
    }
}

/// Parses the beginning of the name of a container's interface.
fn prefix(map: &BTreeMap<String, String>) -> Result<String, Refused> {
    let Some(text) = map.get(PREFIX).filter(|text| !text.is_empty()) else {
        return Ok("eth".to_owned());
    };
    let fits = text.len() + NUMBER_LENGTH <= IFNAME_LENGTH;
    if fits && text.parse::<IfName>().is_ok() {
        Ok(text.clone())
    } else {
        let why = "the beginning of a name of an interface is expected, at most 13 bytes";
        Err(Refused::option(PREFIX, text, why))
    }
}

fn rate(map: &BTreeMap<String, String>, name: &str) -> Result<Option<NonZeroU64>, Refused> {
    let Some(text) = map.get(name) else {
        return Ok(None);
    };
    let rate = cni::parse_rate(text).map_err(|why| Refused::option(name, text, &why))?;
    Ok(NonZeroU64::new(rate))
}

/// Returns the address of a published port that is bound without one.
pub(crate) fn default_binding(options: &Options) -> Option<IpAddr> {
    options.binding.map(IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Options, Refused> {
        let pairs = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Options::read(&pairs.collect())
    }

    #[test]
    fn options_of_a_docker_network_have_dockers_defaults() {
        let options = read(&[]).unwrap();
        assert!(options.masquerade && options.icc);
        assert_eq!(options.prefix, "eth");
        assert_eq!((options.mtu, options.binding), (None, None));
        assert!(options.trusted_links.is_empty());
        let modes = options.gateway_modes(true, true);
        assert_eq!(modes, Ok(GatewayModes::default()));
    }

    #[test]
    fn options_of_a_docker_network_are_read() {
        let options = read(&[
            (BRIDGE, "apps0"),
            (MASQUERADE, "false"),
            (ICC, "0"),
            (BINDING, "192.0.2.9"),
            (MODE_V4, "nat-unprotected"),
            (TRUSTED, "eth1:vxlan.1"),
            (MTU, "1400"),
            (HOST_V4, "192.0.2.10"),
            (PREFIX, "app"),
            (INGRESS, "50M"),
            ("com.docker.network.bridge.default_bridge", "false"),
        ])
        .unwrap();
        assert_eq!(options.bridge.as_ref().map(IfName::as_str), Some("apps0"));
        assert!(!options.masquerade && !options.icc);
        assert_eq!(default_binding(&options), Some([192, 0, 2, 9].into()));
        assert!(options.gateway_modes(true, false).unwrap().is_open);
        let links: Vec<&str> = options.trusted_links.iter().map(IfName::as_str).collect();
        assert_eq!(links, ["eth1", "vxlan.1"]);
        assert_eq!(options.mtu, Some(1400));
        assert_eq!(options.egress.v4, Some([192, 0, 2, 10].into()));
        assert_eq!(options.prefix, "app");
        assert_eq!(
            options.limits.ingress.map(NonZeroU64::get),
            Some(50_000_000)
        );
    }

    #[test]
    fn options_of_a_docker_network_are_refused_by_name() {
        for (name, value) in [
            ("com.docker.network.bridge.inhibit_ipv4", "true"),
            (TRUSTED, "eth1:a name with spaces"),
            ("com.docker.network.windowsshim.interface", "x"),
            ("parent", "eth0"),
            ("flavour", "sweet"),
            (MODE_V4, "bridged"),
            (MTU, "many"),
            (MTU, "67"),
            (ICC, "maybe"),
            (BRIDGE, "a name with spaces"),
            (PREFIX, "fourteen-bytes"),
            (BINDING, "::1"),
            (INGRESS, "fast"),
        ] {
            let refused = read(&[(name, value)]).unwrap_err();
            assert!(refused.0.contains(name), "{refused}");
            assert!(refused.0.contains(value), "{refused}");
        }
    }

    #[test]
    fn only_nat_and_routed_can_be_combined_as_gateway_modes() {
        let all = ["nat", "nat-unprotected", "routed", "isolated"];
        for (v4, v6) in all.iter().flat_map(|v4| all.map(|v6| (*v4, v6))) {
            let options = read(&[(MODE_V4, v4), (MODE_V6, v6)]).unwrap();
            let modes = options.gateway_modes(true, true);
            if v4 == v6 || [v4, v6].iter().all(|mode| ["nat", "routed"].contains(mode)) {
                let expected = GatewayModes {
                    is_open: v4 == "nat-unprotected",
                    is_isolated: v4 == "isolated",
                    routed: Families {
                        v4: v4 == "routed",
                        v6: v6 == "routed",
                    },
                };
                assert_eq!(modes, Ok(expected), "{v4} {v6}");
            } else {
                assert!(modes.unwrap_err().0.contains(MODE_V6), "{v4} {v6}");
            }
        }
        // The mode of a family that the network lacks has no effect.
        let options = read(&[(MODE_V4, "nat-unprotected")]).unwrap();
        let modes = options.gateway_modes(false, true);
        assert_eq!(modes, Ok(GatewayModes::default()));
    }

    #[test]
    fn the_page_lists_the_options_of_docker_networks() {
        let page = include_str!("../../../docs/docker.md");
        let mut sections = page.split("\n## ");
        let section = sections.find(|text| text.starts_with("Options of a network"));
        let mut rows = section
            .expect("the page has the section")
            .lines()
            .filter(|line| line.starts_with("| `"));
        for option in NETWORK_OPTIONS {
            let row = rows.next().unwrap_or_default();
            assert!(row.starts_with(&format!("| `{}` |", option.name)), "{row}");
            match option.support {
                Support::Key(key) => assert!(row.contains(&format!("| `{key}` |")), "{row}"),
                Support::Refused(_) => assert!(row.contains("| refused |"), "{row}"),
            }
        }
        let modes: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        assert_eq!(modes, ["nat", "nat-unprotected", "routed", "isolated"]);
    }
}
