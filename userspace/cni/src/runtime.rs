//! Wishes for one attachment, from `CNI_ARGS`, `args.cni` and `runtimeConfig`.
//!
//! `runtimeConfig` beats `args.cni`, which beats `CNI_ARGS` (behaviours R1, S16). For addresses that holds per family:
//! nerdctl asks for the IPv4 address by `CNI_ARGS` and for the IPv6 one by `runtimeConfig`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;

use model::{InterfaceAddress, Mac, PodName, PortMapping, Protocol, RangeSet};

use crate::Error;
use crate::annotation::CAPABILITY;
use crate::args::Args;
use crate::bandwidth::{self, Asked};
use crate::ipam::{range_set, single_range};
use crate::json::Object;

/// What a runtime wishes for one attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Ports to publish.
    pub port_mappings: Vec<PortMapping>,
    /// Addresses.
    pub addresses: Vec<AddressWish>,
    /// Whether a source later than `CNI_ARGS` asks for addresses: they take the place of static ones.
    pub replaces_addresses: bool,
    /// Gateways of static addresses.
    pub gateways: Vec<IpAddr>,
    /// Ethernet address of the pod's end.
    pub mac: Option<Mac>,
    /// Ranges to serve before those of the configuration.
    pub ranges: Vec<RangeSet>,
    /// The pod's name.
    pub pod: Option<PodName>,
    /// Limits of its traffic.
    pub limits: Asked,
    /// The pod's annotations, where the runtime hands them on; keys in lower case.
    pub annotations: BTreeMap<String, String>,
}

/// An address that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressWish {
    /// The address.
    pub address: IpAddr,
    /// The length of its subnet, where that is said: ranges decide by themselves.
    pub prefix_len: Option<u8>,
}

impl Wishes {
    /// The addresses with the lengths of their subnets, which nobody else knows of static ones.
    pub(crate) fn interface_addresses(&self) -> Result<Vec<InterfaceAddress>, Error> {
        let whole = |wish: &AddressWish| {
            let prefix_len = wish.prefix_len.ok_or_else(|| {
                Error::invalid_config(format!(
                    "an entry in the 'ips' field is NOT in CIDR notation, got: '{}'",
                    wish.address
                ))
            })?;
            Ok(InterfaceAddress {
                address: wish.address,
                prefix_len,
            })
        };
        self.addresses.iter().map(whole).collect()
    }

    /// Reads the wishes of a configuration and of `CNI_ARGS`.
    pub(crate) fn read(config: &Object<'_>, args: Args) -> Result<Self, Error> {
        let mut wishes = Self {
            limits: bandwidth::read(config)?,
            addresses: args.addresses,
            gateways: args.gateways,
            mac: args.mac,
            pod: args.pod,
            ..Self::default()
        };
        if let Some(args) = config.object("args")?
            && let Some(cni) = args.object("cni")?
        {
            wishes.override_with(&cni)?;
        }
        if let Some(runtime) = config.object("runtimeConfig")? {
            wishes.override_with(&runtime)?;
            wishes.ranges = ranges(&runtime)?;
            wishes.port_mappings = port_mappings(&runtime)?;
            wishes.annotations = annotations(&runtime)?;
        }
        Ok(wishes)
    }

    fn override_with(&mut self, source: &Object<'_>) -> Result<(), Error> {
        let addresses = addresses(source)?;
        self.addresses.retain(|own| {
            let mut families = addresses.iter().map(|wish| wish.address.is_ipv4());
            !families.any(|ipv4| ipv4 == own.address.is_ipv4())
        });
        self.replaces_addresses |= !addresses.is_empty();
        self.addresses.extend(addresses);
        if let Some(node) = source.get("mac") {
            self.mac = Some(parse_mac(node.text()?).map_err(|why| node.invalid(why))?);
        }
        Ok(())
    }
}

fn addresses(source: &Object<'_>) -> Result<Vec<AddressWish>, Error> {
    source
        .list("ips")?
        .into_iter()
        .map(|node| parse_wish(node.text()?).map_err(|why| node.invalid(why)))
        .collect()
}

/// `ipRanges`: a list of lists, as the specification has it, or a flat list, as go-cni sends it (behaviour B0.1).
fn ranges(runtime: &Object<'_>) -> Result<Vec<RangeSet>, Error> {
    runtime
        .list("ipRanges")?
        .into_iter()
        .map(|node| {
            if node.value().is_array() {
                range_set(&node)
            } else {
                single_range(&node)
            }
        })
        .collect()
}

fn port_mappings(runtime: &Object<'_>) -> Result<Vec<PortMapping>, Error> {
    let mut mappings = Vec::new();
    let mut seen = BTreeSet::new();
    for node in runtime.list("portMappings")? {
        let mapping = port_mapping(&node.object()?)?;
        if seen.insert(mapping) {
            mappings.push(mapping);
        }
    }
    Ok(mappings)
}

fn annotations(runtime: &Object<'_>) -> Result<BTreeMap<String, String>, Error> {
    let Some(annotations) = runtime.object(CAPABILITY)? else {
        return Ok(BTreeMap::new());
    };
    let texts = annotations.all_texts();
    Ok(texts
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect())
}

pub(crate) fn port_mapping(mapping: &Object<'_>) -> Result<PortMapping, Error> {
    Ok(PortMapping {
        host_port: port(mapping, "hostPort", "host")?,
        container_port: port(mapping, "containerPort", "container")?,
        // Kubernetes' default.
        protocol: mapping.parsed("protocol")?.unwrap_or(Protocol::Tcp),
        host_address: mapping.parsed("hostIP")?,
    })
}

/// The words are portmap's (behaviour R12).
fn port(mapping: &Object<'_>, key: &str, which: &str) -> Result<NonZeroU16, Error> {
    let number = mapping.number(key)?.unwrap_or_default();
    let port = u16::try_from(number).ok().and_then(NonZeroU16::new);
    port.ok_or_else(|| {
        Error::invalid_config(format!("Invalid {which} port number: {number}"))
            .with_details(mapping.path_of(key))
    })
}

/// An address, with or without the length of its subnet.
pub(crate) fn parse_wish(text: &str) -> Result<AddressWish, String> {
    let alone = text.parse().ok().map(|address| AddressWish {
        address,
        prefix_len: None,
    });
    let with_length = || {
        let own = text.parse::<InterfaceAddress>().ok()?;
        Some(AddressWish {
            address: own.address,
            prefix_len: Some(own.prefix_len),
        })
    };
    alone
        .or_else(with_length)
        .ok_or_else(|| format!("invalid IP address {text:?}"))
}

/// As [`parse_wish`], for whom the length says nothing.
pub(crate) fn parse_address(text: &str) -> Result<IpAddr, String> {
    parse_wish(text).map(|wish| wish.address)
}

/// An Ethernet address with colons or, as Go also reads it, with hyphens.
pub(crate) fn parse_mac(text: &str) -> Result<Mac, String> {
    let parsed = text.replace('-', ":").parse();
    parsed.map_err(|_| format!("invalid MAC address {text:?}"))
}
