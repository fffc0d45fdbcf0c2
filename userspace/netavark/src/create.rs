//! `create`: completes and validates the JSON of a new network.

use cni::{Command, Environment, Error, Plugin, Request};

use model::{Cidr, Range, RangeSet};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

use crate::input::{self, Network, Subnet};
use crate::options::Options;
use crate::setup::{NO_PLUGINS, config};
use crate::subnet::{free_ipv4, free_ipv6};

/// The driver of podman's address management that allocates from subnets.
const HOST_LOCAL: &str = "host-local";

/// Completes a network: bridge name, subnets, gateways, and podman's own address management. All
/// other keys stay. Fails if a setup with this network would fail whatever the container.
///
/// `used` are prefixes that a chosen subnet does not overlap with; `default` is the agent's default
/// network.
pub fn complete(
    text: &str,
    used: &[Cidr],
    default: Option<&model::Network>,
) -> Result<String, Error> {
    let mut network: Network = input::parse("network", text)?;
    let mut json: Map<String, Value> = input::parse("network", text)?;
    check_ipam(&network)?;
    if !network.network_dns_servers.is_empty() {
        return Err(Error::unsupported_field(
            "network_dns_servers",
            &network.network_dns_servers.join(","),
        )
        .with_details("aardvark-dns serves no networks of plugins; use podman run --dns"));
    }
    let id = id_bytes(&network.id)?;
    if network.network_interface.is_empty() {
        network.network_interface = id.iter().fold("vd".to_owned(), |mut name, byte| {
            let _always_fits = write!(name, "{byte:02x}");
            name
        });
    }
    add_subnets(&mut network, id, used)?;
    add_gateways(&mut network)?;
    validate(&network, default)?;

    json.insert(
        "network_interface".to_owned(),
        json!(network.network_interface),
    );
    json.insert("subnets".to_owned(), subnets_json(&network.subnets));
    json.insert("ipv6_enabled".to_owned(), json!(network.ipv6_enabled));
    // netavark starts aardvark-dns for its own drivers only.
    json.insert("dns_enabled".to_owned(), json!(false));
    network
        .ipam_options
        .insert("driver".to_owned(), HOST_LOCAL.to_owned());
    json.insert("ipam_options".to_owned(), json!(network.ipam_options));
    Ok(Value::Object(json).to_string())
}

/// Fails if podman does not allocate the addresses from subnets.
fn check_ipam(network: &Network) -> Result<(), Error> {
    for (name, value) in &network.ipam_options {
        let is_known = name == "driver" && matches!(value.as_str(), "" | HOST_LOCAL);
        if !is_known {
            return Err(
                Error::unsupported_field(&format!("ipam option {name}"), value)
                    .with_details("addresses are allocated from subnets: --ipam-driver host-local"),
            );
        }
    }
    Ok(())
}

/// Returns the first bytes of the network's ID, 64 hexadecimal digits.
fn id_bytes(id: &str) -> Result<[u8; 5], Error> {
    let invalid = || Error::invalid_config(format!("id {id:?} has no ten hexadecimal digits"));
    let mut bytes = [0; 5];
    for (at, byte) in bytes.iter_mut().enumerate() {
        let digits = id.get(2 * at..2 * at + 2).ok_or_else(invalid)?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| invalid())?;
    }
    Ok(bytes)
}

/// Adds a subnet where there is none, and one of each missing family where IPv6 is requested.
fn add_subnets(network: &mut Network, id: [u8; 5], used: &[Cidr]) -> Result<(), Error> {
    let own: Vec<Cidr> = network
        .subnets
        .iter()
        .map(Subnet::prefix)
        .collect::<Result<_, _>>()?;
    let has_ipv4 = own.iter().any(Cidr::is_ipv4);
    let has_ipv6 = own.iter().any(|prefix| !prefix.is_ipv4());
    if own.is_empty() || network.ipv6_enabled && !has_ipv4 {
        network.subnets.push(Subnet::of(free_ipv4(id, used)?));
    }
    if network.ipv6_enabled && !has_ipv6 {
        network.subnets.push(Subnet::of(free_ipv6(id, used)?));
    }
    network.ipv6_enabled |= has_ipv6;
    Ok(())
}

/// Sets missing gateways to the first address of the subnet, so that podman allocates others. An
/// internal network has them too: the node reaches its containers from there.
fn add_gateways(network: &mut Network) -> Result<(), Error> {
    for subnet in &mut network.subnets {
        let first = Range::default_gateway(subnet.prefix()?);
        subnet.gateway.get_or_insert(first);
    }
    Ok(())
}

/// Fails if no container can join the network.
fn validate(network: &Network, default: Option<&model::Network>) -> Result<(), Error> {
    let config = config(network, &Options::read(&network.options)?, &json!({}), true)?;
    let environment = Environment {
        command: Command::Add,
        container_id: "create".to_owned(),
        netns: "/proc/self/ns/net".to_owned(),
        ifname: "eth0".to_owned(),
        args: String::new(),
        path: NO_PLUGINS.to_owned(),
    };
    let request = Request::read(Plugin::Viaduct, &environment, &config.to_string())?;
    let Request::Add(request) = request else {
        return Err(Error::internal("an ADD is no other request"));
    };
    let intent = cni::intent(&request, default)?;
    let mut ranges = intent.network.ranges.iter().flat_map(RangeSet::ranges);
    ranges.try_for_each(|range| {
        let inner = range.with_inner_gateway().map(drop);
        inner.map_err(|error| Error::invalid_config(error.to_string()))
    })
}

fn subnets_json(subnets: &[Subnet]) -> Value {
    let subnet = |subnet: &Subnet| {
        let mut json = json!({ "subnet": subnet.subnet, "gateway": subnet.gateway });
        if let Some(range) = &subnet.lease_range {
            json["lease_range"] = json!({ "start_ip": range.start_ip, "end_ip": range.end_ip });
        }
        json
    };
    subnets.iter().map(subnet).collect()
}

#[cfg(test)]
mod tests;
