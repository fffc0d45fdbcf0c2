//! Parser of the tuning plugin's settings.
//!
//! Which sysctls the operator allows is checked by the agent, not here.

use std::fmt;

use model::{IfName, InterfaceSettings};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::Error;
use crate::args::Args;
use crate::json::Object;
use crate::runtime::parse_mac;

/// Placeholder for the interface's name in a sysctl key.
const INTERFACE: &str = "IFNAME";

/// Parses the settings of a configuration. Sysctls are parsed from `text`, where their keys keep
/// their case; `config` has all keys in lower case.
pub(crate) fn settings(
    config: &Object<'_>,
    args: &Args,
    text: &str,
    ifname: &IfName,
) -> Result<InterfaceSettings, Error> {
    let mut settings = InterfaceSettings {
        mtu: number(config, "mtu")?.filter(|mtu| *mtu != 0),
        promiscuous: config.flag("promisc")?.filter(|on| *on),
        all_multicast: config.flag("allmulti")?,
        tx_queue_length: number(config, "txQLen")?,
        mac: args.mac,
        ..InterfaceSettings::default()
    };
    let cni = config
        .object("args")?
        .map(|args| args.object("cni"))
        .transpose()?
        .flatten();
    // Later sources take precedence (behaviour R1).
    for source in [Some(config.clone()), cni, config.object("runtimeConfig")?] {
        let Some(node) = source.as_ref().and_then(|source| source.get("mac")) else {
            continue;
        };
        settings.mac = Some(parse_mac(node.text()?).map_err(|why| node.invalid(why))?);
    }
    for (key, value) in sysctls(text)? {
        let path = path(&key, ifname)?;
        if settings.sysctls.insert(path, value).is_some() {
            return Err(Error::invalid_config(format!(
                "sysctl: duplicate key {key}"
            )));
        }
    }
    Ok(settings)
}

fn number(config: &Object<'_>, key: &str) -> Result<Option<u32>, Error> {
    let Some(node) = config.get(key) else {
        return Ok(None);
    };
    let number = node.number()?;
    let fits = u32::try_from(number);
    fits.map(Some)
        .map_err(|_| node.invalid(format_args!("{number} is out of range")))
}

/// Returns the path of a sysctl below `/proc/sys`. Only `net/` is valid: these sysctls are per
/// network namespace.
fn path(key: &str, ifname: &IfName) -> Result<String, Error> {
    let path = if key.contains('/') {
        key.to_owned()
    } else {
        key.replace('.', "/")
    };
    // Only after the dots are replaced, because an interface name may contain dots.
    let path = path.replace(INTERFACE, ifname.as_str());
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    if path.starts_with("net/") && path.split('/').all(plain) {
        return Ok(path);
    }
    Err(Error::invalid_config(format!(
        "invalid net sysctl key: {key:?}"
    )))
}

fn sysctls(text: &str) -> Result<Vec<(String, String)>, Error> {
    let found: Sysctls =
        serde_json::from_str(text).map_err(|error| Error::decode(format!("sysctl: {error}")))?;
    Ok(found.0)
}

/// The member `sysctl` of an object, with all its pairs.
struct Sysctls(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Sysctls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Find)
    }
}

struct Find;

impl<'de> Visitor<'de> for Find {
    type Value = Sysctls;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Sysctls, A::Error> {
        let mut found = Vec::new();
        while let Some(key) = members.next_key::<String>()? {
            if key.eq_ignore_ascii_case("sysctl") {
                let pairs: Option<Pairs> = members.next_value()?;
                found = pairs.map_or_else(Vec::new, |pairs| pairs.0);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Sysctls(found))
    }
}

/// All members of an object, including duplicate keys.
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Collect)
    }
}

struct Collect;

impl<'de> Visitor<'de> for Collect {
    type Value = Pairs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of texts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Pairs, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = members.next_entry()? {
            pairs.push(pair);
        }
        Ok(Pairs(pairs))
    }
}
