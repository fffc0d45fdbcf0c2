//! Per-attachment settings of the runtime, from `CNI_ARGS`, `args.cni` and `runtimeConfig`.
//!
//! `runtimeConfig` takes precedence over `args.cni`, and that over `CNI_ARGS` (behaviours R1, S16).
//! For addresses this applies per family: nerdctl requests the IPv4 address in `CNI_ARGS` and the
//! IPv6 one in `runtimeConfig`.

pub(crate) mod annotation;
pub(crate) mod args;
pub(crate) mod port_mapping;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::{InterfaceAddress, Mac, PodName, PortMapping, RangeSet};

use crate::Error;
use crate::config::bandwidth::{self, RequestedLimits};
use crate::config::limits;
use crate::config::ranges::{range_set, single_range};
use crate::json::Object;
use crate::runtime::args::Args;
use crate::runtime::port_mapping::port_mapping;
use crate::values::{CAPABILITY, RequestedAddress, parse_mac, parse_requested_address};

/// The settings that a runtime passes for one attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeArgs {
    /// Hostports to publish, without duplicates.
    pub port_mappings: Vec<PortMapping>,
    /// Requested addresses.
    pub addresses: Vec<RequestedAddress>,
    /// Whether `args.cni` or `runtimeConfig` requests addresses, which then replace static ones.
    pub replaces_addresses: bool,
    /// Gateways of static addresses.
    pub gateways: Vec<IpAddr>,
    /// MAC address of the pod's end.
    pub mac: Option<Mac>,
    /// Range sets that are inserted before those of the configuration.
    pub ranges: Vec<RangeSet>,
    /// The pod's namespace and name.
    pub pod: Option<PodName>,
    /// Limits of the pod's traffic.
    pub limits: RequestedLimits,
    /// The pod's annotations, if the runtime passes them; keys are in lower case.
    pub annotations: BTreeMap<String, String>,
}

impl RuntimeArgs {
    /// Returns the addresses with prefix lengths, which static addresses need. Fails if one has
    /// none.
    pub(crate) fn interface_addresses(&self) -> Result<Vec<InterfaceAddress>, Error> {
        let whole = |requested: &RequestedAddress| {
            let prefix_len = requested.prefix_len.ok_or_else(|| {
                Error::invalid_config(format!(
                    "an entry in the 'ips' field is NOT in CIDR notation, got: '{}'",
                    requested.address
                ))
            })?;
            Ok(InterfaceAddress {
                address: requested.address,
                prefix_len,
            })
        };
        self.addresses.iter().map(whole).collect()
    }

    /// Parses the settings of a configuration, and merges them with those of `CNI_ARGS`.
    pub(crate) fn read(config: &Object<'_>, args: Args) -> Result<Self, Error> {
        let mut requested = Self {
            limits: bandwidth::read(config)?,
            gateways: args.gateways,
            mac: args.mac,
            pod: args.pod,
            ..Self::read_for_host_local(config, args.addresses)?
        };
        if let Some(cni) = cni_args(config)? {
            requested.override_mac(&cni)?;
        }
        if let Some(runtime) = config.object("runtimeConfig")? {
            requested.override_mac(&runtime)?;
            requested.port_mappings = port_mappings(&runtime)?;
            requested.annotations = annotations(&runtime)?;
        }
        Ok(requested)
    }

    /// Parses what host-local has of the settings: ranges, and addresses, which take precedence
    /// over those of `CNI_ARGS`. The rest of the configuration is for the plugin that calls it.
    pub(crate) fn read_for_host_local(
        config: &Object<'_>,
        addresses: Vec<RequestedAddress>,
    ) -> Result<Self, Error> {
        let mut requested = Self {
            addresses,
            ..Self::default()
        };
        if let Some(cni) = cni_args(config)? {
            requested.override_addresses(&cni)?;
        }
        if let Some(runtime) = config.object("runtimeConfig")? {
            requested.override_addresses(&runtime)?;
            requested.ranges = ranges(&runtime)?;
        }
        Ok(requested)
    }

    fn override_mac(&mut self, source: &Object<'_>) -> Result<(), Error> {
        if let Some(node) = source.get("mac") {
            self.mac = Some(parse_mac(node.text()?).map_err(|why| node.invalid(why))?);
        }
        Ok(())
    }

    fn override_addresses(&mut self, source: &Object<'_>) -> Result<(), Error> {
        let addresses = addresses(source)?;
        self.addresses.retain(|own| {
            let mut families = addresses.iter().map(|own| own.address.is_ipv4());
            !families.any(|ipv4| ipv4 == own.address.is_ipv4())
        });
        self.replaces_addresses |= !addresses.is_empty();
        self.addresses.extend(addresses);
        Ok(())
    }
}

/// Returns `args.cni` of a configuration.
pub(crate) fn cni_args<'a>(config: &Object<'a>) -> Result<Option<Object<'a>>, Error> {
    match config.object("args")? {
        Some(args) => args.object("cni"),
        None => Ok(None),
    }
}

/// Parses the port mappings of a configuration's `runtimeConfig`, which are all that portmap has.
pub(crate) fn published_ports(config: &Object<'_>) -> Result<Vec<PortMapping>, Error> {
    match config.object("runtimeConfig")? {
        Some(runtime) => port_mappings(&runtime),
        None => Ok(Vec::new()),
    }
}

fn addresses(source: &Object<'_>) -> Result<Vec<RequestedAddress>, Error> {
    source
        .list_up_to("ips", limits::ADDRESSES)?
        .into_iter()
        .map(|node| parse_requested_address(node.text()?).map_err(|why| node.invalid(why)))
        .collect()
}

/// Parses `ipRanges`: a list of lists, as in the specification, or a flat list, as go-cni sends it
/// (behaviour B0.1).
fn ranges(runtime: &Object<'_>) -> Result<Vec<RangeSet>, Error> {
    let sets = runtime
        .list("ipRanges")?
        .into_iter()
        .map(|node| {
            if node.value().is_array() {
                range_set(&node)
            } else {
                single_range(&node)
            }
        })
        .collect::<Result<Vec<_>, _>>()?;
    limits::check_ranges(&sets, &runtime.path_of("ipRanges"))?;
    Ok(sets)
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
