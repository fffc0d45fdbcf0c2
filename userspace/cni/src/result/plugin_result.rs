//! Results of other plugins, in every version of the protocol: `prevResult`, IPAM results, results
//! of delegates.
//!
//! A result is parsed into the shape of version 1.1.0 and printed in the shape of the requested
//! version. Keys that the protocol does not define are kept, and so is the order of all lists,
//! because addresses refer to interfaces by index (behaviour S9).

use std::collections::BTreeSet;
use std::net::IpAddr;

use model::{IfName, InterfaceAddress, Mac};
use serde_json::{Map, Value, json};

use crate::{Dns, Error, Version, json as text};

/// A result of a plugin, as a JSON object in the shape of version 1.1.0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginResult(Map<String, Value>);

/// One entry of `ips`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultAddress {
    /// The address with the prefix length of its subnet.
    pub address: InterfaceAddress,
    /// The gateway, if the entry names one.
    pub gateway: Option<IpAddr>,
    /// Index in `interfaces`; `None` where the entry refers to no interface.
    pub interface: Option<usize>,
}

/// One entry of `interfaces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultInterface {
    /// The interface's name, in its own namespace.
    pub name: String,
    /// Path of the network namespace; empty for the host's.
    pub sandbox: String,
}

/// The keys of the protocol, in the specification's spelling.
const KEYS: [&str; 27] = [
    "cniVersion",
    "interfaces",
    "ips",
    "routes",
    "dns",
    "ip4",
    "ip6",
    "name",
    "mac",
    "mtu",
    "sandbox",
    "socketPath",
    "pciID",
    "version",
    "interface",
    "address",
    "gateway",
    "ip",
    "dst",
    "gw",
    "advmss",
    "priority",
    "table",
    "scope",
    "nameservers",
    "search",
    "options",
];
/// Keys of interfaces and of routes that version 1.1.0 added.
const NEW_OF_INTERFACES: [&str; 3] = ["mtu", "socketPath", "pciID"];
const NEW_OF_ROUTES: [&str; 5] = ["mtu", "advmss", "priority", "table", "scope"];

impl PluginResult {
    /// Parses the `prevResult` of a configuration; `None` if it has none. `version` is the
    /// configuration's and applies where the result has no `cniVersion` of its own.
    pub fn from_config(config: &str, version: Version) -> Result<Option<Self>, Error> {
        let config: Value = serde_json::from_str(config)
            .map_err(|error| Error::decode(format!("network configuration: {error}")))?;
        let Some(found) = member(&config, "prevResult") else {
            return Ok(None);
        };
        let Value::Object(map) = with_canonical_keys(found.clone()) else {
            return Ok(None);
        };
        Self::read(map, version).map(Some)
    }

    /// Parses a result that is a JSON document of its own. Without `cniVersion` it is version
    /// 0.1.0.
    pub fn parse(result: &str) -> Result<Self, Error> {
        let parsed = serde_json::from_str(result);
        match parsed.map(with_canonical_keys) {
            Ok(Value::Object(map)) => Self::read(map, Version::V0_1_0),
            Ok(_) => Err(Error::decode("the result is not a JSON object")),
            Err(error) => Err(Error::decode(format!(
                "the result is not valid JSON: {error}"
            ))),
        }
    }

    /// Returns the result of the loopback plugin: interface `lo` in `sandbox`, with `addresses`.
    pub fn of_loopback(sandbox: &str, addresses: &[InterfaceAddress]) -> Self {
        let ip = |own: &InterfaceAddress| json!({ "interface": 0, "address": own.to_string() });
        let ips: Vec<Value> = addresses.iter().map(ip).collect();
        let lo = json!({ "name": "lo", "mac": Mac([0; 6]).to_string(), "sandbox": sandbox });
        let mut map = Map::new();
        map.insert("interfaces".to_owned(), json!([lo]));
        map.insert("ips".to_owned(), Value::Array(ips));
        Self(map)
    }

    pub(crate) fn of_parts(ips: Vec<Value>, routes: Vec<Value>, dns: &Dns) -> Self {
        let mut map = Map::new();
        map.insert("ips".to_owned(), Value::Array(ips));
        if !routes.is_empty() {
            map.insert("routes".to_owned(), Value::Array(routes));
        }
        if *dns != Dns::default() {
            map.insert("dns".to_owned(), dns.to_value());
        }
        Self(map)
    }

    fn read(mut map: Map<String, Value>, version: Version) -> Result<Self, Error> {
        let own = map.get("cniVersion").and_then(Value::as_str);
        let version = own.map_or(Ok(version), str::parse)?;
        if version < Version::V0_3_0 {
            upgrade_legacy(&mut map);
        }
        // Go writes a list that it does not have as null.
        map.retain(|_, value| !value.is_null());
        Ok(Self(map))
    }

    /// Prints the JSON for standard output in the shape of `version`. Fails for versions before
    /// 0.3.0 if the result has no address.
    pub fn to_json(&self, version: Version) -> Result<String, Error> {
        let mut map = self.0.clone();
        map.insert("cniVersion".to_owned(), json!(version.as_str()));
        if version < Version::V0_3_0 {
            downgrade_to_legacy(&mut map)?;
        } else {
            self.shape(&mut map, version);
        }
        Ok(text::print(&map))
    }

    fn shape(&self, map: &mut Map<String, Value>, version: Version) {
        for ip in objects(map, "ips") {
            ip.remove("version");
            if version < Version::V1_0_0 {
                let family = if is_ipv4(ip, "address") { "4" } else { "6" };
                ip.insert("version".to_owned(), json!(family));
            }
        }
        if version < Version::V1_1_0 {
            for (list, keys) in [
                ("interfaces", &NEW_OF_INTERFACES[..]),
                ("routes", &NEW_OF_ROUTES),
            ] {
                for object in objects(map, list) {
                    object.retain(|key, _| !keys.contains(&key.as_str()));
                }
            }
        }
        let has_dns = (self.0.get("dns")).is_some_and(|dns| dns != &json!({}));
        if version < Version::V1_0_0 {
            map.entry("dns").or_insert_with(|| json!({}));
        } else if !has_dns {
            map.remove("dns");
        }
    }

    /// Returns the interfaces, in the result's order.
    pub fn interfaces(&self) -> Vec<ResultInterface> {
        let text = |interface: &Value, key: &str| interface[key].as_str().unwrap_or("").to_owned();
        list(&self.0, "interfaces")
            .iter()
            .map(|interface| ResultInterface {
                name: text(interface, "name"),
                sandbox: text(interface, "sandbox"),
            })
            .collect()
    }

    /// Returns the addresses, in the result's order. Fails if one is not in CIDR notation.
    pub fn addresses(&self) -> Result<Vec<ResultAddress>, Error> {
        list(&self.0, "ips").iter().map(address).collect()
    }

    /// Returns the addresses of a pod's interface: those that refer to it by index, and those that
    /// refer to no interface of the result (behaviour R13).
    pub fn addresses_of(&self, ifname: &IfName) -> Result<Vec<ResultAddress>, Error> {
        let interfaces = self.interfaces();
        let is_of = |address: &ResultAddress| {
            let Some(place) = address.interface else {
                return true;
            };
            let found = interfaces.get(place);
            found.is_none_or(|it| it.name == ifname.as_str() && !it.sandbox.is_empty())
        };
        Ok(self.addresses()?.into_iter().filter(is_of).collect())
    }

    /// Replaces MAC address and MTU of the pod's interface `ifname`; `None` leaves the value as it
    /// is.
    pub fn update_interface(&mut self, ifname: &IfName, mac: Option<Mac>, mtu: Option<u32>) {
        for interface in objects(&mut self.0, "interfaces") {
            let in_pod = interface.get("sandbox").and_then(Value::as_str);
            let same = interface.get("name").and_then(Value::as_str) == Some(ifname.as_str());
            if !same || in_pod.unwrap_or("").is_empty() {
                continue;
            }
            if let Some(mac) = mac {
                interface.insert("mac".to_owned(), json!(mac.to_string()));
            }
            if let Some(mtu) = mtu {
                interface.insert("mtu".to_owned(), json!(mtu));
            }
        }
    }

    /// Appends the interfaces, addresses and routes of `earlier` to this result.
    ///
    /// The loopback interface is left out, as with the bridge plugin: Nomad takes the first
    /// interface of the pod that has an address (behaviour C11).
    #[must_use]
    pub fn with_earlier(mut self, earlier: &Self) -> Self {
        let mut next = list(&self.0, "interfaces").len();
        // The new index of each earlier interface; `None` for the loopback interface.
        let mut places = Vec::new();
        for interface in list(&earlier.0, "interfaces") {
            if interface["name"] == "lo" {
                places.push(None);
            } else {
                places.push(Some(next));
                next += 1;
                push(&mut self.0, "interfaces", interface.clone());
            }
        }
        for ip in list(&earlier.0, "ips") {
            let mut ip = ip.clone();
            let place = ip["interface"]
                .as_u64()
                .and_then(|at| usize::try_from(at).ok());
            match place.map(|place| places.get(place).copied().flatten()) {
                Some(None) => continue,
                Some(Some(place)) => ip["interface"] = json!(place),
                None => {}
            }
            push(&mut self.0, "ips", ip);
        }
        // A set of texts: a list of routes may be as long as a request.
        let own = list(&self.0, "routes").iter();
        let mut routes: BTreeSet<String> = own.map(Value::to_string).collect();
        for route in list(&earlier.0, "routes") {
            if routes.insert(route.to_string()) {
                push(&mut self.0, "routes", route.clone());
            }
        }
        for (key, value) in &earlier.0 {
            if !KEYS.contains(&key.as_str()) {
                self.0.entry(key).or_insert_with(|| value.clone());
            }
        }
        self
    }
}

fn address(ip: &Value) -> Result<ResultAddress, Error> {
    let text = ip["address"].as_str().unwrap_or_default();
    let address = text
        .parse()
        .map_err(|error| Error::invalid_config(format!("prevResult.ips: {text:?}: {error}")))?;
    let interface = ip["interface"].as_u64();
    Ok(ResultAddress {
        address,
        gateway: ip["gateway"].as_str().and_then(|text| text.parse().ok()),
        interface: interface.and_then(|place| usize::try_from(place).ok()),
    })
}

/// Returns the member of an object; the key's case does not matter.
fn member<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    let map = value.as_object()?;
    let exact = map.get(key);
    exact.or_else(|| {
        let mut members = map.iter();
        let found = members.find(|(name, _)| name.eq_ignore_ascii_case(key));
        found.map(|(_, value)| value)
    })
}

/// Returns the value with the protocol's keys in the specification's spelling (behaviour B0.1).
fn with_canonical_keys(value: Value) -> Value {
    match value {
        Value::Array(list) => Value::Array(list.into_iter().map(with_canonical_keys).collect()),
        Value::Object(map) => {
            let members = map.into_iter().map(|(name, value)| {
                let known = KEYS.iter().find(|key| key.eq_ignore_ascii_case(&name));
                (
                    known.map_or(name, |key| (*key).to_owned()),
                    with_canonical_keys(value),
                )
            });
            Value::Object(members.collect())
        }
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => plain,
    }
}

fn list<'a>(map: &'a Map<String, Value>, key: &str) -> &'a [Value] {
    map.get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn objects<'a>(
    map: &'a mut Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let list = map.get_mut(key).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn push(map: &mut Map<String, Value>, key: &str, value: Value) {
    let list = map.entry(key).or_insert_with(|| json!([]));
    if let Some(list) = list.as_array_mut() {
        list.push(value);
    }
}

fn is_ipv4(object: &Map<String, Value>, key: &str) -> bool {
    let text = object.get(key).and_then(Value::as_str);
    !text.unwrap_or_default().contains(':')
}

/// Converts a result of version 0.1.0 or 0.2.0 (one address per family, each with its routes) to
/// the shape of later versions.
fn upgrade_legacy(map: &mut Map<String, Value>) {
    for key in ["ip4", "ip6"] {
        // A value that is not an object is ignored.
        let Some(mut of_family) = map.remove(key).filter(Value::is_object) else {
            continue;
        };
        let routes = of_family["routes"].take();
        for route in routes.as_array().into_iter().flatten() {
            push(map, "routes", route.clone());
        }
        let mut ip = json!({ "address": of_family["ip"] });
        if of_family["gateway"].is_string() {
            ip["gateway"] = of_family["gateway"].take();
        }
        if ip["address"].is_string() {
            push(map, "ips", ip);
        }
    }
}

/// Converts to the shape of 0.1.0 and 0.2.0. Fails without an address, which these versions
/// require.
fn downgrade_to_legacy(map: &mut Map<String, Value>) -> Result<(), Error> {
    let ips = map.remove("ips").unwrap_or_default();
    let routes = map.remove("routes").unwrap_or_default();
    map.remove("interfaces");
    for (key, ipv4) in [("ip4", true), ("ip6", false)] {
        let mut members = ips
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_object);
        let has_address =
            |ip: &&Map<String, Value>| ip.get("address").is_some_and(Value::is_string);
        let of_family = |ip: &&Map<String, Value>| is_ipv4(ip, "address") == ipv4;
        let Some(ip) = members.find(|ip| has_address(ip) && of_family(ip)) else {
            continue;
        };
        let plain: Vec<Value> = routes
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_object)
            .filter(|route| is_ipv4(route, "dst") == ipv4)
            .map(|route| {
                let mut route = route.clone();
                route.retain(|key, _| !NEW_OF_ROUTES.contains(&key.as_str()));
                Value::Object(route)
            })
            .collect();
        let mut old = json!({ "ip": ip["address"] });
        if let Some(gateway) = ip.get("gateway") {
            old["gateway"] = gateway.clone();
        }
        if !plain.is_empty() {
            old["routes"] = Value::Array(plain);
        }
        map.insert(key.to_owned(), old);
    }
    if !map.contains_key("ip4") && !map.contains_key("ip6") {
        return Err(Error::incompatible_version(
            "a result without an address cannot be expressed in a version older than 0.3.0",
        ));
    }
    map.entry("dns").or_insert_with(|| json!({}));
    Ok(())
}

#[cfg(test)]
mod tests;
