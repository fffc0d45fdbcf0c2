//! Conversion of an ADD request to an intent: combines configuration and the agent's default
//! network.
//!
//! All checks of the request alone are done here. Conflicts with the kernel's state or with other
//! attachments are found later, by the planner.

use std::collections::BTreeMap;

use model::{AttachmentKey, HairpinMode, IfName, Intent, Network, RangeSet, Requested};

use crate::config::agreement::check_matches;
use crate::config::static_ipam::{self, StaticAddress};
use crate::result::inexpressible::InexpressibleResult;
use crate::{AddRequest, AddressSource, Config, Error, StatusRequest, Version};

/// Default of `bridge` for a network that the configuration declares, as in the bridge plugin.
const DEFAULT_BRIDGE: &str = "cni0";

/// Returns the intent of an ADD. `default` is the agent's default network; one without ranges
/// counts as missing. Whether the version can express the result is another question:
/// [`InexpressibleResult`].
pub fn intent(request: &AddRequest, default: Option<&Network>) -> Result<Intent, Error> {
    let mut network = network(&request.config, default)?;
    set_ranges(&mut network, request)?;
    let from_ranges = matches!(source(&request.config), Source::Ranges);
    let awaits_addresses = awaits_addresses(request);
    // Static addresses and those of an external IPAM plugin have become ranges of one address each:
    // only with configured ranges is there anything to choose.
    let addresses = request
        .requested
        .addresses
        .iter()
        .filter(|_| from_ranges)
        .map(|requested| requested.address);
    let mappings = if awaits_addresses {
        Vec::new()
    } else {
        request.requested.port_mappings.clone()
    };
    Ok(Intent {
        key: AttachmentKey {
            network: network.name.clone(),
            container_id: request.container_id.clone(),
            ifname: request.ifname.clone(),
        },
        netns: request.netns.clone(),
        network,
        port_mappings: mappings,
        bandwidth: request.requested.limits.bandwidth,
        requested: Requested {
            addresses: addresses.collect(),
            mac: request.requested.mac,
            taken: BTreeMap::new(),
            last_reserved: BTreeMap::new(),
            default_gateways: request.default_gateways.clone(),
            awaits_addresses,
            port_binder: None,
        },
        pod: request.requested.pod.clone(),
    })
}

/// Source of the addresses of a configuration's pods.
enum Source<'a> {
    Ranges,
    Fixed(&'a [StaticAddress]),
    Plugin,
    None,
}

fn source(config: &Config) -> Source<'_> {
    match config.ipam.as_ref().map(|ipam| &ipam.source) {
        Some(AddressSource::Fixed(fixed)) => Source::Fixed(fixed),
        Some(AddressSource::Plugin) => Source::Plugin,
        None if config.header.declares_network => Source::None,
        Some(AddressSource::Ranges) | None => Source::Ranges,
    }
}

fn awaits_addresses(request: &AddRequest) -> bool {
    matches!(source(&request.config), Source::Plugin) && request.lease.is_none()
}

fn set_ranges(network: &mut Network, request: &AddRequest) -> Result<(), Error> {
    let is_gateway = network.options.gateway;
    match source(&request.config) {
        Source::Ranges => prepend_ranges(network, request)?,
        Source::Fixed(fixed) => {
            network.ranges = static_ipam::ranges(fixed, &request.requested, is_gateway)?;
        }
        Source::Plugin => {
            let Some(lease) = &request.lease else {
                return Ok(());
            };
            let addresses = lease.addresses.iter().copied();
            network.ranges = static_ipam::single_ranges(addresses, &[], is_gateway)?;
            network.routes.clone_from(&lease.routes);
        }
        Source::None => return check_switch(request),
    }
    check_sets(&network.ranges)
}

/// Fails for requests that need an address, on a network that has none.
fn check_switch(request: &AddRequest) -> Result<(), Error> {
    if request.requested.port_mappings.is_empty() {
        return Ok(());
    }
    Err(Error::invalid_config(
        "runtimeConfig.portMappings: without an ipam the pod has no address to publish ports on",
    ))
}

impl StatusRequest {
    /// Returns the network that an ADD would use. Fails with code 50 if there is none yet.
    pub fn network(&self, default: Option<&Network>) -> Result<Network, Error> {
        let network = network(&self.config, default).map_err(|error| match error.code {
            11 => Error { code: 50, ..error },
            _ => error,
        })?;
        if matches!(source(&self.config), Source::Ranges) {
            check_ranges(&network.ranges, self.config.header.version)?;
        }
        Ok(network)
    }
}

/// Returns the network of a configuration: the one that it declares, or the agent's default
/// network.
pub fn network(config: &Config, default: Option<&Network>) -> Result<Network, Error> {
    if !config.header.declares_network {
        return default_network(config, default);
    }
    if default.is_some_and(|default| default.name == config.header.name) {
        return Err(Error::invalid_config(format!(
            "the name {:?} is that of the agent's default network",
            config.header.name.as_str()
        ))
        .with_details(
            "a configuration with an ipam, or of a bridge without addresses, declares a network of its own: give it another name",
        ));
    }
    Ok(own_network(config))
}

fn own_network(config: &Config) -> Network {
    let ipam = config.ipam.as_ref();
    let bridge = match &config.bridge {
        Some(bridge) => bridge.clone(),
        None => default_bridge(),
    };
    let hairpin = match (config.hairpin_mode, config.promisc_mode) {
        (Some(true), _) => HairpinMode::HairpinVeth,
        (_, Some(true)) => HairpinMode::PromiscuousBridge,
        _ => HairpinMode::None,
    };
    Network {
        name: config.header.name.clone(),
        bridge,
        ranges: ipam.map_or_else(Vec::new, |ipam| ipam.ranges.clone()),
        routes: ipam.map_or_else(Vec::new, |ipam| ipam.routes.clone()),
        default_route: config.is_default_gateway.unwrap_or(false),
        mtu: config.mtu,
        hairpin,
        masquerade: config.ip_masq.unwrap_or(false),
        options: config
            .bridge_keys
            .options(config.is_default_gateway.unwrap_or(false)),
    }
}

pub(crate) fn default_bridge() -> IfName {
    DEFAULT_BRIDGE
        .parse()
        .expect("four letters and digits are an interface name")
}

/// Returns the agent's default network. The configuration may repeat its settings, but not
/// contradict them, because all configurations share this network.
fn default_network(config: &Config, default: Option<&Network>) -> Result<Network, Error> {
    let Some(network) = default.filter(|network| !network.ranges.is_empty()) else {
        // The words are kubenet's (behaviour K27).
        return Err(Error::try_again_later(
            "viaduct does not have netConf. This is most likely due to lack of PodCIDR",
        )
        .with_details("the configuration has no ipam, and the agent has no pod CIDR yet"));
    };
    let hairpin = |mode| network.hairpin == mode;
    let checks = [
        check_matches("bridge", config.bridge.as_ref(), Some(&network.bridge)),
        check_matches("mtu", config.mtu, network.mtu),
        check_matches("ipMasq", config.ip_masq, Some(network.masquerade)),
        check_matches(
            "isDefaultGateway",
            config.is_default_gateway,
            Some(network.default_route),
        ),
        check_matches(
            "hairpinMode",
            config.hairpin_mode,
            Some(hairpin(HairpinMode::HairpinVeth)),
        ),
        check_matches(
            "promiscMode",
            config.promisc_mode,
            Some(hairpin(HairpinMode::PromiscuousBridge)),
        ),
    ];
    checks.into_iter().collect::<Result<Vec<()>, _>>()?;
    config.bridge_keys.check_default_network(network)?;
    Ok(network.clone())
}

fn prepend_ranges(network: &mut Network, request: &AddRequest) -> Result<(), Error> {
    if request.requested.ranges.is_empty() {
        return Ok(());
    }
    if request.config.ipam.is_none() {
        return Err(Error::invalid_config(
            "runtimeConfig.ipRanges: the agent's default network has its ranges from the pod CIDRs",
        ));
    }
    let mut ranges = request.requested.ranges.clone();
    ranges.append(&mut network.ranges);
    network.ranges = ranges;
    Ok(())
}

/// Checks all range sets together, as [`check_sets`] does, and whether `version` can express one
/// address of each (behaviour R8).
pub(crate) fn check_ranges(sets: &[RangeSet], version: Version) -> Result<(), Error> {
    check_sets(sets)?;
    InexpressibleResult::of_ranges(sets, version).map_or(Ok(()), |reason| Err(reason.into()))
}

/// Checks that there is a range set, and that no two overlap.
fn check_sets(sets: &[RangeSet]) -> Result<(), Error> {
    if sets.is_empty() {
        return Err(Error::invalid_config("no IP ranges specified"));
    }
    for (index, set) in sets.iter().enumerate() {
        for (other_index, other) in sets[..index].iter().enumerate() {
            if let Some((a, b)) = set.overlap(other) {
                return Err(Error::invalid_config(format!(
                    "range set {index} overlaps with {other_index}: {a} and {b}"
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
