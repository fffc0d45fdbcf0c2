//! Requests to host-local as an IPAM plugin of other plugins.
//!
//! The calling plugin passes its whole configuration; only `ipam` is meant for host-local
//! (behaviour S14).

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{Assigned, AttachmentKey, HairpinMode, Network, Route};
use serde_json::json;

use crate::config::Header;
use crate::intent::{check_ranges, default_bridge};
use crate::json::{self, Object};
use crate::request::check_version::check_version;
use crate::request::environment::{Command, Environment};
use crate::request::gc::{ValidAttachment, valid_attachments};
use crate::runtime::args::Args;
use crate::{Dns, Error, Ipam, PluginResult, RuntimeArgs};

/// A request to host-local, for any command but VERSION.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpamRequest {
    /// Keys that every command needs.
    pub header: Header,
    /// The command, with its parameters.
    pub verb: IpamVerb,
}

/// The command of a request to host-local.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IpamVerb {
    /// Allocates addresses.
    Add(Box<Pool>, AttachmentKey),
    /// Releases the attachment's addresses.
    Del(AttachmentKey),
    /// Reports whether the attachment has addresses.
    Check(AttachmentKey),
    /// Releases addresses of all attachments that are not in the list; without a list, none.
    Gc(Option<BTreeSet<ValidAttachment>>),
    /// Reports whether an address is free.
    Status(Box<Pool>),
}

/// The ranges that addresses are allocated from, and the settings that go with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The ranges, as a network without a bridge of its own.
    pub network: Network,
    /// Requested addresses.
    pub requested: Vec<IpAddr>,
    /// The `ipam` of the configuration.
    pub ipam: Ipam,
}

impl IpamRequest {
    /// Parses a request.
    pub fn read(environment: &Environment, text: &str) -> Result<Self, Error> {
        environment.check()?;
        let map = json::parse(text)?;
        let config = Object::root(&map);
        let header = Header::read(&config)?;
        let command = environment.command;
        check_version(command, header.version)?;
        let verb = match command {
            Command::Add => {
                let args = Args::parse_for_host_local(&environment.args)?;
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

impl PluginResult {
    /// Returns the result of host-local: addresses that refer to no interface.
    pub fn of_addresses(addresses: &[Assigned], routes: &[Route], dns: &Dns) -> Self {
        let ips = addresses.iter().map(|own| {
            let mut entry = json!({ "address": own.address.to_string() });
            if let Some(gateway) = own.gateway {
                entry["gateway"] = json!(gateway.to_string());
            }
            entry
        });
        let routes = routes.iter().map(|route| {
            let mut entry = json!({ "dst": route.destination.to_string() });
            if let Some(gateway) = route.gateway {
                entry["gw"] = json!(gateway.to_string());
            }
            let options = &route.options;
            let members = [
                ("mtu", options.mtu),
                ("advmss", options.advmss),
                ("priority", options.priority),
                ("table", options.table),
                ("scope", options.scope.map(u32::from)),
            ];
            for (name, value) in members {
                if let Some(value) = value {
                    entry[name] = json!(value);
                }
            }
            entry
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
    // The caller has executed host-local by its name, so `ipam` must not be treated as another
    // plugin's.
    let own = Header {
        ipam_plugin: None,
        ..header.clone()
    };
    let ipam = Ipam::read(&ipam, &own)?;
    let requested = RuntimeArgs::read_for_host_local(config, args.addresses)?;
    let mut ranges = requested.ranges;
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
        requested: requested.addresses.iter().map(|own| own.address).collect(),
        ipam,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::environment;

    fn requested(args: &str, more: &serde_json::Value) -> Result<Vec<String>, Error> {
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": 7, "mac": "odd",
            "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" },
        });
        let own = config.as_object_mut().unwrap();
        own.extend(more.as_object().unwrap().clone());
        let environment = environment(Command::Add, args);
        let request = IpamRequest::read(&environment, &config.to_string())?;
        let IpamVerb::Add(pool, _) = request.verb else {
            panic!("{:?}", request.verb);
        };
        Ok(pool.requested.iter().map(ToString::to_string).collect())
    }

    /// behaviour S14: the caller's settings are the caller's to check.
    #[test]
    fn host_local_reads_its_own_settings_alone() {
        let others = json!({
            "args": { "cni": { "mac": "odd" } },
            "runtimeConfig": {
                "mac": "odd", "portMappings": "odd", "bandwidth": { "ingressRate": -1 },
                "ips": ["10.1.0.9"], "ipRanges": [[{ "subnet": "10.2.0.0/24" }]],
            },
        });
        let args = "IgnoreUnknown=1;MAC=odd;GATEWAY=odd;IP=10.1.0.8";
        assert_eq!(requested(args, &others).unwrap(), ["10.1.0.9"]);
        assert_eq!(requested(args, &json!({})).unwrap(), ["10.1.0.8"]);
        let error = requested("MAC=02:00:00:00:00:01", &json!({})).unwrap_err();
        assert!(error.msg.contains("unknown args"), "{error}");
        let odd = json!({ "runtimeConfig": { "ips": ["odd"] } });
        assert_eq!(requested("", &odd).unwrap_err().code, 7);
    }
}
