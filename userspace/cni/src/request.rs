//! Requests: environment and configuration of one CNI command, parsed and checked.
//!
//! There is one type per command, with the fields that this command needs. Whether the attachment
//! exists is the agent's knowledge, not this module's.

pub(crate) mod chain;
pub(crate) mod check_version;
pub(crate) mod environment;
pub(crate) mod gc;
pub(crate) mod ipam_request;

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{AttachmentKey, ContainerId, IfName, NetnsPath, NetworkName};

use crate::config::{Config, Header};
use crate::json::{self, Object};
use crate::list::selection;
use crate::request::check_version::check_version;
use crate::request::environment::{Command, Environment, variable};
use crate::request::gc::{ValidAttachment, valid_attachments};
use crate::runtime::args::Args;
use crate::{ChainedRequest, Error, ForeignLease, Plugin, PluginResult, PrevResult, RuntimeArgs};

/// A well-formed request. VERSION has no variant: it reads no configuration, see
/// [`crate::version_report`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Creates an attachment.
    Add(Box<AddRequest>),
    /// Removes an attachment.
    Del(DelRequest),
    /// Compares an attachment with the result of its ADD.
    Check(CheckRequest),
    /// Removes attachments that are not in the runtime's list.
    Gc(GcRequest),
    /// Reports whether an ADD would succeed.
    Status(Box<StatusRequest>),
    /// Any command of a chained plugin: it applies to an interface that another plugin has created.
    Chained(Box<ChainedRequest>),
}

/// An ADD of `viaduct` or `bridge`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddRequest {
    /// The container.
    pub container_id: ContainerId,
    /// The interface's name in the container.
    pub ifname: IfName,
    /// The container's network namespace, as the runtime wrote it.
    pub netns: NetnsPath,
    /// The network configuration.
    pub config: Config,
    /// Per-attachment settings of the runtime.
    pub requested: RuntimeArgs,
    /// `prevResult`: the result of the previous plugins of the list.
    pub prev_result: Option<PluginResult>,
    /// Gateways of the pod's further networks that take over its default routes: in their address
    /// families the pod gets no default route through our bridge.
    pub default_gateways: Vec<IpAddr>,
    /// The result of the external IPAM plugin. `None` in the first of two ADDs, which creates the
    /// link that the IPAM plugin may need.
    pub lease: Option<ForeignLease>,
}

/// The attachment that a request names. Its network is not final: a configuration without a network
/// of its own means the agent's default network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    header: Header,
    container_id: ContainerId,
    ifname: IfName,
}

impl Target {
    /// Returns the keys of the configuration that every command needs.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the attachment's key; `default` is the name of the agent's default network.
    pub fn key(&self, default: &NetworkName) -> AttachmentKey {
        AttachmentKey {
            network: self.header.network(default).clone(),
            container_id: self.container_id.clone(),
            ifname: self.ifname.clone(),
        }
    }
}

/// A DEL. It requires little, because it must succeed without namespace, result or valid settings
/// (behaviour S10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelRequest {
    /// The attachment to remove.
    pub target: Target,
    /// The container's network namespace, if the runtime passes it.
    pub netns: Option<NetnsPath>,
}

/// A CHECK of `viaduct` or `bridge`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckRequest {
    /// The attachment to check.
    pub target: Target,
    /// The container's network namespace.
    pub netns: NetnsPath,
    /// The result of ADD, as the runtime passes it.
    pub prev_result: PrevResult,
}

/// A GC of `viaduct` or `bridge`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcRequest {
    /// Keys that every command needs.
    pub header: Header,
    /// The runtime's valid attachments; `None` without a list, and then GC removes nothing.
    pub valid: Option<BTreeSet<ValidAttachment>>,
    /// `forceGC`: attachments are removed even if their network namespaces still exist.
    pub forced: bool,
}

impl GcRequest {
    /// Returns the network whose attachments are collected; `default` is the name of the agent's
    /// default network.
    pub fn network(&self, default: &NetworkName) -> NetworkName {
        self.header.network(default).clone()
    }
}

/// A STATUS of `viaduct` or `bridge`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRequest {
    /// The configuration of the ADD that would follow.
    pub config: Config,
}

impl Header {
    /// Returns the network's name in attachment keys: the configuration's own, or `default`.
    pub fn network<'a>(&'a self, default: &'a NetworkName) -> &'a NetworkName {
        if self.declares_network {
            &self.name
        } else {
            default
        }
    }
}

impl Request {
    /// Parses a request. All input is untrusted: every client of the agent's socket can send any
    /// request, also one that our plugin would have refused.
    pub fn read(plugin: Plugin, environment: &Environment, config: &str) -> Result<Self, Error> {
        match plugin {
            Plugin::Viaduct | Plugin::Bridge => Self::of_bridge(plugin, environment, config),
            Plugin::Portmap
            | Plugin::Bandwidth
            | Plugin::Firewall
            | Plugin::Tuning
            | Plugin::Loopback => {
                let chained = ChainedRequest::read(plugin, environment, config)?;
                Ok(Self::Chained(Box::new(chained)))
            }
            Plugin::HostLocal => Err(Error::environment("host-local needs no agent")),
        }
    }

    fn of_bridge(plugin: Plugin, environment: &Environment, text: &str) -> Result<Self, Error> {
        environment.check()?;
        let map = json::parse(text)?;
        let config = Object::root(&map);
        let mut header = Header::read(&config)?;
        // Without an `ipam`, the bridge plugin creates a layer-2 bridge without addresses.
        header.declares_network |= plugin == Plugin::Bridge;
        check_version(environment.command, header.version)?;
        match environment.command {
            Command::Add => {
                let mut request = add(environment, &config, header)?;
                request.prev_result =
                    PluginResult::from_config(text, request.config.header.version)?;
                if plugin == Plugin::Viaduct {
                    let annotations = &request.requested.annotations;
                    request.default_gateways = selection::default_gateways(annotations)?;
                }
                Ok(Self::Add(Box::new(request)))
            }
            Command::Del => Ok(Self::Del(DelRequest {
                target: target(environment, header)?,
                netns: environment.netns.parse().ok(),
            })),
            Command::Check => Ok(Self::Check(CheckRequest {
                target: target(environment, header)?,
                netns: variable("CNI_NETNS", &environment.netns)?,
                prev_result: PrevResult::read(&config)?,
            })),
            Command::Gc => Ok(Self::Gc(GcRequest {
                header,
                valid: valid_attachments(&config)?,
                forced: gc::is_forced(&config)?,
            })),
            Command::Status => Ok(Self::Status(Box::new(StatusRequest {
                config: Config::read(&config, header)?,
            }))),
            Command::Version => Err(Error::environment("VERSION reads no configuration")),
        }
    }
}

fn add(
    environment: &Environment,
    config: &Object<'_>,
    header: Header,
) -> Result<AddRequest, Error> {
    Ok(AddRequest {
        container_id: environment.container_id()?,
        ifname: environment.ifname()?,
        netns: variable("CNI_NETNS", &environment.netns)?,
        config: Config::read(config, header)?,
        requested: RuntimeArgs::read(config, Args::parse(&environment.args)?)?,
        prev_result: None,
        default_gateways: Vec::new(),
        lease: None,
    })
}

fn target(environment: &Environment, header: Header) -> Result<Target, Error> {
    Ok(Target {
        header,
        container_id: environment.container_id()?,
        ifname: environment.ifname()?,
    })
}

#[cfg(test)]
pub(crate) mod tests;
