//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand};
use model::PeerName;

/// Give the agent of this node the pod CIDRs and nodes of a Kubernetes cluster
///
/// Watches the Nodes of the API server and sends this node's pod CIDRs and all other nodes to the
/// agent, which adds routes to their pods. Nothing changes while the API server is unreachable.
/// Each option can also be set by its environment variable.
#[derive(Clone, Debug, Parser)]
#[command(name = "viaduct-kube", version = crate::version::LINE.as_str(), args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) verb: Option<Verb>,

    #[command(flatten)]
    pub(crate) run: RunOptions,
}

/// Commands besides the daemon.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Verb {
    /// Install the CNI plugin into a directory of the node, replacing an older one by rename
    InstallPlugin(InstallPlugin),
}

/// Options of `install-plugin`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct InstallPlugin {
    /// Plugin to install
    #[arg(long, value_name = "FILE", default_value = "/opt/cni/bin/viaduct")]
    pub(crate) from: PathBuf,

    /// Directory of the node's plugins
    #[arg(long, value_name = "DIR")]
    pub(crate) to: PathBuf,

    /// Other name under which the plugin is installed if the directory has no file of that name,
    /// such as loopback, which containerd executes for each pod; repeatable
    #[arg(long = "missing", value_name = "NAME")]
    pub(crate) missing: Vec<String>,
}

/// Options of the daemon.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunOptions {
    /// Name of the Node that is this node
    #[arg(long, value_name = "NAME", env = "NODE_NAME", value_parser = parse_node_name)]
    pub(crate) node_name: Option<PeerName>,

    /// Configuration of the client, as kubectl has it; without it, the service account of the pod
    /// is used
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME", env = "VIADUCT_KUBE_CONTEXT")]
    pub(crate) context: Option<String>,

    /// Socket of the agent
    #[arg(long, value_name = "PATH", env = "VIADUCT_KUBE_SOCKET", default_value = api::DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,

    /// CNI configuration list to write once the agent can attach pods [default: none is written]
    #[arg(long, value_name = "FILE", env = "VIADUCT_KUBE_CONFLIST", value_parser = parse_conflist_path)]
    pub(crate) conflist: Option<PathBuf>,

    /// Contents of the configuration list [default: the plugin viaduct with all its capabilities]
    #[arg(
        long,
        value_name = "FILE",
        env = "VIADUCT_KUBE_CONFLIST_TEMPLATE",
        requires = "conflist"
    )]
    pub(crate) conflist_template: Option<PathBuf>,

    /// Time in seconds without an agent after which the configuration list is removed
    #[arg(
        long,
        value_name = "SECONDS",
        env = "VIADUCT_KUBE_CONFLIST_GRACE",
        default_value = "60",
        value_parser = parse_seconds
    )]
    pub(crate) conflist_grace: Duration,

    /// Remove the configuration list at the end of this program
    #[arg(
        long,
        env = "VIADUCT_KUBE_REMOVE_CONFLIST_ON_EXIT",
        action = ArgAction::Set,
        num_args = 0..=1,
        default_value_t = false,
        default_missing_value = "true"
    )]
    pub(crate) remove_conflist_on_exit: bool,

    #[command(flatten)]
    pub(crate) switches: Switches,

    /// Address and port of /metrics, /healthz and /readyz [default: none]
    #[arg(long, value_name = "ADDRESS", env = "VIADUCT_KUBE_METRICS_LISTEN")]
    pub(crate) metrics_listen: Option<SocketAddr>,

    /// Log level: error, warn, info, debug or trace, or a comma-separated list of target=level
    #[arg(
        long,
        value_name = "LEVEL",
        env = "VIADUCT_KUBE_LOG_LEVEL",
        default_value = "info"
    )]
    pub(crate) log_level: String,
}

/// What the daemon does besides pod CIDRs, peers and configuration list.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Switches {
    /// Set the condition `NetworkUnavailable` of this Node to False, if the Node has that condition
    #[arg(
        long,
        value_name = "BOOL",
        env = "VIADUCT_KUBE_NODE_CONDITION",
        action = ArgAction::Set,
        default_value_t = true
    )]
    pub(crate) node_condition: bool,

    /// Follow the bandwidth annotations of this node's running pods
    #[arg(
        long,
        value_name = "BOOL",
        env = "VIADUCT_KUBE_POD_BANDWIDTH",
        action = ArgAction::Set,
        default_value_t = true
    )]
    pub(crate) pod_bandwidth: bool,

    /// Send the agent the network policies of this node's pods
    #[arg(
        long,
        value_name = "BOOL",
        env = "VIADUCT_KUBE_NETWORK_POLICIES",
        action = ArgAction::Set,
        default_value_t = true
    )]
    pub(crate) network_policies: bool,
}

fn parse_node_name(text: &str) -> Result<PeerName, String> {
    text.parse()
        .map_err(|error: model::InvalidName| error.to_string())
}

/// libcni reads files of these names.
fn parse_conflist_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_list = path
        .extension()
        .is_some_and(|extension| extension == "conflist");
    if !path.is_absolute() {
        Err("must be an absolute path".to_owned())
    } else if !is_list {
        Err("must end with .conflist, or no runtime reads it".to_owned())
    } else {
        Ok(path)
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .map_err(|_| "must be a number of seconds".to_owned())?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options, String> {
        let words = ["viaduct-kube"].iter().chain(words);
        Options::try_parse_from(words).map_err(|error| error.to_string())
    }

    #[test]
    fn options_that_cannot_work_are_refused_with_the_reason() {
        for (words, reason) in [
            (
                ["--conflist", "/etc/cni/net.d/10-viaduct.conf"],
                "must end with .conflist",
            ),
            (
                ["--conflist", "10-viaduct.conflist"],
                "must be an absolute path",
            ),
            (["--node-name", "a b"], "peer name"),
            (["--conflist-grace", "soon"], "must be a number of seconds"),
            (["--conflist-template", "/x"], "--conflist"),
            (["--metrics-listen", "9100"], "invalid socket address"),
        ] {
            let error = parse(&words).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn the_switches_of_condition_bandwidth_and_policies_are_on_by_default() {
        let options = parse(&["--node-name", "n"]).unwrap().run;
        let switches = options.switches;
        assert!(switches.node_condition && switches.pod_bandwidth && switches.network_policies);
        assert!(!options.remove_conflist_on_exit);
        let off = ["--node-condition", "false", "--remove-conflist-on-exit"];
        let options = parse(&off).unwrap().run;
        assert!(!options.switches.node_condition && options.remove_conflist_on_exit);
    }
}
