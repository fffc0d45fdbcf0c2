//! Requests and answers of libnetwork's remote drivers (`daemon/libnetwork/docs/remote.md` and
//! `ipam.md` of moby). Fields that Viaduct does not use are left out.
//!
//! Absent fields and `null` have the same meaning: Go writes either for an empty value.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Media type of the answers.
pub const MEDIA_TYPE: &str = "application/vnd.docker.plugins.v1.2+json";

/// Key in `Options` of the options that the user has set with `--opt`.
pub const GENERIC: &str = "com.docker.network.generic";
/// Key in `Options` of the published ports.
pub const PORT_MAP: &str = "com.docker.network.portmap";

/// An identifier of dockerd: 64 hexadecimal digits for networks and endpoints.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Id(String);

impl Id {
    /// Length of the part that dockerd shows.
    const SHORT: usize = 12;

    /// Returns the whole identifier.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first twelve digits, as `docker network ls` shows them.
    pub fn short(&self) -> &str {
        &self.0[..Self::SHORT]
    }
}

impl std::str::FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if (Self::SHORT..=64).contains(&text.len()) && text.bytes().all(is_digit) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!(
                "{text:?} is no ID: 12 to 64 hexadecimal digits are"
            ))
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Reads `null` as the default value.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Options of dockerd, some of which contain those of the user.
pub type Options = Map<String, Value>;

/// `NetworkDriver.GwAllocCheck`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct GatewayCheck {
    /// The options of the network that is about to be created.
    #[serde(default, deserialize_with = "or_default")]
    pub options: Options,
}

/// `NetworkDriver.CreateNetwork`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CreateNetwork {
    /// ID of the network.
    #[serde(rename = "NetworkID")]
    pub network: Id,
    /// Options of dockerd.
    #[serde(default, deserialize_with = "or_default")]
    pub options: Options,
    /// IPv4 pools.
    #[serde(rename = "IPv4Data", default, deserialize_with = "or_default")]
    pub ipv4: Vec<IpamData>,
    /// IPv6 pools.
    #[serde(rename = "IPv6Data", default, deserialize_with = "or_default")]
    pub ipv6: Vec<IpamData>,
}

/// A pool of a network.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct IpamData {
    /// Prefix.
    #[serde(default, deserialize_with = "or_default")]
    pub pool: String,
    /// Gateway with the prefix length; empty for none.
    #[serde(default, deserialize_with = "or_default")]
    pub gateway: String,
}

/// Requests that name a network only: `NetworkDriver.DeleteNetwork`.
#[derive(Clone, Debug, Deserialize)]
pub struct OfNetwork {
    /// ID of the network.
    #[serde(rename = "NetworkID")]
    pub network: Id,
}

/// Requests that name an endpoint, with options where there are some: `DeleteEndpoint`,
/// `EndpointOperInfo`, `Join`, `Leave`, `ProgramExternalConnectivity`,
/// `RevokeExternalConnectivity`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct OfEndpoint {
    /// ID of the network.
    #[serde(rename = "NetworkID")]
    pub network: Id,
    /// ID of the endpoint.
    #[serde(rename = "EndpointID")]
    pub endpoint: Id,
    /// Options of the sandbox.
    #[serde(default, deserialize_with = "or_default")]
    pub options: Options,
}

/// `NetworkDriver.CreateEndpoint`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CreateEndpoint {
    /// ID of the network.
    #[serde(rename = "NetworkID")]
    pub network: Id,
    /// ID of the endpoint.
    #[serde(rename = "EndpointID")]
    pub endpoint: Id,
    /// What dockerd has chosen.
    #[serde(default, deserialize_with = "or_default")]
    pub interface: Interface,
}

/// Addresses of an endpoint; empty for those that the other side has to choose, or has chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Interface {
    /// IPv4 address with the prefix length.
    #[serde(default, deserialize_with = "or_default")]
    pub address: String,
    /// IPv6 address with the prefix length.
    #[serde(rename = "AddressIPv6", default, deserialize_with = "or_default")]
    pub address_ipv6: String,
    /// MAC address.
    #[serde(default, deserialize_with = "or_default")]
    pub mac_address: String,
}

/// The answer to `CreateEndpoint`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct CreatedEndpoint {
    /// What the driver has chosen.
    pub interface: Interface,
}

/// The answer to `Join`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Joined {
    /// The interface to move.
    pub interface_name: InterfaceName,
    /// IPv4 gateway; empty for none.
    pub gateway: String,
    /// IPv6 gateway; empty for none.
    #[serde(rename = "GatewayIPv6")]
    pub gateway_ipv6: String,
    /// Whether dockerd adds no other way to the outside, such as its bridge `docker_gwbridge`.
    pub disable_gateway_service: bool,
}

/// Names of an interface that dockerd moves into a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct InterfaceName {
    /// Name in the node's namespace.
    pub src_name: String,
    /// Beginning of the name in the container, to which dockerd adds a number.
    pub dst_prefix: String,
}

/// A published port. dockerd writes each port as a number, and 0 for none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct PortBinding {
    /// IP protocol number.
    pub proto: u8,
    /// Address of the container; unused.
    #[serde(rename = "IP", default, deserialize_with = "or_default")]
    pub ip: String,
    /// Port of the container.
    pub port: u16,
    /// Address of the node; empty for all.
    #[serde(rename = "HostIP", default, deserialize_with = "or_default")]
    pub host_ip: String,
    /// First port of the node; 0 for any.
    #[serde(default)]
    pub host_port: u16,
    /// Last port of the node.
    #[serde(default)]
    pub host_port_end: u16,
}

/// `IpamDriver.RequestPool`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct RequestPool {
    /// Address space.
    #[serde(default, deserialize_with = "or_default")]
    pub address_space: String,
    /// Prefix; empty for any.
    #[serde(default, deserialize_with = "or_default")]
    pub pool: String,
    /// Prefix from which addresses are chosen; empty for the whole pool.
    #[serde(default, deserialize_with = "or_default")]
    pub sub_pool: String,
    /// Options that the user has set with `--ipam-opt`.
    #[serde(default, deserialize_with = "or_default")]
    pub options: BTreeMap<String, String>,
    /// Whether the pool is of IPv6.
    #[serde(default)]
    pub v6: bool,
}

/// `IpamDriver.ReleasePool`.
#[derive(Clone, Debug, Deserialize)]
pub struct ReleasePool {
    /// ID of the pool.
    #[serde(rename = "PoolID")]
    pub pool: String,
}

/// `IpamDriver.RequestAddress` and `IpamDriver.ReleaseAddress`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct OfAddress {
    /// ID of the pool.
    #[serde(rename = "PoolID")]
    pub pool: String,
    /// Address; empty for any.
    #[serde(default, deserialize_with = "or_default")]
    pub address: String,
    /// Options of dockerd.
    #[serde(default, deserialize_with = "or_default")]
    pub options: BTreeMap<String, String>,
}

impl OfAddress {
    /// Returns whether the address is to be a gateway.
    pub fn is_gateway(&self) -> bool {
        let kind = self.options.get("RequestAddressType");
        kind.is_some_and(|kind| kind == "com.docker.network.gateway")
    }
}
