//! A request: environment and configuration together, one type for each command, with what that command needs and
//! nothing else. Refuses to know what is attached.

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{AttachmentKey, ContainerId, IfName, NetnsPath, NetworkName};

use crate::args::Args;
use crate::config::{Config, Header};
use crate::environment::{Command, Environment, variable};
use crate::gc::{self, ValidAttachment, valid_attachments};
use crate::json::{self, Object};
use crate::{
    ChainedRequest, Error, ForeignLease, PassedResult, Plugin, PrevResult, Version, Wishes,
    selection,
};

/// A request that is well-formed. VERSION is none: it reads no configuration, see [`crate::version_report`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Make an attachment.
    Add(Box<AddRequest>),
    /// Remove an attachment.
    Del(DelRequest),
    /// Compare an attachment with what ADD returned.
    Check(CheckRequest),
    /// Remove attachments that the runtime does not know.
    Gc(GcRequest),
    /// Tell whether an ADD would work.
    Status(Box<StatusRequest>),
    /// Any command of a plugin that serves what others have made.
    Chained(Box<ChainedRequest>),
}

/// ADD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddRequest {
    /// The container.
    pub container_id: ContainerId,
    /// The interface's name in the container.
    pub ifname: IfName,
    /// The container's network namespace, as the runtime wrote it.
    pub netns: NetnsPath,
    /// The configuration.
    pub config: Config,
    /// Wishes for this attachment.
    pub wishes: Wishes,
    /// What plugins before us made.
    pub passed: Option<PassedResult>,
    /// Gateways of further networks of the pod by which its default routes go: those of their families are not ours.
    pub default_gateways: Vec<IpAddr>,
    /// What the `ipam` plugin of somebody else's gave. An ADD without makes the link that it may need for that.
    pub lease: Option<ForeignLease>,
}

/// Which attachment, as far as the runtime's words tell: the network depends on the agent's default one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    header: Header,
    container_id: ContainerId,
    ifname: IfName,
}

impl Target {
    /// What every command needs of the configuration.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The key, when `default` is the name of the agent's default network.
    pub fn key(&self, default: &NetworkName) -> AttachmentKey {
        AttachmentKey {
            network: self.header.network(default).clone(),
            container_id: self.container_id.clone(),
            ifname: self.ifname.clone(),
        }
    }
}

/// DEL. There is little that it needs, because it must work when all else is gone (behaviour S10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelRequest {
    /// The attachment.
    pub target: Target,
    /// The container's network namespace, if the runtime still knows.
    pub netns: Option<NetnsPath>,
}

/// CHECK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckRequest {
    /// The attachment.
    pub target: Target,
    /// The container's network namespace.
    pub netns: NetnsPath,
    /// What ADD returned, by the runtime's word.
    pub prev_result: PrevResult,
}

/// GC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcRequest {
    /// What every configuration says.
    pub header: Header,
    /// Attachments that are still wanted; `None` when the runtime does not say, which is no reason to remove any.
    pub valid: Option<BTreeSet<ValidAttachment>>,
    /// Whether attachments go even while their network namespaces live.
    pub forced: bool,
}

impl GcRequest {
    /// The network whose attachments the list is of, when `default` is the name of the agent's default network.
    pub fn network(&self, default: &NetworkName) -> NetworkName {
        self.header.network(default).clone()
    }
}

/// STATUS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRequest {
    /// The configuration that an ADD would bring.
    pub config: Config,
}

impl Header {
    /// The name under which the configuration's attachments are kept.
    pub fn network<'a>(&'a self, default: &'a NetworkName) -> &'a NetworkName {
        if self.declares_network {
            &self.name
        } else {
            default
        }
    }
}

impl Request {
    /// Reads a request. Nothing about it is trusted: the plugin may have read it before, but whoever may connect to
    /// the agent can send anything.
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
        // Without an `ipam`, the bridge plugin makes a mere switch.
        header.declares_network |= plugin == Plugin::Bridge;
        check_version(environment.command, header.version)?;
        match environment.command {
            Command::Add => {
                let mut request = add(environment, &config, header)?;
                request.passed = PassedResult::of(text, request.config.header.version)?;
                if plugin == Plugin::Viaduct {
                    let annotations = &request.wishes.annotations;
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
        wishes: Wishes::read(config, Args::parse(&environment.args)?)?,
        passed: None,
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

/// Commands came with versions (behaviour S5).
pub(crate) fn check_version(command: Command, version: Version) -> Result<(), Error> {
    let (name, since) = match command {
        Command::Check => ("CHECK", Version::V0_4_0),
        Command::Gc => ("GC", Version::V1_1_0),
        Command::Status => ("STATUS", Version::V1_1_0),
        Command::Add | Command::Del | Command::Version => return Ok(()),
    };
    if version >= since {
        return Ok(());
    }
    Err(Error::incompatible_version(format!(
        "config version {version} does not allow {name}: it needs {since} or newer"
    )))
}

#[cfg(test)]
pub(crate) mod tests;
