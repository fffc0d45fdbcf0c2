//! `setup` and `teardown`: the CNI request that a call becomes, and the status block.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::{Error, Version};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::input::{self, Input, Network, PortMapping, Route, Subnet};
use crate::options::Options;

/// Kubernetes namespace under which podman's containers are listed.
const NAMESPACE: &str = "podman";

/// Value of `CNI_PATH`, which the protocol requires: no plugin is executed.
pub(crate) const NO_PLUGINS: &str = "/nonexistent";

/// The ADD of a setup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// `CNI_ARGS`: the container's name.
    pub args: String,
    /// The network configuration.
    pub config: String,
    is_internal: bool,
}

impl Setup {
    /// `CNI_PATH` of the requests.
    pub const PATH: &str = NO_PLUGINS;

    /// Parses the standard input of `setup`.
    pub fn read(text: &str) -> Result<Self, Error> {
        let input: Input = input::parse("container", text)?;
        let container = &input.network_options;
        if let Some((name, value)) = container.options.first_key_value() {
            return Err(
                Error::unsupported_field(&format!("container option {name}"), value)
                    .with_details("Viaduct has no options of single containers"),
            );
        }
        let ports = port_mappings(&input.port_mappings)?;
        let runtime = json!({
            "ips": container.static_ips,
            "mac": container.static_mac,
            "portMappings": ports,
        });
        let options = Options::read(&input.network.options)?;
        // podman may have allocated an address outside of the range: the subnet is its limit.
        let is_allocated_here = container.static_ips.is_empty();
        let config = config(&input.network, &options, &runtime, is_allocated_here)?;
        Ok(Self {
            args: args(&input.container_name),
            config: config.to_string(),
            is_internal: input.network.internal,
        })
    }

    /// Returns the status block for the result of the ADD.
    pub fn status(&self, result: &str) -> Result<String, Error> {
        let result: CniResult = input::parse("result of the ADD", result)?;
        let (index, interface) = result
            .interfaces
            .iter()
            .enumerate()
            .rfind(|(_, interface)| !interface.sandbox.is_empty())
            .ok_or_else(|| Error::internal("the result of the ADD has no container interface"))?;
        let own = result.ips.iter().filter(|ip| ip.interface == Some(index));
        let subnets = own.map(|ip| NetAddress {
            gateway: ip.gateway.filter(|_| !self.is_internal),
            ipnet: &ip.address,
        });
        let status = StatusBlock {
            dns_search_domains: [],
            dns_server_ips: [],
            interfaces: BTreeMap::from([(
                interface.name.as_str(),
                NetInterface {
                    mac_address: &interface.mac,
                    subnets: subnets.collect(),
                },
            )]),
        };
        serde_json::to_string(&status).map_err(|error| Error::internal(error.to_string()))
    }
}

/// Returns the configuration of the DEL of a teardown. Only the network's name must be valid: a
/// teardown succeeds whatever the network's options are.
pub fn teardown(text: &str) -> Result<String, Error> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    #[derive(Deserialize)]
    struct Torn {
        network: Named,
    }
    let torn: Torn = input::parse("container", text)?;
    let config = json!({
        "cniVersion": Version::NEWEST.as_str(),
        "name": torn.network.name,
        "type": "viaduct",
        "ipam": { "type": "host-local" },
    });
    Ok(config.to_string())
}

/// Returns the CNI configuration of a network, with the settings of one container. Lease ranges are
/// part of it if addresses `is_allocated_here`.
pub(crate) fn config(
    network: &Network,
    options: &Options,
    runtime: &Value,
    is_allocated_here: bool,
) -> Result<Value, Error> {
    let ranges = network.subnets.iter().map(|subnet| {
        let range = range(subnet, is_allocated_here)?;
        Ok(json!([range]))
    });
    let ranges: Vec<Value> = ranges.collect::<Result<_, Error>>()?;
    let policy = if options.isolate {
        "same-bridge"
    } else {
        "open"
    };
    Ok(json!({
        "cniVersion": Version::NEWEST.as_str(),
        "name": network.name,
        "type": "viaduct",
        "bridge": network.network_interface,
        "isGateway": true,
        "ipMasq": !network.internal,
        "hairpinMode": true,
        "internal": network.internal,
        "ingressPolicy": policy,
        "mtu": options.mtu,
        "egressAddresses": options.outbound,
        "ipam": { "type": "host-local", "ranges": ranges, "routes": routes(network, options)? },
        "runtimeConfig": runtime,
    }))
}

fn range(subnet: &Subnet, is_allocated_here: bool) -> Result<Value, Error> {
    let mut range = json!({ "subnet": subnet.prefix()?.to_string(), "gateway": subnet.gateway });
    if let Some(lease) = subnet.lease_range.as_ref().filter(|_| is_allocated_here) {
        range["rangeStart"] = json!(lease.start_ip);
        range["rangeEnd"] = json!(lease.end_ip);
    }
    Ok(range)
}

/// Returns the network's own routes, then default routes of the families that it has.
fn routes(network: &Network, options: &Options) -> Result<Vec<Value>, Error> {
    let own = network.routes.iter().map(|own| route(own, options.metric));
    let mut routes: Vec<Value> = own.collect::<Result<_, _>>()?;
    if network.internal || options.no_default_route {
        return Ok(routes);
    }
    for (is_ipv4, any) in [(true, "0.0.0.0/0"), (false, "::/0")] {
        let mut subnets = network.subnets.iter().map(Subnet::prefix);
        if subnets.any(|prefix| prefix.is_ok_and(|prefix| prefix.is_ipv4() == is_ipv4)) {
            routes.push(json!({ "dst": any, "priority": options.metric }));
        }
    }
    Ok(routes)
}

fn route(route: &Route, metric: u32) -> Result<Value, Error> {
    if let Some(kind) = route
        .route_type
        .as_deref()
        .filter(|kind| *kind != "unicast")
    {
        return Err(Error::unsupported_field(
            &format!("route_type of {}", route.destination),
            kind,
        )
        .with_details("routes of containers lead to a gateway"));
    }
    let Some(gateway) = route.gateway else {
        return Err(Error::invalid_config(format!(
            "the route to {} has no gateway",
            route.destination
        )));
    };
    Ok(json!({
        "dst": route.destination,
        "gw": gateway,
        "priority": route.metric.unwrap_or(metric),
    }))
}

/// Returns the mappings of single ports.
fn port_mappings(mappings: &[PortMapping]) -> Result<Vec<Value>, Error> {
    let mut ports = Vec::new();
    for mapping in mappings {
        let count = mapping.range.max(1);
        let last = |first: u16| first.checked_add(count - 1);
        if last(mapping.host_port).is_none() || last(mapping.container_port).is_none() {
            return Err(Error::invalid_config(format!(
                "port mapping {}->{}: a range of {count} ports ends above 65535",
                mapping.host_port, mapping.container_port
            )));
        }
        let protocols = if mapping.protocol.is_empty() {
            "tcp"
        } else {
            &mapping.protocol
        };
        for protocol in protocols.split(',').map(str::trim) {
            ports.extend((0..count).map(|offset| {
                json!({
                    "hostPort": mapping.host_port + offset,
                    "containerPort": mapping.container_port + offset,
                    "protocol": protocol,
                    "hostIP": mapping.host_ip,
                })
            }));
        }
    }
    Ok(ports)
}

/// Returns `CNI_ARGS` with the container's name, if it can be one of their values.
fn args(name: &str) -> String {
    if name.is_empty() || name.contains(';') {
        return String::new();
    }
    format!("K8S_POD_NAMESPACE={NAMESPACE};K8S_POD_NAME={name}")
}

/// The parts of a CNI result that the status block repeats.
#[derive(Deserialize)]
struct CniResult {
    interfaces: Vec<CniInterface>,
    ips: Vec<CniAddress>,
}

#[derive(Deserialize)]
struct CniInterface {
    name: String,
    #[serde(default)]
    mac: String,
    #[serde(default)]
    sandbox: String,
}

#[derive(Deserialize)]
struct CniAddress {
    address: String,
    gateway: Option<IpAddr>,
    interface: Option<usize>,
}

#[derive(Serialize)]
struct StatusBlock<'a> {
    dns_search_domains: [&'a str; 0],
    dns_server_ips: [IpAddr; 0],
    interfaces: BTreeMap<&'a str, NetInterface<'a>>,
}

#[derive(Serialize)]
struct NetInterface<'a> {
    mac_address: &'a str,
    subnets: Vec<NetAddress<'a>>,
}

#[derive(Serialize)]
struct NetAddress<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    ipnet: &'a str,
}

#[cfg(test)]
mod tests;
