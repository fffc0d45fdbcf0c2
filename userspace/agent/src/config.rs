//! Configuration of the agent: command-line flags, and the same keys in a TOML file; the flag wins.
//!
//! Parses and validates all values; every error names its key. An unknown key is an error.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use model::{
    Cidr, DatapathLogLevel, HairpinMode, IfName, LimitPolicy, Network, NetworkAccess, NetworkName,
    RangeSet,
};
use planner::{
    BetweenNodes, BypassMode, DeclaredNetworks, ForwardingMode, PeerOptions, ShaperMode,
    XdpPrefilterMode,
};

use crate::cni::file_watch::Directories;
use crate::telemetry::log::LogFormat;
use crate::telemetry::traces::OtlpEndpoint;
use declare::{KeyValue, Rule, config, keys};
use parsers::{items, log_level, mode, optional_path, parse, path, prefixes, ranges};
use values::{Access, annotation, egress, flow_entries, hairpin, mtu, non_masquerade};

pub(crate) use self::{file::sample, values::DockerFiles, values::ReadOnlyAddress};

mod declare;
mod file;
mod limit_keys;
pub(crate) mod live;
mod parsers;
pub(crate) mod peers;
pub(crate) mod peers_file;
pub(crate) mod pod_cidr_file;
pub(crate) mod pod_cidrs;
pub(crate) mod policies;
pub(crate) mod policies_file;
pub(crate) mod reload;
mod route_protocols;
mod temporary;
mod tunnel_keys;
mod values;
mod watched_file;

/// Name of the default network in records and in the API.
const DEFAULT_NETWORK: &str = "default";

/// The command line of `viaductd`.
#[derive(Clone, Debug, Default, clap::Parser)]
#[command(
    name = "viaductd",
    version = crate::version::LINE.as_str(),
    about = "Viaduct's node agent: container bridge networking in eBPF"
)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub(crate) struct Options {
    /// TOML file with these flags as keys; a flag on the command line overrides the file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Remove Viaduct from this node and exit; fails while an agent is running
    #[arg(long)]
    pub(crate) uninstall: bool,
    /// With --uninstall: detach all pods first; without this flag, uninstall fails while pods are
    /// attached
    #[arg(long, requires = "uninstall")]
    pub(crate) drain: bool,
    /// With --uninstall: also remove what the installation of Viaduct put on the node, as far as
    /// it is Viaduct's alone: network configurations, plugin binaries, unit, Docker's networks
    #[arg(long, requires = "uninstall")]
    pub(crate) purge: bool,
    /// Print a configuration file with every key and its default, and exit
    #[arg(long)]
    pub(crate) sample_config: bool,
    /// Validate the configuration and exit; with status 1 and the reason if it is invalid
    #[arg(long, conflicts_with_all = ["uninstall", "sample_config"])]
    pub(crate) check_config: bool,
    #[command(flatten)]
    keys: Keys,
}

keys! {
    /// Unix socket to serve the API on [default: /run/viaduct/viaduct.sock]
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// Unix socket that serves queries only [default: viaduct-ro.sock beside --socket if
    /// --socket-group is set, else none]
    #[arg(long, value_name = "FILE")]
    read_only_socket: Option<PathBuf> = r#""/run/viaduct/viaduct-ro.sock""#,
    /// Group whose members may connect to the read-only socket, by name or number [default: none]
    #[arg(long, value_name = "GROUP")]
    socket_group: Option<String> = r#""viaduct""#,
    /// Serve a page for browsers on the read-only socket, by a forwarded port [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    web_page: Option<bool>,
    /// Address and port that serve metrics, health and readiness over HTTP to everyone who reaches
    /// them [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_listen: Option<String> = r#""127.0.0.1:9464""#,
    /// Receiver of OTLP over HTTP to export a trace of each ADD and DEL to, by its address; needs
    /// an agent that is built with the feature otlp [default: none]
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String> = r#""http://127.0.0.1:4318""#,
    /// Unix socket that serves Docker's network driver and IPAM driver, in a directory that exists
    /// [default: none]
    #[arg(long, value_name = "FILE")]
    docker_socket: Option<PathBuf> = r#""/run/docker/plugins/viaduct.sock""#,
    /// File with Docker's networks and addresses, on a file system that a reboot keeps [default:
    /// /var/lib/viaduct/docker.json]
    #[arg(long, value_name = "FILE")]
    docker_state: Option<PathBuf>,
    /// Directory of the attachment records, on a file system that a reboot clears [default:
    /// /run/viaduct]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Directory of pinned eBPF programs and maps, on a bpf file system [default:
    /// /sys/fs/bpf/viaduct]
    #[arg(long, value_name = "DIR")]
    bpffs: Option<PathBuf>,
    /// Cgroup v2 directory that contains the node's processes [default: root of the mounted
    /// cgroup2]
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf> = r#""/sys/fs/cgroup""#,
    /// Bridge of the default network [default: cbr0]
    #[arg(long, value_name = "NAME")]
    bridge: Option<String>,
    /// Pod CIDRs of the default network: repeatable or comma-separated; pods get one address of
    /// each [default: none]
    #[arg(long, value_name = "CIDR")]
    pod_cidr: Vec<String>,
    /// File with a comma-separated list of pod CIDRs, read when it appears or changes [default:
    /// none]
    #[arg(long, value_name = "FILE")]
    pod_cidr_file: Option<PathBuf> = r#""/run/viaduct/pod-cidrs""#,
    /// File with the other nodes of the cluster as a JSON list, read when it appears or changes
    /// [default: none]
    #[arg(long, value_name = "FILE")]
    peers_file: Option<PathBuf> = r#""/run/viaduct/peers.json""#,
    /// File with all network policies as JSON, read when it appears or changes [default: none]
    #[arg(long, value_name = "FILE")]
    policies_file: Option<PathBuf> = r#""/run/viaduct/policies.json""#,
    /// How packets of pods travel to pods of other nodes: direct (by routes that the agent adds to
    /// nodes on a link of this one), tunnel (by VXLAN to all of them), auto (direct where possible,
    /// else by tunnel), or none (by routes of other software or of the network) [default: direct]
    #[arg(long, value_name = "MODE")]
    between_nodes: Option<String>,
    /// Name of this node in the lists of peers of the other nodes, which derive its MAC address in
    /// tunnels from it [default: the hostname]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String> = r#""node-1.example.org""#,
    /// VXLAN network identifier of the tunnels, the same on all nodes: 1 to 16777215 [default: 118]
    #[arg(long, value_name = "NUMBER")]
    tunnel_vni: Option<u32>,
    /// UDP port of the tunnels, the same on all nodes. Packets to it from other addresses than the
    /// peers' are dropped [default: 8118]
    #[arg(long, value_name = "PORT")]
    tunnel_port: Option<u16>,
    /// Software whose routes lead to destinations that see the pods' own source addresses, by name
    /// or number of its route protocol: repeatable or comma-separated [default: none]
    #[arg(long, value_name = "PROTOCOL")]
    non_masquerade_routes: Vec<String> = r#"["bird", "zebra"]"#,
    /// MTU of the default network in bytes; 0 for the smallest MTU of the node's links [default: 0]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Use kubelet's defaults: hairpin mode promiscuous-bridge and non-masquerade CIDR 10.0.0.0/8,
    /// each unless set explicitly [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    kubenet: Option<bool>,
    /// How a pod reaches itself through the bridge: hairpin-veth, promiscuous-bridge or none
    /// [default: hairpin-veth; promiscuous-bridge with --kubenet]
    #[arg(long, value_name = "MODE")]
    hairpin_mode: Option<String>,
    /// Destinations that see the pods' own source addresses: repeatable or comma-separated
    /// [default: none; 10.0.0.0/8 with --kubenet]
    #[arg(long, value_name = "CIDR")]
    non_masquerade_cidr: Option<Vec<String>> = r#"["10.0.0.0/8"]"#,
    /// Whether the pods' own addresses of the default network are reachable from outside the node
    /// and from other networks; without, only published ports are. Applies to pods that are
    /// attached after the agent's start [default: true]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    direct_access: Option<bool>,
    /// Whether the default network is internal: its pods have no default route, and no packet
    /// leaves or enters the network but those of published ports. Applies to pods that are attached
    /// after the agent's start [default: false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    internal: Option<bool>,
    /// Bridges that networks of CNI configurations may use, * for any text: repeatable or
    /// comma-separated; the default network may use any [default: all]
    #[arg(long, value_name = "NAME")]
    declared_bridge: Option<Vec<String>> = r#"["cni*"]"#,
    /// Prefixes within which subnets and gateways of networks of CNI configurations must be:
    /// repeatable or comma-separated; the default network may use any [default: all]
    #[arg(long, value_name = "CIDR")]
    declared_subnet: Option<Vec<String>> = r#"["10.0.0.0/8", "fd00::/8"]"#,
    /// Uplinks, the interfaces through which packets leave the node: repeatable or comma-separated
    /// [default: those that the routing table uses]
    #[arg(long, value_name = "NAME")]
    uplink: Vec<String> = r#"["eth0"]"#,
    /// Pod annotation with port mappings in the format of `portMappings`, for runtimes that pass
    /// none (CRI-O) [default: none]
    #[arg(long, value_name = "KEY")]
    hostport_annotation: Option<String> = r#""example.org/host-ports""#,
    /// Source addresses for masquerading pods of the default network, at most one per address
    /// family: repeatable or comma-separated; must be assigned to the node [default: the uplink's
    /// address]
    #[arg(long, value_name = "ADDRESS")]
    egress_address: Vec<String> = r#"["192.0.2.10"]"#,
    /// Capacity of the flow table in entries, two per flow, effective when the table is created; 0
    /// for twice the default of `nf_conntrack_max`, or 1/400 of the memory if more [default: 0]
    #[arg(long, value_name = "ENTRIES")]
    flow_table_size: Option<u32>,
    /// Which packets of pods bypass bridge and netfilter, and thus rules of other software: auto
    /// (all as long as no such rule could apply; beside rules, those of connections that netfilter
    /// has accepted), offload (only the latter), always, or never [default: auto]
    #[arg(long, value_name = "WHEN")]
    bypass_netfilter: Option<String>,
    /// Whether rules of the agent accept pods' packets right before a policy or last rule of other
    /// software drops them: auto, or leave [default: auto]
    #[arg(long, value_name = "MODE")]
    forwarding: Option<String>,
    /// XDP prefilter on uplinks, which drops malformed and spoofed frames: off, or native (driver
    /// mode) [default: off]
    #[arg(long, value_name = "MODE")]
    xdp_guard: Option<String>,
    /// Mechanism of bandwidth limits: police (drop and mark), pace (police, and pace TCP sockets of
    /// the node), edt (pace, and set departure times of packets), or auto (the best that the node
    /// supports) [default: auto]
    #[arg(long, value_name = "MODE")]
    shaper: Option<String>,
    /// Default ingress limit for pods of the default network that set none, in bit/s, for example
    /// 50M [default: none]
    #[arg(long, value_name = "RATE")]
    ingress_default: Option<String> = r#""50M""#,
    /// Default egress limit for pods of the default network that set none, in bit/s [default: none]
    #[arg(long, value_name = "RATE")]
    egress_default: Option<String> = r#""50M""#,
    /// Maximum ingress limit for all pods of the default network, in bit/s [default: none]
    #[arg(long, value_name = "RATE")]
    ingress_ceiling: Option<String> = r#""1G""#,
    /// Maximum egress limit for all pods of the default network, in bit/s [default: none]
    #[arg(long, value_name = "RATE")]
    egress_ceiling: Option<String> = r#""1G""#,
    /// Minimum interval between two drop events of one pod and drop reason, in milliseconds: 1 to
    /// 60000 [default: 100]
    #[arg(long, value_name = "MILLISECONDS")]
    drop_event_interval: Option<u32>,
    /// Object file of the eBPF programs [default: `$VIADUCT_DATAPATH_OBJECT`, else
    /// ../lib/viaduct/datapath.o relative to the executable's directory, else
    /// /usr/lib/viaduct/datapath.o]
    #[arg(long, value_name = "FILE")]
    datapath_object: Option<PathBuf> = r#""/usr/lib/viaduct/datapath.o""#,
    /// Directory of CNI network configurations: reported if another one comes before Viaduct's
    /// [default: /etc/cni/net.d, if it has a configuration of Viaduct's]
    #[arg(long, value_name = "DIR")]
    cni_conf_dir: Option<PathBuf> = r#""/etc/cni/net.d""#,
    /// Directory of CNI plugins: reported if one is missing [default: /opt/cni/bin, /usr/lib/cni or
    /// /usr/libexec/cni]
    #[arg(long, value_name = "DIR")]
    cni_bin_dir: Option<PathBuf> = r#""/opt/cni/bin""#,
    /// Layers that reduce the privileges of the agent: on, off, or a comma-separated list of
    /// capabilities and seccomp [default: on]
    #[arg(long, value_name = "LAYERS")]
    sandbox: Option<String>,
    /// Log level: error, warn, info, debug, trace or off, optionally with a comma-separated list of
    /// target=level, such as info,engine=debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Level of the datapath log, which the eBPF programs write into the agent's log, under target
    /// `datapath`: off, error and warn (dropped packets), info (evicted flows), debug (new flows)
    /// or trace (verdicts of packets without a flow cache entry). Another level loads other
    /// programs [default: off]
    #[arg(long, value_name = "LEVEL")]
    datapath_log: Option<String>,
    /// Format of log lines: text, or json (an object for each event) [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

config! {
    |keys| {
        let kubenet = keys.kubenet.unwrap_or(false);
        let socket = path("socket", keys.socket, api::DEFAULT_SOCKET)?;
        let read_only = optional_path("read-only-socket", keys.read_only_socket)?;
        let sandbox = keys.sandbox.as_deref();
    }

    Restart "socket" => socket: PathBuf = socket.clone(),
    /// Privileges of the agent, and its read-only socket.
    Restart "sandbox, read-only-socket, socket-group, web-page" => access: Access =
        Access::new(&socket, read_only, keys.socket_group, keys.web_page, sandbox)?,
    /// Where metrics are served over TCP; `None` for nowhere.
    Restart "metrics-listen" => metrics_listen: Option<SocketAddr> = keys
        .metrics_listen
        .map(|address| parse("metrics-listen", &address))
        .transpose()?,
    /// Where traces are exported to; `None` for nowhere.
    Restart "otlp-endpoint" => otlp_endpoint: Option<OtlpEndpoint> = keys
        .otlp_endpoint
        .map(|url| parse("otlp-endpoint", &url))
        .transpose()?,
    /// Docker's drivers; `None` if they are not served.
    Restart "docker-socket, docker-state" => docker: Option<DockerFiles> =
        DockerFiles::of(keys.docker_socket, keys.docker_state)?,
    Restart "state-dir" => state_dir: PathBuf = path("state-dir", keys.state_dir, "/run/viaduct")?,
    Restart "bpffs" => bpffs: PathBuf = path("bpffs", keys.bpffs, api::DEFAULT_BPFFS)?,
    /// `None` for the root of the mounted cgroup2.
    Restart "cgroup" => cgroup: Option<PathBuf> = optional_path("cgroup", keys.cgroup)?,
    Restart "bridge" => bridge: IfName = parse("bridge", keys.bridge.as_deref().unwrap_or("cbr0"))?,
    Restart "pod-cidr-file" => pod_cidr_file: Option<PathBuf> =
        optional_path("pod-cidr-file", keys.pod_cidr_file)?,
    Restart "peers-file" => peers_file: Option<PathBuf> =
        optional_path("peers-file", keys.peers_file)?,
    Restart "policies-file" => policies_file: Option<PathBuf> =
        optional_path("policies-file", keys.policies_file)?,
    /// In bytes; `None` for the smallest MTU of the node's links.
    Restart "mtu" => mtu: Option<u32> = mtu(keys.mtu.unwrap_or(0))?,
    /// Whether unset keys have kubelet's defaults; `hairpin` and `non_masquerade` contain them
    /// already.
    Restart "kubenet" => kubenet: bool = kubenet,
    /// Which packets enter and leave the default network.
    Restart "direct-access, internal" => network_access: NetworkAccess =
        values::access(keys.internal, keys.direct_access)?,
    /// Capacity of the flow table in entries; `None` to derive it from the memory.
    Restart "flow-table-size" => flow_entries: Option<u32> =
        flow_entries(keys.flow_table_size.unwrap_or(0))?,
    /// Mechanism of bandwidth limits.
    Restart "shaper" => shaper: ShaperMode = mode("shaper", keys.shaper, ShaperMode::Auto)?,
    /// Defaults and ceilings of bandwidth limits in the default network.
    Restart "*-default, *-ceiling" => limits: LimitPolicy = LimitPolicy {
        default: limit_keys::rates("default", keys.ingress_default, keys.egress_default)?,
        ceiling: limit_keys::rates("ceiling", keys.ingress_ceiling, keys.egress_ceiling)?,
    },
    Restart "log-format" => log_format: LogFormat =
        mode("log-format", keys.log_format, LogFormat::Text)?,
    Restart "datapath-object" => datapath_object: Option<PathBuf> = keys.datapath_object,
    /// Directories of CNI configurations and plugins.
    Restart "cni-conf-dir, cni-bin-dir" => installation: Directories = Directories {
        configurations: optional_path("cni-conf-dir", keys.cni_conf_dir)?,
        plugins: optional_path("cni-bin-dir", keys.cni_bin_dir)?,
    },
    /// One range set for each pod CIDR, IPv4 first.
    Live "pod-cidr" => ranges: Vec<RangeSet> = ranges(&keys.pod_cidr)?,
    Live "hairpin-mode" => hairpin: HairpinMode = hairpin(keys.hairpin_mode.as_deref(), kubenet)?,
    /// Destinations that see the pods' own source addresses.
    Live "non-masquerade-cidr" => non_masquerade: BTreeSet<Cidr> =
        non_masquerade(keys.non_masquerade_cidr, kubenet)?,
    /// How packets of pods travel between nodes.
    Live "between-nodes, non-masquerade-routes, node-name, tunnel-vni, tunnel-port" => peers: PeerOptions = PeerOptions {
        between_nodes: mode("between-nodes", keys.between_nodes, BetweenNodes::Direct)?,
        protocols: route_protocols::parse(&keys.non_masquerade_routes)?,
        tunnel: tunnel_keys::parse(keys.node_name.as_deref(), keys.tunnel_vni, keys.tunnel_port)?,
    },
    /// Empty for the uplinks that the routing table uses.
    Live "uplink" => uplinks: BTreeSet<IfName> = items(&keys.uplink)
        .map(|name| parse("uplink", name))
        .collect::<Result<_>>()?,
    /// At most one address per family; empty for the uplink's.
    Live "egress-address" => egress: BTreeSet<IpAddr> = egress(&keys.egress_address)?,
    /// When pod traffic bypasses bridge and netfilter.
    Live "bypass-netfilter" => bypass: BypassMode =
        mode("bypass-netfilter", keys.bypass_netfilter, BypassMode::Auto)?,
    Live "forwarding" => forwarding: ForwardingMode =
        mode("forwarding", keys.forwarding, ForwardingMode::Auto)?,
    /// Whether the XDP prefilter is attached to uplinks.
    Live "xdp-guard" => xdp_prefilter: XdpPrefilterMode =
        mode("xdp-guard", keys.xdp_guard, XdpPrefilterMode::Off)?,
    /// Key of the pod annotation with port mappings.
    Live "hostport-annotation" => hostport_annotation: Option<String> =
        annotation(keys.hostport_annotation)?,
    /// Bridges and subnets that networks of CNI configurations may use.
    Live "declared-bridge, declared-subnet" => declared: DeclaredNetworks =
        values::declared(keys.declared_bridge, keys.declared_subnet)?,
    /// Minimum interval between two drop events of one pod and drop reason.
    Live "drop-event-interval" => drop_event_interval: Duration =
        values::drop_event_interval(keys.drop_event_interval)?,
    /// Level of the datapath log.
    Live "datapath-log" => datapath_log: DatapathLogLevel =
        mode("datapath-log", keys.datapath_log, DatapathLogLevel::Off)?,
    Live "log-level" => log_level: String = log_level(keys.log_level)?,
}

impl Config {
    /// Reads the configuration file, if the options name one, and merges the flags over it.
    pub(crate) fn load(options: Options) -> Result<Self> {
        Self::from_keys(options.merged_keys()?)
    }

    /// Loads the configuration again while the agent runs with `self`. A changed `kubenet` needs a
    /// restart: until then, unset keys keep the defaults of the running agent.
    pub(crate) fn load_again(&self, options: Options) -> Result<Self> {
        let mut keys = options.merged_keys()?;
        let kubenet = keys.kubenet.replace(self.kubenet).unwrap_or(false);
        Ok(Self {
            kubenet,
            ..Self::from_keys(keys)?
        })
    }

    /// Returns the keys that differ in `wanted` and take effect only at the next start of the
    /// agent.
    pub(crate) fn needs_restart(&self, wanted: &Self) -> Vec<&'static str> {
        self.changed(wanted, Rule::Restart)
    }

    /// Returns the keys that differ in `wanted` and take effect at once. Pod CIDRs that were
    /// removed from the file stay: they may come from another source.
    pub(crate) fn reloadable(&self, wanted: &Self) -> Vec<&'static str> {
        let mut keys = self.changed(wanted, Rule::Live);
        keys.retain(|keys| *keys != "pod-cidr" || !wanted.ranges.is_empty());
        keys
    }

    /// Returns the default network. Without ranges it assigns no addresses, and its bridge is not
    /// created.
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
                port: model::PortOptions {
                    access: self.network_access,
                    ..model::PortOptions::default()
                },
                ..model::BridgeOptions::default()
            },
        }
    }
}

/// Returns the name of the default network.
pub(crate) fn default_name() -> NetworkName {
    let name = DEFAULT_NETWORK.parse();
    name.expect("seven letters are a network's name")
}

impl Options {
    /// Returns all keys: those of the flags, and where a flag is not set, those of the file.
    fn merged_keys(self) -> Result<Keys> {
        let file = match &self.config {
            Some(path) => file::read(path)?,
            None => Keys::default(),
        };
        Ok(self.keys.merge_over(file))
    }
}

#[cfg(test)]
mod tests;
