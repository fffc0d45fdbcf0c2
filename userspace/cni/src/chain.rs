//! Requests to plugins that serve what others have made: portmap, bandwidth, firewall, tuning and loopback.
//!
//! Each reads its own settings and passes the result on. A DEL reads nothing but names: it must work when all else is
//! gone, and with a configuration whose ADD was refused (behaviour S10).

use std::collections::BTreeSet;

use model::{
    Adoption, Assigned, AttachmentKey, ContainerId, IfName, IngressPolicy, InterfaceSettings,
    NetnsPath, NetworkName, PodName, PortMapping,
};

use crate::args::Args;
use crate::bandwidth::{self, Asked};
use crate::config::Header;
use crate::environment::{Command, Environment, variable};
use crate::gc::{self, ValidAttachment, valid_attachments};
use crate::json::{self, Object};
use crate::request::check_version;
use crate::{Error, PassedResult, Plugin, Wishes, refused, tuning};

/// A request to a chained plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainedRequest {
    /// The plugin.
    pub plugin: Plugin,
    /// The command.
    pub command: Command,
    /// What every command needs.
    pub header: Header,
    /// The container; `None` for commands that are of none.
    pub container: Option<Container>,
    /// The result of the plugins before.
    pub passed: Option<PassedResult>,
    /// What is to be done; nothing for commands that need not know.
    pub wish: Wish,
    /// Attachments that are still wanted, for GC.
    pub valid: Option<BTreeSet<ValidAttachment>>,
    /// Whether GC removes what lives.
    pub forced: bool,
}

/// Whose interface it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The container.
    pub id: ContainerId,
    /// The interface's name in the container.
    pub ifname: IfName,
    /// The container's network namespace, if the runtime still knows.
    pub netns: Option<NetnsPath>,
    /// The pod, when the runtime tells.
    pub pod: Option<PodName>,
}

/// What a chained plugin is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing besides passing the result on.
    Nothing,
    /// Publish ports.
    Ports(Vec<PortMapping>),
    /// Limit the traffic.
    Limits(Box<Asked>),
    /// Keep other pods away.
    Policy(IngressPolicy),
    /// Change settings.
    Settings(Box<InterfaceSettings>),
}

impl ChainedRequest {
    pub(crate) fn read(
        plugin: Plugin,
        environment: &Environment,
        text: &str,
    ) -> Result<Self, Error> {
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
            passed: None,
            wish: Wish::Nothing,
            valid: None,
            forced: false,
        };
        match command {
            Command::Add | Command::Check => request.read_more(environment, &config, text)?,
            Command::Del => request.container = Some(container(environment, None)?),
            Command::Gc => {
                request.valid = valid_attachments(&config)?;
                request.forced = gc::is_forced(&config)?;
            }
            Command::Status | Command::Version => {}
        }
        Ok(request)
    }

    fn read_more(
        &mut self,
        environment: &Environment,
        config: &Object<'_>,
        text: &str,
    ) -> Result<(), Error> {
        let _known: NetnsPath = variable("CNI_NETNS", &environment.netns)?;
        let args = Args::parse(&environment.args)?;
        let container = container(environment, args.pod.clone())?;
        self.passed = PassedResult::of(text, self.header.version)?;
        if self.passed.is_none() && self.plugin != Plugin::Loopback {
            // The words are those of the reference plugins (behaviour R12).
            return Err(Error::invalid_config("must be called as chained plugin")
                .with_details("the configuration has no prevResult"));
        }
        self.wish = wish(self.plugin, config, args, text, &container.ifname)?;
        self.container = Some(container);
        Ok(())
    }

    /// Keys under which the interface may be on record, when `default` is the name of the agent's default network: the
    /// plugin that made it may have been told an `ipam`, which this one is not.
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

    /// The interface as the result of the plugins before tells of it.
    pub fn adoption(&self) -> Result<Adoption, Error> {
        let parts = self.container.as_ref().zip(self.passed.as_ref());
        let Some((container, passed)) = parts else {
            return Err(Error::invalid_config("required prevResult missing"));
        };
        let netns = container.netns.clone();
        let addresses = passed.addresses_of(&container.ifname)?.into_iter();
        let links = passed
            .interfaces()
            .into_iter()
            .filter(|link| link.sandbox.is_empty());
        Ok(Adoption {
            key: AttachmentKey {
                network: self.header.name.clone(),
                container_id: container.id.clone(),
                ifname: container.ifname.clone(),
            },
            netns: netns.ok_or_else(|| Error::environment("CNI_NETNS is no path"))?,
            addresses: addresses
                .map(|own| Assigned {
                    address: own.address,
                    gateway: own.gateway,
                })
                .collect(),
            links: links.filter_map(|link| link.name.parse().ok()).collect(),
            pod: container.pod.clone(),
        })
    }
}

fn container(environment: &Environment, pod: Option<PodName>) -> Result<Container, Error> {
    Ok(Container {
        id: environment.container_id()?,
        ifname: environment.ifname()?,
        netns: environment.netns.parse().ok(),
        pod,
    })
}

fn wish(
    plugin: Plugin,
    config: &Object<'_>,
    args: Args,
    text: &str,
    ifname: &IfName,
) -> Result<Wish, Error> {
    match plugin {
        Plugin::Portmap => {
            refused::check_portmap(config)?;
            Ok(Wish::Ports(Wishes::read(config, args)?.port_mappings))
        }
        Plugin::Bandwidth => bandwidth::read(config).map(|asked| Wish::Limits(Box::new(asked))),
        Plugin::Firewall => Ok(Wish::Policy(ingress_policy(config)?.unwrap_or_default())),
        Plugin::Tuning => {
            let settings = tuning::settings(config, &args, text, ifname)?;
            Ok(Wish::Settings(Box::new(settings)))
        }
        Plugin::Viaduct | Plugin::Bridge | Plugin::HostLocal | Plugin::Loopback => {
            Ok(Wish::Nothing)
        }
    }
}

/// firewall's `ingressPolicy`. The chains and zones that the reference plugin makes so that others let pods' packets
/// through are not made (see docs/cni.md).
pub(crate) fn ingress_policy(config: &Object<'_>) -> Result<Option<IngressPolicy>, Error> {
    let Some(node) = config.get("ingressPolicy") else {
        return Ok(None);
    };
    let policy = node.text()?.parse();
    policy
        .map(Some)
        .map_err(|error| node.invalid(format_args!("unrecognized ingress policy: {error}")))
}

#[cfg(test)]
mod tests;
