//! Requests to host-local, which a plugin that makes interfaces delegates to: it gets that one's whole configuration,
//! of which the `ipam` is meant for it (behaviour S14).

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{Assigned, AttachmentKey, HairpinMode, Network, Route};
use serde_json::json;

use crate::args::Args;
use crate::config::Header;
use crate::environment::{Command, Environment};
use crate::gc::{ValidAttachment, valid_attachments};
use crate::intent::{check_ranges, default_bridge};
use crate::json::{self, Object};
use crate::request::check_version;
use crate::{Dns, Error, Ipam, PassedResult, Wishes};

/// A request to host-local.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpamRequest {
    /// What every command needs.
    pub header: Header,
    /// What to do.
    pub verb: IpamVerb,
}

/// What host-local is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpamVerb {
    /// Give addresses.
    Add(Box<Pool>, AttachmentKey),
    /// Take them back.
    Del(AttachmentKey),
    /// Tell whether they are given.
    Check(AttachmentKey),
    /// Take back what is of none of these.
    Gc(Option<BTreeSet<ValidAttachment>>),
    /// Tell whether there is an address to give.
    Status(Box<Pool>),
}

/// Where addresses come from, and what goes with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The ranges, as those of a network.
    pub network: Network,
    /// Addresses asked for.
    pub requested: Vec<IpAddr>,
    /// What the configuration says.
    pub ipam: Ipam,
}

impl IpamRequest {
    /// Reads a request.
    pub fn read(environment: &Environment, text: &str) -> Result<Self, Error> {
        environment.check()?;
        let map = json::parse(text)?;
        let config = Object::root(&map);
        let header = Header::read(&config)?;
        let command = environment.command;
        check_version(command, header.version)?;
        let verb = match command {
            Command::Add => {
                let args = Args::parse(&environment.args)?;
                let pool = pool(&header, &config, args)?;
                IpamVerb::Add(Box::new(pool), key(&header, environment)?)
            }
            Command::Del => IpamVerb::Del(key(&header, environment)?),
            Command::Check => IpamVerb::Check(key(&header, environment)?),
            Command::Gc => IpamVerb::Gc(valid_attachments(&config)?),
            Command::Status => IpamVerb::Status(Box::new(pool(&header, &config, Args::default())?)),
            Command::Version => return Err(Error::environment("VERSION reads no configuration")),
        };
        Ok(Self { header, verb })
    }
}

impl PassedResult {
    /// What host-local answers: addresses without an interface.
    pub fn of_addresses(addresses: &[Assigned], routes: &[Route], dns: &Dns) -> Self {
        let ips = addresses.iter().map(|own| {
            let mut told = json!({ "address": own.address.to_string() });
            if let Some(gateway) = own.gateway {
                told["gateway"] = json!(gateway.to_string());
            }
            told
        });
        let routes = routes.iter().map(|route| {
            let mut told = json!({ "dst": route.destination.to_string() });
            if let Some(gateway) = route.gateway {
                told["gw"] = json!(gateway.to_string());
            }
            told
        });
        let ips: Vec<_> = ips.collect();
        let routes: Vec<_> = routes.collect();
        Self::of_parts(ips, routes, dns)
    }
}

fn key(header: &Header, environment: &Environment) -> Result<AttachmentKey, Error> {
    Ok(AttachmentKey {
        network: header.name.clone(),
        container_id: environment.container_id()?,
        ifname: environment.ifname()?,
    })
}

fn pool(header: &Header, config: &Object<'_>, args: Args) -> Result<Pool, Error> {
    let Some(ipam) = config.object("ipam")? else {
        return Err(Error::invalid_config("missing ipam"));
    };
    // Whoever executes host-local means it.
    let own = Header {
        ipam_plugin: None,
        ..header.clone()
    };
    let ipam = Ipam::read(&ipam, &own)?;
    let wishes = Wishes::read(config, args)?;
    let mut ranges = wishes.ranges;
    ranges.extend(ipam.ranges.iter().cloned());
    check_ranges(&ranges, header.version)?;
    Ok(Pool {
        network: Network {
            name: header.name.clone(),
            bridge: default_bridge(),
            ranges,
            routes: Vec::new(),
            default_route: false,
            mtu: None,
            hairpin: HairpinMode::None,
            masquerade: false,
            options: model::BridgeOptions::default(),
        },
        requested: wishes.addresses.iter().map(|wish| wish.address).collect(),
        ipam,
    })
}
