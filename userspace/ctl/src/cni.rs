//! `viaductctl cni`: attaches a network namespace to a network by executing the plugins of its
//! configuration, as a container runtime does. For testing a configuration, and for debugging a
//! failing network without the runtime.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use ::cni::{Error, NetworkList, parse_rate};
use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use invoke::{Invoker, RuntimeConf, Timeouts, find_network};
use serde_json::{Map, Value, json};

/// Subcommands of `viaductctl cni`, one for each CNI command.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Attach a network namespace to a network (CNI ADD), and print the result
    Add(Target),
    /// Detach a network namespace from a network (CNI DEL)
    Del(Target),
    /// Check an attachment against the cached result of its ADD (CNI CHECK)
    Check(Target),
    /// Detach cached attachments whose namespace is gone, and remove attachments that are not
    /// cached (CNI GC)
    Gc {
        #[command(flatten)]
        place: Place,
        /// Also remove attachments of live namespaces that are not cached (Viaduct's plugins only)
        #[arg(long)]
        force: bool,
    },
    /// Print the cached results of a container as Kubernetes network-status JSON
    Show {
        /// Container ID
        container: String,
        /// Directory of cached results
        #[arg(long, value_name = "DIR", default_value = invoke::DEFAULT_CACHE)]
        results: PathBuf,
    },
    /// Check whether the network's plugins are ready for an ADD (CNI STATUS)
    Status {
        #[command(flatten)]
        place: Place,
    },
}

/// The network, and the directories of configurations, plugins and cached results.
#[derive(Clone, Debug, Args)]
pub(crate) struct Place {
    /// Name of the network
    network: String,
    /// Directory of network configurations
    #[arg(long, value_name = "DIR", env = "NETCONFPATH", default_value = invoke::DEFAULT_CONFIGURATIONS)]
    configurations: PathBuf,
    /// Directories of CNI plugins, separated by colons
    #[arg(long, value_name = "DIRS", env = "CNI_PATH", default_value = invoke::DEFAULT_PATH)]
    path: String,
    /// Directory of cached results
    #[arg(long, value_name = "DIR", default_value = invoke::DEFAULT_CACHE)]
    results: PathBuf,
}

/// The network namespace, and the parameters of its attachment.
#[derive(Clone, Debug, Args)]
pub(crate) struct Target {
    #[command(flatten)]
    place: Place,
    /// Path of the network namespace
    netns: String,
    /// Name of the interface in the namespace
    #[arg(long, value_name = "NAME", default_value = "eth0")]
    ifname: String,
    /// Container ID [default: derived from the namespace's path]
    #[arg(long, value_name = "ID")]
    container_id: Option<String>,
    /// Published host ports, unparsed.
    #[arg(
        help = "Published host port: [ADDRESS:]HOST:CONTAINER[/tcp|/udp|/sctp]; repeatable [default: none]",
        long,
        value_name = "PORTS"
    )]
    publish: Vec<String>,
    /// Limit of traffic to the namespace in bit/s, for example 50M [default: none]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    ingress_rate: Option<u64>,
    /// Limit of traffic from the namespace in bit/s, for example 50M [default: none]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    egress_rate: Option<u64>,
    /// Argument for `CNI_ARGS` as KEY=VALUE; repeatable [default: none]
    #[arg(long = "arg", value_name = "PAIR")]
    args: Vec<String>,
    /// Further capability arguments as a JSON object [default: none]
    #[arg(long, value_name = "JSON", env = "CAP_ARGS")]
    capabilities: Option<String>,
}

/// First characters of container IDs that are derived from a namespace's path.
pub(crate) const ID_PREFIX: &str = "viaductctl-";

/// Interval between two attempts to lock an attachment.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// Bursts per second of rate: a burst is a quarter of a second of the rate, in bits.
const BURST_PARTS: u64 = 4;

/// Executes the CNI command, and returns the text to print.
pub(crate) fn run(verb: Verb) -> Result<String> {
    match verb {
        Verb::Add(target) => {
            let (invoker, list, attachment) = target.prepare()?;
            refuse_undeclared(&list, &attachment)?;
            let _lock = lock(&list, &attachment, invoker.timeouts.attach)?;
            let result = invoker.add(&list, &attachment).map_err(cni_error)?;
            Ok(serde_json::to_string_pretty(&result)? + "\n")
        }
        Verb::Del(target) => {
            let (invoker, list, attachment) = target.prepare()?;
            let _lock = lock(&list, &attachment, invoker.timeouts.attach)?;
            invoker.del(&list, &attachment).map_err(cni_error)?;
            Ok(String::new())
        }
        Verb::Check(target) => {
            let (invoker, list, attachment) = target.prepare()?;
            invoker.check(&list, &attachment).map_err(cni_error)?;
            Ok(String::new())
        }
        Verb::Gc { place, force } => {
            place
                .invoker()
                .gc(&place.list()?, force)
                .map_err(cni_error)?;
            Ok(String::new())
        }
        Verb::Show { container, results } => {
            let invoker = Invoker {
                path: Vec::new(),
                cache: results,
                timeouts: Timeouts::default(),
            };
            let status: Vec<Value> = invoker
                .all_cached()
                .map_err(cni_error)?
                .into_iter()
                .filter(|cached| cached.container_id.as_str() == container)
                .map(|cached| cached.network_status())
                .collect();
            Ok(serde_json::to_string_pretty(&status)? + "\n")
        }
        Verb::Status { place } => {
            place.invoker().status(&place.list()?).map_err(cni_error)?;
            Ok(String::new())
        }
    }
}

/// Returns an error for capability arguments that no plugin of the network would receive.
fn refuse_undeclared(list: &NetworkList, attachment: &RuntimeConf) -> Result<()> {
    let undeclared = list.undeclared(&attachment.capabilities);
    let Some(name) = undeclared.first() else {
        return Ok(());
    };
    let option = match *name {
        "bandwidth" => "--ingress-rate and --egress-rate",
        "portMappings" => "--publish",
        _ => "--capabilities",
    };
    bail!(
        "no plugin of network {network} declares the capability {name}, so {option} would have no effect: \
         add \"capabilities\": {{\"{name}\": true}} to a plugin of the network that supports it",
        network = list.name
    )
}

/// Waits until no other `viaductctl cni` adds or deletes the same attachment. The lock is an
/// abstract socket, which ends with the process.
fn lock(list: &NetworkList, attachment: &RuntimeConf, timeout: Duration) -> Result<UnixListener> {
    let RuntimeConf {
        container_id,
        ifname,
        ..
    } = attachment;
    let name = format!("viaductctl/cni/{}/{container_id}/{ifname}", list.name);
    // A name has at most 107 bytes; the digest tells longer ones apart.
    let name = format!("{:.64}/{:016x}", name, digest(&name));
    let address = SocketAddr::from_abstract_name(&name).context("the name of the lock")?;
    let end = Instant::now() + timeout;
    loop {
        match UnixListener::bind_addr(&address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                thread::sleep(LOCK_INTERVAL);
            }
            locked => {
                return locked
                    .with_context(|| format!("another command for container {container_id} runs"));
            }
        }
    }
}

fn cni_error(error: Error) -> anyhow::Error {
    let Error { code, msg, details } = error;
    if details.is_empty() {
        anyhow!("{msg} (code {code})")
    } else {
        anyhow!("{msg} (code {code})\n{details}")
    }
}

impl Place {
    fn list(&self) -> Result<NetworkList> {
        find_network(&self.configurations, &self.network).map_err(cni_error)
    }

    fn invoker(&self) -> Invoker {
        Invoker {
            path: std::env::split_paths(&self.path).collect(),
            cache: self.results.clone(),
            timeouts: Timeouts::default(),
        }
    }
}

impl Target {
    fn prepare(&self) -> Result<(Invoker, NetworkList, RuntimeConf)> {
        let id = self
            .container_id
            .clone()
            .unwrap_or_else(|| derived_container_id(&self.netns));
        let attachment = RuntimeConf {
            container_id: id.parse().context("--container-id")?,
            ifname: self.ifname.parse().context("--ifname")?,
            netns: self.netns.clone(),
            args: self.pairs()?,
            capabilities: self.capability_args()?,
        };
        Ok((self.place.invoker(), self.place.list()?, attachment))
    }

    fn pairs(&self) -> Result<Vec<(String, String)>> {
        let split = |pair: &String| {
            let (key, value) = pair.split_once('=').context("--arg takes KEY=VALUE")?;
            Ok((key.to_owned(), value.to_owned()))
        };
        self.args.iter().map(split).collect()
    }

    fn capability_args(&self) -> Result<Map<String, Value>> {
        let mut args = match &self.capabilities {
            Some(text) => {
                serde_json::from_str(text).context("--capabilities takes a JSON object")?
            }
            None => Map::new(),
        };
        if !self.publish.is_empty() {
            let ports: Result<Vec<Value>> = self.publish.iter().map(|text| port(text)).collect();
            args.insert("portMappings".to_owned(), Value::Array(ports?));
        }
        let rates = [("ingress", self.ingress_rate), ("egress", self.egress_rate)];
        let mut bandwidth = BTreeMap::new();
        for (direction, rate) in rates {
            let Some(rate) = rate else { continue };
            bandwidth.insert(format!("{direction}Rate"), rate);
            bandwidth.insert(format!("{direction}Burst"), (rate / BURST_PARTS).max(1));
        }
        if !bandwidth.is_empty() {
            args.insert("bandwidth".to_owned(), json!(bandwidth));
        }
        Ok(args)
    }
}

/// Returns a container ID that depends on the namespace's path only (FNV-1a), so that DEL finds the
/// attachment of an ADD.
fn derived_container_id(netns: &str) -> String {
    format!("viaductctl-{:016x}", digest(netns))
}

/// Returns the FNV-1a digest of a text.
fn digest(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

/// Parses `[ADDRESS:]HOST:CONTAINER[/PROTOCOL]`, an IPv6 address in brackets, into an entry of the
/// `portMappings` capability.
fn port(text: &str) -> Result<Value> {
    let (ports, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let (rest, container) = ports
        .rsplit_once(':')
        .context("--publish takes HOST:CONTAINER")?;
    let (address, host) = match rest.rsplit_once(':') {
        Some((address, host)) => (address.trim_matches(['[', ']']), host),
        None => ("", rest),
    };
    let number = |text: &str| -> Result<u16> {
        text.parse()
            .with_context(|| format!("invalid port {text:?}: must be 0 to 65535"))
    };
    let mut port = json!({
        "hostPort": number(host)?,
        "containerPort": number(container)?,
        "protocol": protocol,
    });
    if !address.is_empty() {
        port["hostIP"] = json!(address);
    }
    if !["tcp", "udp", "sctp"].contains(&protocol) {
        bail!("invalid protocol {protocol:?}: must be tcp, udp or sctp");
    }
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publish_option_is_parsed_as_docker_writes_ports() {
        let plain = json!({ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" });
        assert_eq!(port("8080:80").unwrap(), plain);
        assert_eq!(
            port("192.0.2.1:53:5353/udp").unwrap()["hostIP"],
            "192.0.2.1"
        );
        assert_eq!(port("[::1]:53:53/udp").unwrap()["hostIP"], "::1");
        for wrong in ["80", "x:80", "80:0x", "80:80/icmp", "70000:1"] {
            assert!(port(wrong).is_err(), "{wrong}");
        }
    }

    /// The rates of `viaductctl limit` are parsed by the agent, in the same way.
    #[test]
    fn rates_of_a_cni_add_have_the_suffixes_of_quantities() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            target: Target,
        }
        let rates = |ingress: &str| {
            use clap::Parser as _;
            let line = ["add", "net", "/run/netns/a", "--ingress-rate", ingress];
            Line::try_parse_from(line).map(|line| line.target.ingress_rate)
        };
        assert_eq!(rates("1000000").unwrap(), Some(1_000_000));
        assert_eq!(rates("50M").unwrap(), Some(50_000_000));
        assert!(rates("fast").is_err() && rates("1").is_err());
    }

    #[test]
    fn container_id_derived_from_a_namespace_path_is_stable() {
        assert_eq!(
            derived_container_id("/run/netns/a"),
            derived_container_id("/run/netns/a")
        );
        assert_ne!(
            derived_container_id("/run/netns/a"),
            derived_container_id("/run/netns/b")
        );
        assert_eq!(derived_container_id("/run/netns/a").len(), 27);
    }
}
