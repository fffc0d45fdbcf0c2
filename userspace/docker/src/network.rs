//! A network as dockerd created it, and the network of the agent that it becomes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::{
    BridgeOptions, Cidr, HairpinMode, IfName, IngressPolicy, InterfaceAddress, LimitPolicy,
    Network, NetworkAccess, NetworkName, PortOptions, Range, RangeSet, Rates,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Refused;
use crate::options::{GatewayMode, GatewayModes, Options, default_binding};
use crate::protocol::{self, CreateNetwork, GENERIC, Id, IpamData};

/// Keys of dockerd beside [`GENERIC`]: which family the network has, and whether it is internal.
const INTERNAL: &str = "com.docker.network.internal";
const ENABLE_V4: &str = "com.docker.network.enable_ipv4";
const ENABLE_V6: &str = "com.docker.network.enable_ipv6";
/// Beginning of the names of Docker's options: unknown ones are refused.
const DOCKER: &str = "com.docker.network.";

/// A network as dockerd created it. It is stored in this form, and translated when it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSpec {
    /// ID of the network.
    pub id: Id,
    /// Options that the user has set.
    options: BTreeMap<String, String>,
    /// Whether the network has no way to the outside.
    internal: bool,
    /// Pools of both families.
    pools: Vec<PoolSpec>,
}

/// A pool of a network: its prefix, and the gateway with the prefix length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PoolSpec {
    prefix: String,
    gateway: Option<String>,
}

impl NetworkSpec {
    /// Reads a request, and refuses what the network could not have.
    pub fn read(request: &CreateNetwork) -> Result<Self, Refused> {
        let (options, internal) = user_options(&request.options)?;
        let spec = Self {
            id: request.network.clone(),
            options,
            internal,
            pools: request.ipv4.iter().chain(&request.ipv6).map(pool).collect(),
        };
        spec.network()?;
        Ok(spec)
    }

    /// Returns the name of a network in the agent: `docker-` and the first digits of its ID.
    #[expect(
        clippy::missing_panics_doc,
        reason = "the digits of an ID make a valid name"
    )]
    pub fn name(id: &Id) -> NetworkName {
        let name = format!("docker-{}", id.short()).parse();
        name.expect("hexadecimal digits behind a word are a network's name")
    }

    /// Returns the prefixes of the pools.
    pub fn prefixes(&self) -> impl Iterator<Item = &str> {
        self.pools.iter().map(|pool| pool.prefix.as_str())
    }

    /// Returns whether dockerd adds no other way to the outside.
    pub fn is_internal(&self) -> bool {
        self.internal
    }

    /// Returns the beginning of the names of interfaces in containers.
    pub fn interface_prefix(&self) -> Result<String, Refused> {
        Ok(Options::read(&self.options)?.prefix)
    }

    /// Returns the address of published ports that are bound without one.
    pub fn default_binding(&self) -> Result<Option<IpAddr>, Refused> {
        Ok(default_binding(&Options::read(&self.options)?))
    }

    /// Returns the network of the agent.
    pub fn network(&self) -> Result<Network, Refused> {
        let options = Options::read(&self.options)?;
        let ranges = self.ranges()?;
        let has = |ipv4| ranges.iter().any(|set| set.is_ipv4() == ipv4);
        let modes = options.gateway_modes(has(true), has(false))?;
        if modes.is_isolated && !self.internal {
            return Err(Refused::new(
                "the gateway mode isolated needs an internal network (--internal)",
            ));
        }
        if !options.masquerade && !options.egress.is_empty() {
            return Err(Refused::new(
                "com.docker.network.host_ipv4 and host_ipv6 need \
                 com.docker.network.bridge.enable_ip_masquerade",
            ));
        }
        Ok(Network {
            name: Self::name(&self.id),
            bridge: options.bridge.clone().unwrap_or_else(|| self.bridge()),
            ranges,
            routes: Vec::new(),
            default_route: false,
            mtu: options.mtu,
            hairpin: HairpinMode::HairpinVeth,
            masquerade: options.masquerade,
            options: BridgeOptions {
                gateway: !modes.is_isolated,
                port: self.port(&options, modes),
                limits: LimitPolicy {
                    default: options.limits,
                    ceiling: Rates::default(),
                },
                egress: options.egress,
                trusted_links: options.trusted_links,
                ..BridgeOptions::default()
            },
        })
    }

    fn port(&self, options: &Options, modes: GatewayModes) -> PortOptions {
        let direct = modes.is_open;
        PortOptions {
            isolated: !options.icc,
            ingress: match (options.icc, direct) {
                (false, _) => IngressPolicy::Isolated,
                // As with Docker's driver, containers of other networks do not reach it.
                (true, true) => IngressPolicy::SameBridge,
                (true, false) => IngressPolicy::Open,
            },
            access: NetworkAccess::new(self.internal, direct),
            routed: modes.routed,
            ..PortOptions::default()
        }
    }

    /// Returns the bridge of a network without a name for it: `vd-` and the first digits of its ID.
    fn bridge(&self) -> IfName {
        let name = format!("vd-{}", self.id.short()).parse();
        name.expect("fifteen bytes are a name of an interface")
    }

    /// Returns one set of ranges for each family.
    fn ranges(&self) -> Result<Vec<RangeSet>, Refused> {
        let pools = self.pools.iter().map(PoolSpec::range);
        let ranges = pools.collect::<Result<Vec<Range>, Refused>>()?;
        let set = |ipv4| {
            let of_family: Vec<Range> = ranges
                .iter()
                .filter(|range| range.subnet().is_ipv4() == ipv4)
                .copied()
                .collect();
            (!of_family.is_empty()).then(|| RangeSet::new(of_family))
        };
        let sets = [set(true), set(false)]
            .into_iter()
            .flatten()
            .collect::<Result<Vec<RangeSet>, _>>()
            .map_err(|error| Refused::new(error.to_string()))?;
        if sets.is_empty() {
            return Err(Refused::new(
                "a network of the driver viaduct needs a subnet",
            ));
        }
        Ok(sets)
    }
}

impl PoolSpec {
    /// Returns all addresses of the pool. Without a gateway, its place is taken by an address that
    /// no container can have: dockerd may give out any other.
    fn range(&self) -> Result<Range, Refused> {
        let refused = |error: &dyn std::fmt::Display| {
            Refused::new(format!("subnet {}: {error}", self.prefix))
        };
        let subnet = Cidr::masked(&self.prefix).map_err(|error| refused(&error))?;
        if subnet.prefix_len() == 0 {
            return Err(refused(&"the driver viaduct needs a subnet"));
        }
        let gateway = match &self.gateway {
            Some(text) => {
                let own: InterfaceAddress = text.parse().map_err(|error| refused(&error))?;
                own.address
            }
            None if subnet.is_ipv4() => subnet.last(),
            None => subnet.network(),
        };
        Range::new(subnet, None, None, Some(gateway))
            .and_then(Range::with_inner_gateway)
            .map_err(|error| refused(&error))
    }
}

fn pool(data: &IpamData) -> PoolSpec {
    PoolSpec {
        prefix: data.pool.clone(),
        gateway: Some(data.gateway.clone()).filter(|gateway| !gateway.is_empty()),
    }
}

/// Returns which families dockerd need not reserve a gateway for, by the options of a network that
/// it is about to create: IPv4 and IPv6.
pub fn without_gateway(options: &protocol::Options) -> Result<[bool; 2], Refused> {
    let (options, _) = user_options(options)?;
    let modes = Options::read(&options)?.modes;
    Ok(modes.map(|mode| mode == Some(GatewayMode::Isolated)))
}

/// Returns the options of the user, and whether the network is internal.
fn user_options(options: &protocol::Options) -> Result<(BTreeMap<String, String>, bool), Refused> {
    let mut user = BTreeMap::new();
    for (name, value) in options {
        match name.as_str() {
            INTERNAL | ENABLE_V4 | ENABLE_V6 => {}
            GENERIC => user.extend(texts(value)?),
            other if other.starts_with(DOCKER) => {
                let why = "the driver viaduct has no such option";
                return Err(Refused::option(name, &text(value), why));
            }
            // dockerd's own, such as hints about Swarm.
            _ => {}
        }
    }
    let internal = options.get(INTERNAL).is_some_and(is_true);
    Ok((user, internal))
}

fn texts(value: &Value) -> Result<BTreeMap<String, String>, Refused> {
    match value {
        Value::Null => Ok(BTreeMap::new()),
        Value::Object(map) => {
            let texts = map.iter().map(|(name, value)| (name.clone(), text(value)));
            Ok(texts.collect())
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(Refused::new(format!("{GENERIC} is no map: {value}")))
        }
    }
}

fn text(value: &Value) -> String {
    if let Value::String(text) = value {
        text.clone()
    } else {
        value.to_string()
    }
}

fn is_true(value: &Value) -> bool {
    text(value) == "true"
}

#[cfg(test)]
mod tests;
