//! `viaductctl cni`: attaches a namespace to a network as a runtime would, by whatever plugins the network's configuration
//! names. For people who want to try a configuration, and to look for who is at fault when a runtime does not get on.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ::cni::{Error, NetworkList};
use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, Subcommand};
use invoke::{Attachment, Invoker, Patience, find_network};
use serde_json::{Map, Value, json};

/// What is asked of the plugins.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Attach a namespace to a network, and show the result
    Add(Target),
    /// Detach it
    Del(Target),
    /// Compare it with what its ADD returned
    Check(Target),
    /// Remove what is remembered and of no namespace that is there, and let the plugins remove what is not remembered
    Gc {
        #[command(flatten)]
        place: Place,
        /// Also what lives, if the plugins are ours
        #[arg(long)]
        force: bool,
    },
    /// Show what is remembered of a container's interfaces, as the network status that Kubernetes knows
    Show {
        /// Container ID
        container: String,
        /// Folder of remembered results
        #[arg(long, value_name = "FOLDER", default_value = invoke::DEFAULT_CACHE)]
        results: PathBuf,
    },
    /// Tell whether an ADD would work
    Status {
        #[command(flatten)]
        place: Place,
    },
}

/// Which network, and where its parts are.
#[derive(Clone, Debug, Args)]
pub(crate) struct Place {
    /// Name of the network
    network: String,
    /// Folder of configurations
    #[arg(long, value_name = "FOLDER", env = "NETCONFPATH", default_value = invoke::DEFAULT_CONFIGURATIONS)]
    configurations: PathBuf,
    /// Folders of plugins, separated by colons
    #[arg(long, value_name = "FOLDERS", env = "CNI_PATH", default_value = invoke::DEFAULT_PATH)]
    path: String,
    /// Folder of remembered results
    #[arg(long, value_name = "FOLDER", default_value = invoke::DEFAULT_CACHE)]
    results: PathBuf,
}

/// Which namespace, and what it is to have.
#[derive(Clone, Debug, Args)]
pub(crate) struct Target {
    #[command(flatten)]
    place: Place,
    /// Path of the network namespace
    netns: String,
    /// Name of the interface
    #[arg(long, value_name = "NAME", default_value = "eth0")]
    ifname: String,
    /// Container ID; without one it derives from the path of the namespace
    #[arg(long, value_name = "ID")]
    container_id: Option<String>,
    /// Publish a port of the node: HOST:CONTAINER, or ADDRESS:HOST:CONTAINER, with /udp or /sctp behind; may be repeated
    #[arg(long, value_name = "PORTS")]
    publish: Vec<String>,
    /// Bits per second to the namespace
    #[arg(long, value_name = "RATE")]
    ingress_rate: Option<u64>,
    /// Bits per second from the namespace
    #[arg(long, value_name = "RATE")]
    egress_rate: Option<u64>,
    /// An argument for `CNI_ARGS`: KEY=VALUE; may be repeated
    #[arg(long = "arg", value_name = "PAIR")]
    args: Vec<String>,
    /// More capability arguments, as a JSON object
    #[arg(long, value_name = "JSON", env = "CAP_ARGS")]
    capabilities: Option<String>,
}

/// Bits that may come at once: a quarter of a second's worth.
const BURST_PARTS: u64 = 4;

/// Executes it, and returns what there is to show.
pub(crate) fn run(verb: Verb) -> Result<String> {
    match verb {
        Verb::Add(target) => {
            let (invoker, list, attachment) = target.prepare()?;
            let result = invoker.add(&list, &attachment).map_err(told)?;
            Ok(serde_json::to_string_pretty(&result)? + "\n")
        }
        Verb::Del(target) => {
            let (invoker, list, attachment) = target.prepare()?;
            invoker.del(&list, &attachment).map_err(told)?;
            Ok(String::new())
        }
        Verb::Check(target) => {
            let (invoker, list, attachment) = target.prepare()?;
            invoker.check(&list, &attachment).map_err(told)?;
            Ok(String::new())
        }
        Verb::Gc { place, force } => {
            place.invoker().gc(&place.list()?, force).map_err(told)?;
            Ok(String::new())
        }
        Verb::Show { container, results } => {
            let invoker = Invoker {
                path: Vec::new(),
                cache: results,
                patience: Patience::default(),
            };
            let status: Vec<Value> = invoker
                .all_remembered()
                .map_err(told)?
                .into_iter()
                .filter(|cached| cached.container_id.as_str() == container)
                .map(|cached| cached.network_status())
                .collect();
            Ok(serde_json::to_string_pretty(&status)? + "\n")
        }
        Verb::Status { place } => {
            place.invoker().status(&place.list()?).map_err(told)?;
            Ok(String::new())
        }
    }
}

fn told(error: Error) -> anyhow::Error {
    let Error { code, msg, details } = error;
    if details.is_empty() {
        anyhow!("{msg} (code {code})")
    } else {
        anyhow!("{msg} (code {code})\n{details}")
    }
}

impl Place {
    fn list(&self) -> Result<NetworkList> {
        find_network(&self.configurations, &self.network).map_err(told)
    }

    fn invoker(&self) -> Invoker {
        Invoker {
            path: std::env::split_paths(&self.path).collect(),
            cache: self.results.clone(),
            patience: Patience::default(),
        }
    }
}

impl Target {
    fn prepare(&self) -> Result<(Invoker, NetworkList, Attachment)> {
        let id = self
            .container_id
            .clone()
            .unwrap_or_else(|| derived(&self.netns));
        let attachment = Attachment {
            container_id: id.parse().context("--container-id")?,
            ifname: self.ifname.parse().context("--ifname")?,
            netns: self.netns.clone(),
            args: self.pairs()?,
            capabilities: self.wishes()?,
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

    fn wishes(&self) -> Result<Map<String, Value>> {
        let mut wishes = match &self.capabilities {
            Some(text) => {
                serde_json::from_str(text).context("--capabilities takes a JSON object")?
            }
            None => Map::new(),
        };
        if !self.publish.is_empty() {
            let ports: Result<Vec<Value>> = self.publish.iter().map(|text| port(text)).collect();
            wishes.insert("portMappings".to_owned(), Value::Array(ports?));
        }
        let rates = [("ingress", self.ingress_rate), ("egress", self.egress_rate)];
        let mut bandwidth = BTreeMap::new();
        for (direction, rate) in rates {
            let Some(rate) = rate else { continue };
            bandwidth.insert(format!("{direction}Rate"), rate);
            bandwidth.insert(format!("{direction}Burst"), (rate / BURST_PARTS).max(1));
        }
        if !bandwidth.is_empty() {
            wishes.insert("bandwidth".to_owned(), json!(bandwidth));
        }
        Ok(wishes)
    }
}

/// The same each time for a namespace, so that DEL finds what ADD made (FNV-1a).
fn derived(netns: &str) -> String {
    let digest = netns
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("viaductctl-{digest:016x}")
}

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
        text.parse().with_context(|| format!("{text:?} is no port"))
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
        bail!("{protocol:?} is none of tcp, udp and sctp");
    }
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_people_write_them() {
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

    #[test]
    fn a_namespace_has_one_container_id() {
        assert_eq!(derived("/run/netns/a"), derived("/run/netns/a"));
        assert_ne!(derived("/run/netns/a"), derived("/run/netns/b"));
        assert_eq!(derived("/run/netns/a").len(), 27);
    }
}
