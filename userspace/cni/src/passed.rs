//! A result that goes through a plugin: what those before it made, in whatever version, with all that nobody here knows.
//!
//! It is read into the shape of 1.1.0 and written in the shape that is asked for. Keys that are not the protocol's stay
//! as they are, and so do entries in all lists, in their order, because addresses refer to interfaces by place
//! (behaviour S9).

use std::net::IpAddr;

use model::{IfName, InterfaceAddress, Mac};
use serde_json::{Map, Value, json};

use crate::{Dns, Error, Version, json as text};

/// The result of the plugins before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedResult(Map<String, Value>);

/// An address in a result, and the interface that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedAddress {
    /// The address with the length of its subnet.
    pub address: InterfaceAddress,
    /// The gateway.
    pub gateway: Option<IpAddr>,
    /// Place of the interface among the interfaces.
    pub interface: Option<usize>,
}

/// An interface in a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedInterface {
    /// Name.
    pub name: String,
    /// The namespace that it is in; empty for the host's.
    pub sandbox: String,
}

/// The keys that the protocol has, as it spells them.
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
/// What only 1.1.0 knows of an interface and of a route.
const NEW_OF_INTERFACES: [&str; 3] = ["mtu", "socketPath", "pciID"];
const NEW_OF_ROUTES: [&str; 5] = ["mtu", "advmss", "priority", "table", "scope"];

impl PassedResult {
    /// The `prevResult` of a configuration, if it has one. `version` is the configuration's, which holds where the
    /// result does not say its own.
    pub fn of(config: &str, version: Version) -> Result<Option<Self>, Error> {
        let config: Value = serde_json::from_str(config)
            .map_err(|error| Error::decode(format!("network configuration: {error}")))?;
        let Some(found) = member(&config, "prevResult") else {
            return Ok(None);
        };
        let Value::Object(map) = spelled(found.clone()) else {
            return Ok(None);
        };
        Self::read(map, version).map(Some)
    }

    /// A result in its own text.
    pub fn parse(result: &str) -> Result<Self, Error> {
        let parsed = serde_json::from_str(result);
        match parsed.map(spelled) {
            Ok(Value::Object(map)) => Self::read(map, Version::V0_1_0),
            Ok(_) => Err(Error::decode("the result is no JSON object")),
            Err(error) => Err(Error::decode(format!("the result is no JSON: {error}"))),
        }
    }

    /// The loopback of a namespace.
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
            raise(&mut map);
        }
        // Go writes a list that it does not have as null.
        map.retain(|_, value| !value.is_null());
        Ok(Self(map))
    }

    /// The JSON for standard output.
    pub fn to_json(&self, version: Version) -> Result<String, Error> {
        let mut map = self.0.clone();
        map.insert("cniVersion".to_owned(), json!(version.as_str()));
        if version < Version::V0_3_0 {
            lower(&mut map)?;
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

    /// The interfaces, in their order.
    pub fn interfaces(&self) -> Vec<PassedInterface> {
        let text = |interface: &Value, key: &str| interface[key].as_str().unwrap_or("").to_owned();
        list(&self.0, "interfaces")
            .iter()
            .map(|interface| PassedInterface {
                name: text(interface, "name"),
                sandbox: text(interface, "sandbox"),
            })
            .collect()
    }

    /// The addresses, in their order.
    pub fn addresses(&self) -> Result<Vec<PassedAddress>, Error> {
        list(&self.0, "ips").iter().map(address).collect()
    }

    /// The addresses of an interface of the pod: those that refer to it, and those that refer to none (behaviour R13).
    pub fn addresses_of(&self, ifname: &IfName) -> Result<Vec<PassedAddress>, Error> {
        let interfaces = self.interfaces();
        let is_of = |address: &PassedAddress| {
            let Some(place) = address.interface else {
                return true;
            };
            let found = interfaces.get(place);
            found.is_some_and(|it| it.name == ifname.as_str() && !it.sandbox.is_empty())
        };
        Ok(self.addresses()?.into_iter().filter(is_of).collect())
    }

    /// Says of an interface of the pod what has become of it.
    pub fn change(&mut self, ifname: &IfName, mac: Option<Mac>, mtu: Option<u32>) {
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

    /// What this result and then `earlier` tell: its interfaces and addresses come behind. The loopback does not, as with
    /// the bridge plugin: Nomad takes the first interface of the pod that has an address (behaviour C11).
    #[must_use]
    pub fn before(mut self, earlier: &Self) -> Self {
        let own = list(&self.0, "interfaces").len();
        let interfaces = earlier.interfaces();
        let is_kept = |place: usize| interfaces.get(place).is_some_and(|it| it.name != "lo");
        let mut places = Vec::new();
        for (place, interface) in list(&earlier.0, "interfaces").iter().enumerate() {
            places.push(own + places_kept(&places));
            if is_kept(place) {
                push(&mut self.0, "interfaces", interface.clone());
            } else if let Some(last) = places.last_mut() {
                *last = usize::MAX;
            }
        }
        for ip in list(&earlier.0, "ips") {
            let mut ip = ip.clone();
            let place = ip["interface"]
                .as_u64()
                .and_then(|at| usize::try_from(at).ok());
            match place.map(|place| places.get(place).copied()) {
                Some(None | Some(usize::MAX)) => continue,
                Some(Some(place)) => ip["interface"] = json!(place),
                None => {}
            }
            push(&mut self.0, "ips", ip);
        }
        for route in list(&earlier.0, "routes") {
            if !list(&self.0, "routes").contains(route) {
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

fn places_kept(places: &[usize]) -> usize {
    places.iter().filter(|place| **place != usize::MAX).count()
}

fn address(ip: &Value) -> Result<PassedAddress, Error> {
    let text = ip["address"].as_str().unwrap_or_default();
    let address = text
        .parse()
        .map_err(|error| Error::invalid_config(format!("prevResult.ips: {text:?}: {error}")))?;
    let interface = ip["interface"].as_u64();
    Ok(PassedAddress {
        address,
        gateway: ip["gateway"].as_str().and_then(|text| text.parse().ok()),
        interface: interface.and_then(|place| usize::try_from(place).ok()),
    })
}

/// The member of an object, by a key of any case.
fn member<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    let map = value.as_object()?;
    let exact = map.get(key);
    exact.or_else(|| {
        let mut members = map.iter();
        let found = members.find(|(name, _)| name.eq_ignore_ascii_case(key));
        found.map(|(_, value)| value)
    })
}

/// The same with the protocol's keys as it spells them (behaviour B0.1).
fn spelled(value: Value) -> Value {
    match value {
        Value::Array(list) => Value::Array(list.into_iter().map(spelled).collect()),
        Value::Object(map) => {
            let members = map.into_iter().map(|(name, value)| {
                let known = KEYS.iter().find(|key| key.eq_ignore_ascii_case(&name));
                (known.map_or(name, |key| (*key).to_owned()), spelled(value))
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

/// From 0.1.0 and 0.2.0: one address of each family, each with its routes.
fn raise(map: &mut Map<String, Value>) {
    for key in ["ip4", "ip6"] {
        // Anything but an object says nothing.
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

/// To 0.1.0 and 0.2.0.
fn lower(map: &mut Map<String, Value>) -> Result<(), Error> {
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
            "a result without an address cannot be told in a version older than 0.3.0",
        ));
    }
    map.entry("dns").or_insert_with(|| json!({}));
    Ok(())
}

#[cfg(test)]
mod tests;
