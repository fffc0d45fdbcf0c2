//! What the agent is told: flags and the keys of a TOML file, which are the same; the flag wins.
//!
//! Text becomes values here, and everything that can be wrong with it is said here, by the name of the key. A feature
//! that does not exist has no key.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use model::{Cidr, HairpinMode, IfName, LimitPolicy, Network, NetworkName, RangeSet};
use planner::{BypassMode, GuardMode, ShaperMode};
use serde::Deserialize;

use crate::{limit_keys, pod_cidrs};

/// Name under which attachments of the agent's own network are kept.
const DEFAULT_NETWORK: &str = "default";
/// Smallest MTU that the agent accepts: what IPv4 demands of every link (RFC 791) and kubenet checked for.
const SMALLEST_MTU: u32 = 576;
/// Largest MTU of a veth and of a bridge.
const LARGEST_MTU: u32 = 65_535;

/// Fewest and most entries of a flow table that can be asked for.
const SMALLEST_TABLE: u32 = 4_096;
const LARGEST_TABLE: u32 = 16_777_216;

/// The command line of `viaductd`.
#[derive(Clone, Debug, Default, clap::Parser)]
#[command(
    name = "viaductd",
    version = crate::view::VERSION,
    about = "Viaduct's node agent: container bridge networking in eBPF"
)]
pub(crate) struct Options {
    /// TOML file with these flags as keys; a flag given here wins over the file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Take Viaduct off this node, where no agent runs, and end
    #[arg(long)]
    pub(crate) uninstall: bool,
    /// With --uninstall: pods that are attached lose their interfaces, else they are in the way
    #[arg(long, requires = "uninstall")]
    pub(crate) drain: bool,
    #[command(flatten)]
    keys: Keys,
}

/// Every key, as text; `None` or empty when it was not given.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Keys {
    /// Unix socket to serve on [default: /run/viaduct/viaduct.sock]
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// Directory of the records; must not survive a reboot [default: /run/viaduct]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Directory of pinned programs and tables, on a bpf file system [default: /sys/fs/bpf/viaduct]
    #[arg(long, value_name = "DIR")]
    bpffs: Option<PathBuf>,
    /// Directory of the cgroup that the node's processes are below [default: the root of cgroup2, wherever it is mounted]
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// Bridge of the default network [default: cbr0]
    #[arg(long, value_name = "NAME")]
    bridge: Option<String>,
    /// Prefix that pods of the default network get addresses of: repeatable, or a list with commas; pods get an
    /// address of each
    #[arg(long, value_name = "CIDR")]
    pod_cidr: Vec<String>,
    /// File that the pod CIDRs are read from when it appears and when it changes: a list with commas [default: none]
    #[arg(long, value_name = "FILE")]
    pod_cidr_file: Option<PathBuf>,
    /// MTU of the default network; 0 for the smallest of the node's links [default: 0]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// How a pod reaches itself through the bridge: hairpin-veth, promiscuous-bridge or none [default: hairpin-veth]
    #[arg(long, value_name = "MODE")]
    hairpin_mode: Option<String>,
    /// Destinations that see the pods' own addresses: repeatable, or a list with commas [default: none]
    #[arg(long, value_name = "CIDR")]
    non_masquerade_cidr: Vec<String>,
    /// Link by which packets leave the node: repeatable, or a list with commas [default: as the routing table says]
    #[arg(long, value_name = "NAME")]
    uplink: Vec<String>,
    /// Annotation of pods that lists ports to publish, as `portMappings` would, for runtimes that tell no port mappings
    /// (CRI-O) [default: none is read]
    #[arg(long, value_name = "KEY")]
    hostport_annotation: Option<String>,
    /// Address that pods of the default network leave with, at most one of each family: repeatable, or a list with
    /// commas; a link of the node must have it [default: the uplink's]
    #[arg(long, value_name = "ADDRESS")]
    egress_address: Vec<String>,
    /// Entries of the flow table, two for each flow, when it is made; 0 for a 400th of the memory, from 32768 to
    /// 2097152 entries [default: 0]
    #[arg(long, value_name = "ENTRIES")]
    flow_table_size: Option<u32>,
    /// When packets go past bridge and stack, and so past other programs' rules: `auto` where no rule of anybody could
    /// matter to them, `always`, `never` [default: auto]
    #[arg(long, value_name = "WHEN")]
    bypass_netfilter: Option<String>,
    /// Whether a guard drops what can never be right on an uplink, before the kernel sees it: `off`, or `native` in the
    /// driver [default: off]
    #[arg(long, value_name = "WHERE")]
    xdp_guard: Option<String>,
    /// What is done for limits of pods beyond enforcing them: `police` nothing, `pace` tells sockets their limits, `edt`
    /// tells packets when to depart as well, `auto` what this node can do [default: auto]
    #[arg(long, value_name = "HOW")]
    shaper: Option<String>,
    /// Limit for what pods of the default network receive that nobody limits: bits per second, as 50M [default: none]
    #[arg(long, value_name = "RATE")]
    ingress_default: Option<String>,
    /// Limit for what they send [default: none]
    #[arg(long, value_name = "RATE")]
    egress_default: Option<String>,
    /// The most that any pod of the default network may receive, whatever is asked for [default: none]
    #[arg(long, value_name = "RATE")]
    ingress_ceiling: Option<String>,
    /// The most that any of them may send [default: none]
    #[arg(long, value_name = "RATE")]
    egress_ceiling: Option<String>,
    /// The eBPF programs [default: as the environment's `VIADUCT_DATAPATH_OBJECT` says, or else
    /// ../lib/viaduct/datapath.o from the executable's directory, or else /usr/lib/viaduct/datapath.o]
    #[arg(long, value_name = "FILE")]
    datapath_object: Option<PathBuf>,
    /// What to log: error, warn, info, debug, trace, or a list of target=level [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

/// What the agent works with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) socket: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) bpffs: PathBuf,
    /// None for the root of all.
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) bridge: IfName,
    /// One range set for each pod CIDR, IPv4 first.
    pub(crate) ranges: Vec<RangeSet>,
    pub(crate) pod_cidr_file: Option<PathBuf>,
    pub(crate) mtu: Option<u32>,
    pub(crate) hairpin: HairpinMode,
    pub(crate) non_masquerade: BTreeSet<Cidr>,
    /// Empty for those of the routing table.
    pub(crate) uplinks: BTreeSet<IfName>,
    /// Annotation of pods that lists ports to publish.
    pub(crate) hostport_annotation: Option<String>,
    /// At most one of each family; empty for the uplink's.
    pub(crate) egress: BTreeSet<IpAddr>,
    /// Entries of the flow table; `None` for as many as the memory allows.
    pub(crate) flow_entries: Option<u32>,
    /// When packets go past bridge and stack.
    pub(crate) bypass: BypassMode,
    /// Whether guards stand in front of uplinks.
    pub(crate) guard: GuardMode,
    /// What is done for limits of pods beyond enforcing them.
    pub(crate) shaper: ShaperMode,
    /// What becomes of limits of pods of the default network.
    pub(crate) limits: LimitPolicy,
    pub(crate) datapath_object: Option<PathBuf>,
    pub(crate) log_level: String,
}

impl Config {
    /// Reads the file that the options name, and lets the options win over it.
    pub(crate) fn load(options: Options) -> Result<Self> {
        let file = match &options.config {
            Some(path) => read(path)?,
            None => Keys::default(),
        };
        Self::from_keys(options.keys.over(file))
    }

    /// The agent's own network. Without ranges it gives no addresses, and its bridge is not made.
    pub(crate) fn default_network(&self) -> Network {
        Network {
            name: default_name(),
            bridge: self.bridge.clone(),
            ranges: self.ranges.clone(),
            routes: Vec::new(),
            default_route: true,
            mtu: self.mtu,
            hairpin: self.hairpin,
            masquerade: true,
            options: model::BridgeOptions {
                limits: self.limits,
                ..model::BridgeOptions::default()
            },
        }
    }

    /// The keys that `wanted` has otherwise and that hold from the next start on only.
    pub(crate) fn needs_restart(&self, wanted: &Self) -> Vec<&'static str> {
        let keys = [
            ("socket", self.socket != wanted.socket),
            ("state-dir", self.state_dir != wanted.state_dir),
            ("bpffs", self.bpffs != wanted.bpffs),
            ("cgroup", self.cgroup != wanted.cgroup),
            ("bridge", self.bridge != wanted.bridge),
            ("pod-cidr-file", self.pod_cidr_file != wanted.pod_cidr_file),
            ("mtu", self.mtu != wanted.mtu),
            ("flow-table-size", self.flow_entries != wanted.flow_entries),
            ("shaper", self.shaper != wanted.shaper),
            ("*-default, *-ceiling", self.limits != wanted.limits),
            (
                "datapath-object",
                self.datapath_object != wanted.datapath_object,
            ),
        ];
        keys.into_iter()
            .filter(|(_, differs)| *differs)
            .map(|(key, _)| key)
            .collect()
    }

    /// Goes by what of `wanted` needs no restart.
    pub(crate) fn take(&mut self, wanted: Self) {
        let kept = std::mem::replace(self, wanted);
        self.socket = kept.socket;
        self.state_dir = kept.state_dir;
        self.bpffs = kept.bpffs;
        self.cgroup = kept.cgroup;
        self.bridge = kept.bridge;
        self.pod_cidr_file = kept.pod_cidr_file;
        self.mtu = kept.mtu;
        self.shaper = kept.shaper;
        self.limits = kept.limits;
        self.flow_entries = kept.flow_entries;
        self.datapath_object = kept.datapath_object;
    }

    fn from_keys(keys: Keys) -> Result<Self> {
        Ok(Self {
            socket: path("socket", keys.socket, api::DEFAULT_SOCKET)?,
            state_dir: path("state-dir", keys.state_dir, "/run/viaduct")?,
            bpffs: path("bpffs", keys.bpffs, "/sys/fs/bpf/viaduct")?,
            cgroup: keys
                .cgroup
                .map(|given| path("cgroup", Some(given), ""))
                .transpose()?,
            bridge: parse("bridge", keys.bridge.as_deref().unwrap_or("cbr0"))?,
            ranges: ranges(&keys.pod_cidr)?,
            pod_cidr_file: keys
                .pod_cidr_file
                .map(|given| path("pod-cidr-file", Some(given), ""))
                .transpose()?,
            mtu: mtu(keys.mtu.unwrap_or(0))?,
            hairpin: match &keys.hairpin_mode {
                Some(mode) => parse("hairpin-mode", mode)?,
                None => HairpinMode::default(),
            },
            non_masquerade: prefixes("non-masquerade-cidr", &keys.non_masquerade_cidr)?
                .into_iter()
                .collect(),
            uplinks: items(&keys.uplink)
                .map(|name| parse("uplink", name))
                .collect::<Result<_>>()?,
            hostport_annotation: annotation(keys.hostport_annotation)?,
            egress: egress(&keys.egress_address)?,
            flow_entries: flow_entries(keys.flow_table_size.unwrap_or(0))?,
            bypass: (keys.bypass_netfilter.as_deref())
                .map_or(Ok(BypassMode::Auto), |mode| parse("bypass-netfilter", mode))?,
            guard: (keys.xdp_guard.as_deref())
                .map_or(Ok(GuardMode::Off), |mode| parse("xdp-guard", mode))?,
            shaper: (keys.shaper.as_deref())
                .map_or(Ok(ShaperMode::Auto), |mode| parse("shaper", mode))?,
            limits: LimitPolicy {
                default: limit_keys::rates(
                    "default",
                    keys.ingress_default.as_deref(),
                    keys.egress_default.as_deref(),
                )?,
                ceiling: limit_keys::rates(
                    "ceiling",
                    keys.ingress_ceiling.as_deref(),
                    keys.egress_ceiling.as_deref(),
                )?,
            },
            datapath_object: keys.datapath_object,
            log_level: keys.log_level.unwrap_or_else(|| "info".to_owned()),
        })
    }
}

/// Name of the agent's own network.
pub(crate) fn default_name() -> NetworkName {
    let name = DEFAULT_NETWORK.parse();
    name.expect("seven letters are a network's name")
}

impl Keys {
    fn over(self, file: Self) -> Self {
        Self {
            socket: self.socket.or(file.socket),
            state_dir: self.state_dir.or(file.state_dir),
            bpffs: self.bpffs.or(file.bpffs),
            cgroup: self.cgroup.or(file.cgroup),
            bridge: self.bridge.or(file.bridge),
            pod_cidr: either(self.pod_cidr, file.pod_cidr),
            pod_cidr_file: self.pod_cidr_file.or(file.pod_cidr_file),
            mtu: self.mtu.or(file.mtu),
            hairpin_mode: self.hairpin_mode.or(file.hairpin_mode),
            non_masquerade_cidr: either(self.non_masquerade_cidr, file.non_masquerade_cidr),
            uplink: either(self.uplink, file.uplink),
            hostport_annotation: self.hostport_annotation.or(file.hostport_annotation),
            egress_address: either(self.egress_address, file.egress_address),
            flow_table_size: self.flow_table_size.or(file.flow_table_size),
            bypass_netfilter: self.bypass_netfilter.or(file.bypass_netfilter),
            xdp_guard: self.xdp_guard.or(file.xdp_guard),
            shaper: self.shaper.or(file.shaper),
            ingress_default: self.ingress_default.or(file.ingress_default),
            egress_default: self.egress_default.or(file.egress_default),
            ingress_ceiling: self.ingress_ceiling.or(file.ingress_ceiling),
            egress_ceiling: self.egress_ceiling.or(file.egress_ceiling),
            datapath_object: self.datapath_object.or(file.datapath_object),
            log_level: self.log_level.or(file.log_level),
        }
    }
}

fn either(flags: Vec<String>, file: Vec<String>) -> Vec<String> {
    if flags.is_empty() { file } else { flags }
}

fn read(path: &Path) -> Result<Keys> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse_file(&text).with_context(|| format!("in {}", path.display()))
}

fn parse_file(text: &str) -> Result<Keys> {
    let mut unknown = BTreeSet::new();
    let document = toml::Deserializer::parse(text)?;
    let keys = serde_ignored::deserialize(document, |key| {
        unknown.insert(key.to_string());
    })?;
    if unknown.is_empty() {
        Ok(keys)
    } else {
        let names: Vec<String> = unknown.into_iter().collect();
        bail!("unknown key {}", names.join(", "))
    }
}

fn path(key: &str, given: Option<PathBuf>, default: &str) -> Result<PathBuf> {
    let path = given.unwrap_or_else(|| default.into());
    if path.is_absolute() {
        Ok(path)
    } else {
        bail!("{key}: {} is not an absolute path", path.display())
    }
}

fn parse<T: FromStr<Err: Display>>(key: &str, text: &str) -> Result<T> {
    text.parse().map_err(|error| anyhow!("{key}: {error}"))
}

fn items(lists: &[String]) -> impl Iterator<Item = &str> {
    pod_cidrs::items(lists.iter().map(String::as_str))
}

/// Prefixes whose host bits are ignored.
fn prefixes(key: &str, lists: &[String]) -> Result<Vec<Cidr>> {
    let prefixes = pod_cidrs::prefixes(lists.iter().map(String::as_str));
    prefixes.map_err(|error| anyhow!("{key}: {error:#}"))
}

fn ranges(lists: &[String]) -> Result<Vec<RangeSet>> {
    let ranges = pod_cidrs::parse(lists.iter().map(String::as_str));
    ranges.map_err(|error| anyhow!("pod-cidr: {error:#}"))
}

/// A key as Kubernetes takes it for an annotation, as far as a mistake is likely: text without spaces.
fn annotation(key: Option<String>) -> Result<Option<String>> {
    match key {
        Some(key) if key.is_empty() || key.contains(char::is_whitespace) => {
            bail!("hostport-annotation: {key:?} is no annotation's key")
        }
        key => Ok(key),
    }
}

fn mtu(bytes: u32) -> Result<Option<u32>> {
    match bytes {
        0 => Ok(None),
        SMALLEST_MTU..=LARGEST_MTU => Ok(Some(bytes)),
        _ => bail!("mtu: {bytes} is neither 0 nor in {SMALLEST_MTU} to {LARGEST_MTU}"),
    }
}

/// Two addresses of one family would be a choice that nobody makes.
fn egress(lists: &[String]) -> Result<BTreeSet<IpAddr>> {
    let addresses: BTreeSet<IpAddr> = items(lists)
        .map(|text| parse("egress-address", text))
        .collect::<Result<_>>()?;
    for ipv4 in [true, false] {
        let of_family = addresses.iter().filter(|own| own.is_ipv4() == ipv4);
        if of_family.count() > 1 {
            bail!("egress-address: more than one address of a family");
        }
    }
    Ok(addresses)
}

fn flow_entries(entries: u32) -> Result<Option<u32>> {
    match entries {
        0 => Ok(None),
        SMALLEST_TABLE..=LARGEST_TABLE => Ok(Some(entries)),
        _ => bail!(
            "flow-table-size: {entries} is neither 0 nor in {SMALLEST_TABLE} to {LARGEST_TABLE}"
        ),
    }
}

#[cfg(test)]
mod tests;
