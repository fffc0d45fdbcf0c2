//! The JSON of networks and containers, as podman and netavark write it.
//!
//! Keys that are not listed here are about other software (labels, time of creation, aliases for
//! aardvark-dns), and are left alone.

#![expect(clippy::struct_field_names, reason = "the names are netavark's")]

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::Error;
use model::Cidr;
use serde::{Deserialize, Deserializer};

/// Options by name.
pub(crate) type OptionMap = BTreeMap<String, String>;

/// A network.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Network {
    pub(crate) name: String,
    pub(crate) id: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) internal: bool,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) ipv6_enabled: bool,
    /// Name of the bridge; empty until `create` chooses one.
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) network_interface: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) options: OptionMap,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) ipam_options: OptionMap,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) subnets: Vec<Subnet>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) routes: Vec<Route>,
    /// Servers to which aardvark-dns forwards queries.
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) network_dns_servers: Vec<String>,
}

/// A subnet of a network: a container gets an address of each.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Subnet {
    pub(crate) subnet: String,
    #[serde(default)]
    pub(crate) gateway: Option<IpAddr>,
    #[serde(default)]
    pub(crate) lease_range: Option<LeaseRange>,
}

/// Addresses of a subnet that are allocated.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LeaseRange {
    #[serde(default)]
    pub(crate) start_ip: Option<String>,
    #[serde(default)]
    pub(crate) end_ip: Option<String>,
}

/// A route of the network's containers.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Route {
    pub(crate) destination: String,
    #[serde(default)]
    pub(crate) gateway: Option<IpAddr>,
    #[serde(default)]
    pub(crate) metric: Option<u32>,
    /// A word of `ip route`; `None` for `unicast`.
    #[serde(default)]
    pub(crate) route_type: Option<String>,
}

/// Standard input of `setup` and `teardown`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Input {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) container_name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) port_mappings: Vec<PortMapping>,
    pub(crate) network: Network,
    pub(crate) network_options: ContainerOptions,
}

/// Options of one container in the network.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ContainerOptions {
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) static_ips: Vec<IpAddr>,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) static_mac: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) options: OptionMap,
}

/// Published ports: `range` ports from these on.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PortMapping {
    pub(crate) container_port: u16,
    pub(crate) host_port: u16,
    /// Address of the node; empty for all.
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) host_ip: String,
    /// Protocols, separated by commas; empty for TCP.
    #[serde(default, deserialize_with = "or_default")]
    pub(crate) protocol: String,
    /// Number of ports; 0 is 1.
    #[serde(default)]
    pub(crate) range: u16,
}

impl Subnet {
    /// Returns a subnet with this prefix, without further settings.
    pub(crate) fn of(prefix: Cidr) -> Self {
        Self {
            subnet: prefix.to_string(),
            gateway: None,
            lease_range: None,
        }
    }

    /// Parses the prefix.
    pub(crate) fn prefix(&self) -> Result<Cidr, Error> {
        let parsed = self.subnet.parse();
        parsed.map_err(|error| Error::invalid_config(format!("subnet {:?}: {error}", self.subnet)))
    }
}

/// Parses JSON; an error names what was parsed.
pub(crate) fn parse<'a, T: Deserialize<'a>>(what: &str, text: &'a str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::decode(format!("{what}: {error}")))
}

/// Reads null, which Go writes for empty lists and maps, as the default.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
