//! Requests to chained plugins: portmap, bandwidth, firewall, tuning and loopback.
//!
//! They apply to an interface that another plugin has created; loopback alone configures `lo`
//! itself. Each plugin parses its own settings and returns the previous result. A DEL reads only
//! names: it must succeed without any other state, and with a configuration whose ADD was refused
//! (behaviour S10).

use std::collections::BTreeSet;
use std::path::PathBuf;

use model::{
    Adoption, Assigned, AttachmentKey, ContainerId, IfName, IngressPolicy, NetnsPath, NetworkName,
    PodName, PortMapping,
};

use crate::config::Header;
use crate::config::bandwidth::{self, RequestedLimits};
use crate::config::tuning::{self, TuningRequest};
use crate::config::unsupported;
use crate::json::{self, Object};
use crate::request::check_version::check_version;
use crate::request::environment::{Command, Environment, variable};
use crate::request::gc::{self, ValidAttachment, valid_attachments};
use crate::runtime::args::{Args, pod_of};
use crate::runtime::published_ports;
use crate::values::ingress_policy;
use crate::{Error, Plugin, PluginResult};

/// Default of tuning's `dataDir`.
const DATA_DIR: &str = "/run/cni/tuning";

/// A request to a chained plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainedRequest {
    /// The plugin that the runtime called.
    pub plugin: Plugin,
    /// The CNI command.
    pub command: Command,
    /// Keys that every command needs.
    pub header: Header,
    /// The container; `None` for GC and STATUS.
    pub container: Option<Container>,
    /// `prevResult`: the result of the previous plugins of the list.
    pub prev_result: Option<PluginResult>,
    /// The requested change; [`PluginRequest::Nothing`] except for ADD and CHECK.
    pub requested: PluginRequest,
    /// firewall: the administrator's chain (`iptablesAdminChainName`); `None` for other plugins.
    pub admin_chain: Option<String>,
    /// The runtime's valid attachments, for GC; `None` without a list.
    pub valid: Option<BTreeSet<ValidAttachment>>,
    /// `dataDir` of tuning: folder of backup files.
    pub backup_folder: PathBuf,
    /// `forceGC`: GC removes attachments even if their network namespaces still exist.
    pub forced: bool,
}

/// The container and interface that a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The container's ID.
    pub id: ContainerId,
    /// The interface's name in the container.
    pub ifname: IfName,
    /// The container's network namespace, if the runtime passes it.
    pub netns: Option<NetnsPath>,
    /// The pod's namespace and name, if the runtime passes them in `CNI_ARGS`.
    pub pod: Option<PodName>,
}

/// The change that a chained plugin's configuration requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginRequest {
    /// No change: the previous result is returned.
    Nothing,
    /// portmap: hostports to publish.
    Ports(Vec<PortMapping>),
    /// bandwidth: limits of the pod's traffic.
    Limits(Box<RequestedLimits>),
    /// firewall: which other pods may connect to the pod.
    Policy(IngressPolicy),
    /// tuning: sysctls and link settings of the interface.
    Settings(Box<TuningRequest>),
}

/// `iptablesAdminChainName` where it is not set.
const DEFAULT_ADMIN_CHAIN: &str = "CNI-ADMIN";

impl ChainedRequest {
    /// Parses a request to a chained plugin.
    pub fn read(plugin: Plugin, environment: &Environment, text: &str) -> Result<Self, Error> {
        environment.check()?;
        let map = json::parse(text)?;
        let config = Object::root(&map);
        let header = Header::read(&config)?;
        let command = environment.command;
        check_version(command, header.version)?;
        let mut request = Self {
            plugin,
            command,
            header,
            container: None,
            prev_result: None,
            requested: PluginRequest::Nothing,
            admin_chain: None,
            valid: None,
            backup_folder: backup_folder(&config),
            forced: false,
        };
        match command {
            Command::Add | Command::Check => request.read_settings(environment, &config, text)?,
            Command::Del => request.container = Some(container(environment, None)?),
            Command::Gc => {
                request.valid = valid_attachments(&config)?;
                request.forced = gc::is_forced(&config)?;
            }
            Command::Status | Command::Version => {}
        }
        Ok(request)
    }

    fn read_settings(
        &mut self,
        environment: &Environment,
        config: &Object<'_>,
        text: &str,
    ) -> Result<(), Error> {
        // An ADD or CHECK without a valid path fails before its settings are read.
        let _: NetnsPath = variable("CNI_NETNS", &environment.netns)?;
        // Only tuning uses an argument, `MAC`; the others leave the variable unchecked, as the
        // reference plugins do.
        let args = match self.plugin {
            Plugin::Tuning => Args::parse(&environment.args)?,
            Plugin::Viaduct
            | Plugin::Bridge
            | Plugin::HostLocal
            | Plugin::Portmap
            | Plugin::Bandwidth
            | Plugin::Firewall
            | Plugin::Loopback => Args::default(),
        };
        let container = container(environment, pod_of(&environment.args))?;
        self.prev_result = PluginResult::from_config(text, self.header.version)?;
        if self.prev_result.is_none() && self.plugin != Plugin::Loopback {
            // The text is that of the reference plugins (behaviour R12).
            return Err(Error::invalid_config("must be called as chained plugin")
                .with_details("the configuration has no prevResult"));
        }
        if self.plugin == Plugin::Firewall {
            self.admin_chain = Some(admin_chain(config)?);
        }
        self.requested = plugin_request(self.plugin, config, &args, text, &container.ifname)?;
        self.container = Some(container);
        Ok(())
    }

    /// Returns whether the plugin has nothing to do for this ADD or CHECK: no port, no limit, no
    /// policy, no setting. The result is then `prevResult`.
    pub fn is_without_effect(&self) -> bool {
        let nothing = match &self.requested {
            PluginRequest::Nothing => self.plugin != Plugin::Loopback,
            PluginRequest::Ports(mappings) => mappings.is_empty(),
            PluginRequest::Limits(limits) => limits.bandwidth.is_unlimited(),
            PluginRequest::Policy(policy) => *policy == IngressPolicy::Open,
            PluginRequest::Settings(request) => **request == TuningRequest::default(),
        };
        nothing && matches!(self.command, Command::Add | Command::Check)
    }

    /// Returns the keys under which the interface may be on record; `default` is the name of the
    /// agent's default network. Both are possible, because only the configuration of the plugin
    /// that created the interface has the `ipam`.
    pub fn keys(&self, default: &NetworkName) -> Vec<AttachmentKey> {
        let Some(container) = &self.container else {
            return Vec::new();
        };
        let mut names = vec![&self.header.name, default];
        names.dedup();
        let key = |network: &NetworkName| AttachmentKey {
            network: network.clone(),
            container_id: container.id.clone(),
            ifname: container.ifname.clone(),
        };
        names.into_iter().map(key).collect()
    }

    /// Returns the interface as `prevResult` describes it.
    pub fn adoption(&self) -> Result<Adoption, Error> {
        let parts = self.container.as_ref().zip(self.prev_result.as_ref());
        let Some((container, prev_result)) = parts else {
            return Err(Error::invalid_config("required prevResult missing"));
        };
        let netns = container.netns.clone();
        let addresses = prev_result.addresses_of(&container.ifname)?.into_iter();
        Ok(Adoption {
            key: AttachmentKey {
                network: self.header.name.clone(),
                container_id: container.id.clone(),
                ifname: container.ifname.clone(),
            },
            netns: netns.ok_or_else(|| Error::environment("CNI_NETNS is not a path"))?,
            addresses: addresses
                .map(|own| Assigned {
                    address: own.address,
                    gateway: own.gateway,
                })
                .collect(),
            pod: container.pod.clone(),
        })
    }
}

/// Returns `dataDir`, or the reference plugin's default. DEL needs it, so no value is an error.
fn backup_folder(config: &Object<'_>) -> PathBuf {
    let named = config.text("dataDir").ok().flatten();
    PathBuf::from(named.filter(|path| !path.is_empty()).unwrap_or(DATA_DIR))
}

fn container(environment: &Environment, pod: Option<PodName>) -> Result<Container, Error> {
    Ok(Container {
        id: environment.container_id()?,
        ifname: environment.ifname()?,
        netns: environment.netns.parse().ok(),
        pod,
    })
}

fn plugin_request(
    plugin: Plugin,
    config: &Object<'_>,
    args: &Args,
    text: &str,
    ifname: &IfName,
) -> Result<PluginRequest, Error> {
    match plugin {
        Plugin::Portmap => {
            unsupported::check_portmap(config)?;
            published_ports(config).map(PluginRequest::Ports)
        }
        Plugin::Bandwidth => {
            bandwidth::read(config).map(|limits| PluginRequest::Limits(Box::new(limits)))
        }
        Plugin::Firewall => Ok(PluginRequest::Policy(
            ingress_policy(config)?.unwrap_or_default(),
        )),
        Plugin::Tuning => {
            let request = tuning::settings(config, args, text, ifname)?;
            Ok(PluginRequest::Settings(Box::new(request)))
        }
        Plugin::Viaduct | Plugin::Bridge | Plugin::HostLocal | Plugin::Loopback => {
            Ok(PluginRequest::Nothing)
        }
    }
}

/// Parses `iptablesAdminChainName` of the firewall plugin.
fn admin_chain(config: &Object<'_>) -> Result<String, Error> {
    /// Longest name of a chain of iptables (`XT_EXTENSION_MAXNAMELEN` without its NUL).
    const LONGEST: usize = 28;
    let Some(node) = config.get("iptablesAdminChainName") else {
        return Ok(DEFAULT_ADMIN_CHAIN.to_owned());
    };
    let name = node.text()?;
    let is_allowed = |c: char| c.is_ascii_graphic() && c != '/';
    if name.is_empty() {
        return Ok(DEFAULT_ADMIN_CHAIN.to_owned());
    }
    if name.len() > LONGEST || name.starts_with(['-', '!']) || !name.chars().all(is_allowed) {
        return Err(node.invalid(format_args!("{name:?} is no name of an iptables chain")));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests;
