//! The agent's configuration file, as far as checks depend on it. The agent validates it.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::str::FromStr;

use model::{Cidr, HairpinMode, IfName, Network, NodeCheck, RangeSet};
use planner::{BypassMode, ForwardingMode, NodeIntent};
use serde::Deserialize;

use super::files::Files;
use super::report::Check;

/// Keys of the file; others are skipped.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Keys {
    pod_cidr: Vec<String>,
    bridge: Option<String>,
    mtu: Option<u32>,
    uplink: Vec<String>,
    non_masquerade_cidr: Vec<String>,
    bypass_netfilter: Option<String>,
    forwarding: Option<String>,
}

/// What an agent with the configuration would make of the node.
#[derive(Debug, Default)]
pub(super) struct Configuration {
    pub(super) intent: NodeIntent,
    pub(super) forwarding: ForwardingMode,
}

/// Reads the file at `path`. Without one, and with one that is broken, the result has no network.
pub(super) fn read(files: Files<'_>, path: &str) -> (Configuration, Check) {
    if !files.exists(path) {
        let text =
            format!("{path} does not exist: nothing that depends on the pod CIDR is checked");
        let check = Check::info(NodeCheck::Configuration, text);
        return (Configuration::default(), check);
    }
    let Some(text) = files.read(path) else {
        let check = Check::skip(NodeCheck::Configuration, format!("{path} cannot be read"));
        return (Configuration::default(), check);
    };
    match parse(&text) {
        Ok(configuration) => {
            let networks = configuration.intent.networks.iter();
            let subnets: Vec<String> = networks
                .flat_map(Network::subnets)
                .map(|subnet| subnet.to_string())
                .collect();
            let text = match subnets.as_slice() {
                [] => format!("{path} has no pod CIDR"),
                subnets => format!("{path}: the pod CIDR is {}", subnets.join(" and ")),
            };
            (configuration, Check::ok(NodeCheck::Configuration, text))
        }
        Err(error) => {
            let check = Check::fail(NodeCheck::Configuration, format!("{path}: {error}"));
            (Configuration::default(), check)
        }
    }
}

/// Parses the text of a file; the error is that of its first invalid key.
pub(super) fn parse(text: &str) -> Result<Configuration, String> {
    let keys: Keys = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    let ranges: Vec<RangeSet> = items(&keys.pod_cidr)
        .map(|item| {
            let subnet = Cidr::masked(item).map_err(|error| format!("pod-cidr: {error}"))?;
            RangeSet::of_cidr(subnet).map_err(|error| format!("pod-cidr: {error}"))
        })
        .collect::<Result<_, String>>()?;
    let network = Network {
        name: value("network", "default")?,
        bridge: value("bridge", keys.bridge.as_deref().unwrap_or("cbr0"))?,
        ranges,
        routes: Vec::new(),
        default_route: true,
        mtu: keys.mtu.filter(|mtu| *mtu > 0),
        hairpin: HairpinMode::default(),
        masquerade: true,
        options: model::BridgeOptions::default(),
    };
    let uplinks: BTreeSet<IfName> = items(&keys.uplink)
        .map(|name| value("uplink", name))
        .collect::<Result<_, _>>()?;
    let non_masquerade: BTreeSet<Cidr> = items(&keys.non_masquerade_cidr)
        .map(|item| Cidr::masked(item).map_err(|error| format!("non-masquerade-cidr: {error}")))
        .collect::<Result<_, _>>()?;
    let bypass = keys.bypass_netfilter.as_deref();
    let forwarding = keys.forwarding.as_deref();
    Ok(Configuration {
        intent: NodeIntent {
            networks: if network.ranges.is_empty() {
                Vec::new()
            } else {
                vec![network]
            },
            uplinks,
            non_masquerade,
            bypass: value(
                "bypass-netfilter",
                bypass.unwrap_or(BypassMode::Auto.name()),
            )?,
            ..NodeIntent::default()
        },
        forwarding: value(
            "forwarding",
            forwarding.unwrap_or(ForwardingMode::Auto.name()),
        )?,
    })
}

fn value<T: FromStr<Err: Display>>(key: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("{key}: {error}"))
}

fn items(lists: &[String]) -> impl Iterator<Item = &str> {
    let items = lists.iter().flat_map(|list| list.split(','));
    items.map(str::trim).filter(|item| !item.is_empty())
}
