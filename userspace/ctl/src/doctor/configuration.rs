//! The agent's configuration file, as far as checks depend on it. The agent validates it.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use api::PeerSetting;
use model::{Cidr, HairpinMode, IfName, Network, NodeCheck, Peers, RangeSet};
use planner::{
    BetweenNodes, BypassMode, ForwardingMode, NodeIntent, PeerIntent, PeerOptions, TunnelOptions,
};
use serde::Deserialize;

use super::files::Files;
use super::report::Check;

/// Keys of the file; others are skipped.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Keys {
    pod_cidr: Vec<String>,
    pod_cidr_file: Option<String>,
    bridge: Option<String>,
    mtu: Option<u32>,
    uplink: Vec<String>,
    non_masquerade_cidr: Vec<String>,
    bypass_netfilter: Option<String>,
    forwarding: Option<String>,
    cgroup: Option<PathBuf>,
    peers_file: Option<String>,
    between_nodes: Option<String>,
    node_name: Option<String>,
    tunnel_vni: Option<u32>,
    tunnel_port: Option<u16>,
}

/// What an agent with the configuration would make of the node.
#[derive(Debug, Default)]
pub(super) struct Configuration {
    pub(super) intent: NodeIntent,
    pub(super) forwarding: ForwardingMode,
    /// The cgroup that the operator has chosen.
    pub(super) cgroup: Option<PathBuf>,
    /// What is wrong with the peers file, if there is one.
    pub(super) peers_file: Option<Check>,
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
    let keys = toml::from_str(&text).map_err(|error| error.message().to_owned());
    let checked = keys.and_then(|mut keys: Keys| {
        let check = pod_cidrs(files, path, &mut keys)?;
        let mut configured = configuration(&keys)?;
        if let Some(file) = &keys.peers_file {
            match peers(files, file) {
                Ok(peers) => configured.intent.peers.peers = Some(Arc::new(peers)),
                Err(check) => configured.peers_file = Some(check),
            }
        }
        Ok((configured, check))
    });
    checked.unwrap_or_else(|error: String| {
        let check = Check::fail(NodeCheck::Configuration, format!("{path}: {error}"));
        (Configuration::default(), check)
    })
}

/// Replaces `pod-cidr` by the pod CIDRs in `pod-cidr-file`, as the agent does, and returns which
/// ones it would use.
fn pod_cidrs(files: Files<'_>, path: &str, keys: &mut Keys) -> Result<Check, String> {
    let mut source = path.to_owned();
    if let Some(file) = keys.pod_cidr_file.clone() {
        let text = files.read_regular(&file);
        let lists = text.map(|text| vec![text.replace('\n', ",")]);
        match lists.map(|lists| (ranges(&lists), lists)) {
            Some((Ok(found), lists)) if !found.is_empty() => {
                keys.pod_cidr = lists;
                source = file;
            }
            Some((found, _)) => {
                let why = found.map_or_else(|error| error, |_| "no pod CIDR in it".to_owned());
                let text = format!("the agent ignores the pod-cidr-file {file}: {why}");
                return Ok(Check::warn(NodeCheck::Configuration, text)
                    .with_advice("Correct the file, or the software that writes it."));
            }
            None if ranges(&keys.pod_cidr)?.is_empty() => {
                let text = format!(
                    "{path} has no pod CIDR, and the pod-cidr-file {file} cannot be read: pods get no address until it has one"
                );
                return Ok(Check::warn(NodeCheck::Configuration, text)
                    .with_advice("Start the software that writes the file, or set `pod-cidr`."));
            }
            None => {}
        }
    }
    let found = ranges(&keys.pod_cidr)?;
    let subnets: BTreeSet<Cidr> = found
        .iter()
        .flat_map(RangeSet::ranges)
        .map(model::Range::subnet)
        .collect();
    let words: Vec<String> = subnets.iter().map(Cidr::to_string).collect();
    let text = match words.as_slice() {
        [] => format!("{path} has no pod CIDR"),
        words => format!("{source}: the pod CIDR is {}", words.join(" and ")),
    };
    Ok(Check::ok(NodeCheck::Configuration, text))
}

/// Reads the peers file.
fn peers(files: Files<'_>, file: &str) -> Result<Peers, Check> {
    let Some(text) = files.read_regular(file) else {
        let text = format!("the peers-file {file} cannot be read: no routes lead to peers yet");
        return Err(Check::warn(NodeCheck::Peers, text)
            .with_advice("Start the software that writes the file."));
    };
    parse_peers(&text).map_err(|why| {
        let text = format!("the agent ignores the peers-file {file}: {why}");
        Check::warn(NodeCheck::Peers, text)
    })
}

fn parse_peers(text: &str) -> Result<Peers, String> {
    let settings: Vec<PeerSetting> =
        serde_json::from_str(text).map_err(|error| format!("invalid JSON: {error}"))?;
    let texts = settings
        .iter()
        .map(|it| (&*it.name, &*it.prefixes, &*it.addresses));
    Peers::parse(texts).map_err(|error| error.to_string())
}

/// Returns how the node would be connected with its peers, without the peers.
fn between_nodes(keys: &Keys) -> Result<PeerIntent, String> {
    let mode = keys.between_nodes.as_deref();
    let node = keys.node_name.as_deref();
    Ok(PeerIntent {
        peers: None,
        options: PeerOptions {
            between_nodes: value("between-nodes", mode.unwrap_or(BetweenNodes::Direct.name()))?,
            tunnel: TunnelOptions {
                vni: keys.tunnel_vni.unwrap_or(TunnelOptions::VNI),
                port: keys.tunnel_port.unwrap_or(TunnelOptions::PORT),
                node: node.map(|name| value("node-name", name)).transpose()?,
            },
            ..PeerOptions::default()
        },
    })
}

fn ranges(lists: &[String]) -> Result<Vec<RangeSet>, String> {
    items(lists)
        .map(|item| {
            let subnet = Cidr::masked(item).map_err(|error| format!("pod-cidr: {error}"))?;
            RangeSet::of_cidr(subnet).map_err(|error| format!("pod-cidr: {error}"))
        })
        .collect()
}

/// Converts the keys; the error is that of the first invalid one.
fn configuration(keys: &Keys) -> Result<Configuration, String> {
    let network = Network {
        name: value("network", "default")?,
        bridge: value("bridge", keys.bridge.as_deref().unwrap_or("cbr0"))?,
        ranges: ranges(&keys.pod_cidr)?,
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
            peers: between_nodes(keys)?,
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
        cgroup: keys.cgroup.clone(),
        peers_file: None,
    })
}

fn value<T: FromStr<Err: Display>>(key: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("{key}: {error}"))
}

fn items(lists: &[String]) -> impl Iterator<Item = &str> {
    let items = lists.iter().flat_map(|list| list.split(','));
    items.map(str::trim).filter(|item| !item.is_empty())
}
