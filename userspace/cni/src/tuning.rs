//! Settings of the tuning plugin. Refuses to know which sysctls an operator allows.

use std::fmt;

use model::{IfName, InterfaceSettings};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::Error;
use crate::args::Args;
use crate::json::Object;
use crate::runtime::parse_mac;

/// Stands for the interface's name in a sysctl.
const INTERFACE: &str = "IFNAME";

/// The settings that a configuration asks for. Sysctls are read from the text itself: their names keep their case.
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
    // The later ones win (behaviour R1).
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
                "sysctl: {key} is there twice"
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
        .map_err(|_| node.invalid(format_args!("{number} is no length")))
}

/// A sysctl as a path below `/proc/sys`: only the network's, which the pod's namespace has for itself.
fn path(key: &str, ifname: &IfName) -> Result<String, Error> {
    let path = if key.contains('/') {
        key.to_owned()
    } else {
        key.replace('.', "/")
    };
    // Behind the dots: a name may have some.
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

/// The member `sysctl` of an object, with all its members.
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

/// All members of an object, those that are there twice too.
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
