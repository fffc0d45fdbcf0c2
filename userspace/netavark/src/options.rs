//! Options of networks (`podman network create --opt NAME=VALUE`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use cni::Error;

use crate::input::OptionMap;

/// An option that netavark's own drivers have, or that Viaduct adds.
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
    /// It is honoured, by this key of a CNI configuration.
    Key(&'static str),
    /// It is refused with its name, for this reason.
    Refused(&'static str),
}

/// All known options. Others are refused as unknown.
pub const NETWORK_OPTIONS: [NetworkOption; 11] = [
    honoured("mtu", "mtu"),
    honoured("metric", "ipam.routes[].priority"),
    honoured("no_default_route", "ipam.routes"),
    honoured("isolate", "ingressPolicy"),
    honoured("socket", "socket"),
    refused("mode", "Viaduct manages its bridge"),
    refused(
        "vlan",
        "the gateway of a managed bridge is in no VLAN; the CNI key `vlan` has one for each VLAN",
    ),
    refused("vrf", "Viaduct routes by the main table of the node"),
    honoured("outbound_addr4", "egressAddresses"),
    honoured("outbound_addr6", "egressAddresses"),
    refused("bclim", "it is an option of macvlan"),
];

const fn honoured(name: &'static str, key: &'static str) -> NetworkOption {
    let support = Support::Key(key);
    NetworkOption { name, support }
}

const fn refused(name: &'static str, why: &'static str) -> NetworkOption {
    let support = Support::Refused(why);
    NetworkOption { name, support }
}

/// Metric of routes without one, as in netavark.
const DEFAULT_METRIC: u32 = 100;

/// The options of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// MTU in bytes; 0 for that of the uplink.
    pub(crate) mtu: u32,
    /// Metric of routes that have none of their own.
    pub(crate) metric: u32,
    pub(crate) no_default_route: bool,
    pub(crate) isolate: bool,
    /// Source addresses of masqueraded flows.
    pub(crate) outbound: Vec<IpAddr>,
}

impl Options {
    /// Parses the options; one that Viaduct does not have is an error (code 2).
    pub(crate) fn read(map: &OptionMap) -> Result<Self, Error> {
        for (name, value) in map {
            check_support(name, value)?;
        }
        Ok(Self {
            mtu: parsed(map, "mtu", "a number of bytes")?.unwrap_or_default(),
            metric: parsed(map, "metric", "a number")?.unwrap_or(DEFAULT_METRIC),
            no_default_route: parsed(map, "no_default_route", "true or false")?.unwrap_or_default(),
            isolate: isolate(map)?,
            outbound: outbound(map)?,
        })
    }
}

fn check_support(name: &str, value: &str) -> Result<(), Error> {
    let known = NETWORK_OPTIONS.iter().find(|option| option.name == name);
    let why = match known.map(|option| option.support) {
        Some(Support::Key(_)) => return Ok(()),
        // The default of the reference.
        Some(Support::Refused(_)) if (name, value) == ("mode", "managed") => return Ok(()),
        Some(Support::Refused(why)) => why,
        None => "Viaduct has no such option",
    };
    Err(Error::unsupported_field(&format!("option {name}"), value).with_details(why))
}

/// Parses `isolate`. `strict` also separates the network from those that do not isolate themselves,
/// which no key does.
fn isolate(map: &OptionMap) -> Result<bool, Error> {
    match map.get("isolate").map(String::as_str) {
        None => Ok(false),
        Some("strict") => Err(Error::unsupported_field("option isolate", "strict").with_details(
            "true separates networks that have it from each other; an internal network reaches none",
        )),
        Some(text) => {
            let flag = text.parse();
            flag.map_err(|_| invalid("isolate", text, "true or false"))
        }
    }
}

/// Parses the outbound addresses of both families.
fn outbound(map: &OptionMap) -> Result<Vec<IpAddr>, Error> {
    let v4: Option<Ipv4Addr> = parsed(map, "outbound_addr4", "an IPv4 address")?;
    let v6: Option<Ipv6Addr> = parsed(map, "outbound_addr6", "an IPv6 address")?;
    let both = [v4.map(IpAddr::V4), v6.map(IpAddr::V6)];
    Ok(both.into_iter().flatten().collect())
}

fn parsed<T: FromStr>(map: &OptionMap, name: &str, wanted: &str) -> Result<Option<T>, Error> {
    let Some(text) = map.get(name) else {
        return Ok(None);
    };
    let value = text.parse();
    value.map(Some).map_err(|_| invalid(name, text, wanted))
}

fn invalid(name: &str, text: &str, wanted: &str) -> Error {
    Error::invalid_config(format!("option {name}: {text:?} is not {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Options, Error> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Options::read(&pairs.iter().map(owned).collect())
    }

    #[test]
    fn options_are_read_and_missing_ones_have_netavarks_defaults() {
        let defaults = read(&[]).unwrap();
        assert_eq!((defaults.mtu, defaults.metric), (0, 100));
        assert!(!defaults.isolate && !defaults.no_default_route);
        let set = read(&[
            ("mtu", "1400"),
            ("metric", "7"),
            ("isolate", "true"),
            ("no_default_route", "true"),
            ("mode", "managed"),
        ])
        .unwrap();
        assert_eq!((set.mtu, set.metric), (1400, 7));
        assert!(set.isolate && set.no_default_route);
    }

    #[test]
    fn an_option_that_viaduct_does_not_have_is_refused_by_name_and_value() {
        for option in NETWORK_OPTIONS {
            let answer = read(&[(option.name, "x9")]);
            match option.support {
                Support::Refused(why) => {
                    let error = answer.unwrap_err();
                    assert_eq!(error.code, 2, "{}", option.name);
                    let words = format!("unsupported field option {}: x9", option.name);
                    assert_eq!((error.msg, error.details.as_str()), (words, why));
                }
                Support::Key(_) => assert!(answer.is_ok() || answer.unwrap_err().code == 7),
            }
        }
        for (name, value) in [("colour", "red"), ("isolate", "strict")] {
            let error = read(&[(name, value)]).unwrap_err();
            assert_eq!(
                error.msg,
                format!("unsupported field option {name}: {value}")
            );
        }
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_with_the_option() {
        for (name, value) in [("mtu", "big"), ("metric", "-1"), ("isolate", "yes")] {
            let error = read(&[(name, value)]).unwrap_err();
            assert_eq!(error.code, 7);
            assert!(
                error
                    .msg
                    .starts_with(&format!("option {name}: {value:?} is not"))
            );
        }
    }

    /// The table of the page has a row for each option, and no other.
    #[test]
    fn the_page_lists_the_options_of_networks() {
        let page = include_str!("../../../docs/podman.md");
        let section = page
            .split("\n## ")
            .find(|text| text.starts_with("Options of a network"));
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
        assert_eq!(rows.next(), None);
    }
}
