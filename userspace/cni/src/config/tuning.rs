//! Parser of the tuning plugin's settings.
//!
//! Which sysctls the operator allows is checked by the agent, not here.

use std::collections::BTreeMap;
use std::fmt;

use model::{IfName, InterfaceSettings, Mac};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::Error;
use crate::json::Object;
use crate::runtime::args::Args;
use crate::runtime::cni_args;
use crate::values::parse_mac;

/// Placeholder for the interface's name in a sysctl key.
const INTERFACE: &str = "IFNAME";

/// The settings that a configuration requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TuningRequest {
    /// Settings of the interface, and sysctls by path.
    pub settings: InterfaceSettings,
    /// Key of each sysctl as the configuration has it, possibly with `IFNAME`, by path.
    pub sysctl_keys: BTreeMap<String, String>,
}

impl TuningRequest {
    /// Adds sysctls, which take precedence over those of an earlier source.
    fn add_sysctls(&mut self, pairs: Vec<(String, String)>, ifname: &IfName) -> Result<(), Error> {
        for (path, (key, value)) in paths(pairs, ifname)? {
            self.settings.sysctls.insert(path.clone(), value);
            self.sysctl_keys.insert(path, key);
        }
        Ok(())
    }
}

/// Parses the settings of a configuration, `runtimeConfig` and `args.cni`. Sysctls are parsed from
/// `text`, where their keys keep their case; `config` has all keys in lower case.
///
/// As in the reference plugin, `args.cni` takes precedence over the configuration key by key. The
/// MAC address comes from the last of: `mac`, `CNI_ARGS`, `runtimeConfig`, `args.cni`.
pub(crate) fn settings(
    config: &Object<'_>,
    args: &Args,
    text: &str,
    ifname: &IfName,
) -> Result<TuningRequest, Error> {
    let runtime = config.object("runtimeConfig")?;
    let cni = cni_args(config)?;
    let mut settings = InterfaceSettings::default();
    apply(&mut settings, config)?;
    let of_runtime = runtime.as_ref().map(mac).transpose()?.flatten();
    settings.mac = of_runtime.or(args.mac).or(settings.mac);
    if let Some(cni) = &cni {
        apply(&mut settings, cni)?;
    }
    let mut request = TuningRequest {
        settings,
        sysctl_keys: BTreeMap::new(),
    };
    request.add_sysctls(sysctls(text)?, ifname)?;
    if let Some(args) = member(text, "args")?
        && let Some(cni) = member(args.get(), "cni")?
    {
        request.add_sysctls(sysctls(cni.get())?, ifname)?;
    }
    Ok(request)
}

/// Applies the members of an object. An absent member keeps the value of an earlier source.
fn apply(settings: &mut InterfaceSettings, source: &Object<'_>) -> Result<(), Error> {
    settings.mac = mac(source)?.or(settings.mac);
    if let Some(mtu) = number(source, "mtu")? {
        settings.mtu = Some(mtu).filter(|mtu| *mtu != 0);
    }
    if let Some(on) = source.flag("promisc")? {
        settings.promiscuous = Some(on).filter(|on| *on);
    }
    settings.all_multicast = source.flag("allmulti")?.or(settings.all_multicast);
    settings.tx_queue_length = number(source, "txQLen")?.or(settings.tx_queue_length);
    Ok(())
}

fn mac(source: &Object<'_>) -> Result<Option<Mac>, Error> {
    let Some(node) = source.get("mac") else {
        return Ok(None);
    };
    let mac = parse_mac(node.text()?);
    mac.map(Some).map_err(|why| node.invalid(why))
}

/// Returns keys and values of sysctls by path. Two keys of one source with the same path are an
/// error.
fn paths(
    pairs: Vec<(String, String)>,
    ifname: &IfName,
) -> Result<BTreeMap<String, (String, String)>, Error> {
    let mut found = BTreeMap::new();
    for (key, value) in pairs {
        let path = path(&key, ifname)?;
        if let Some((key, _)) = found.insert(path, (key, value)) {
            // The words are those of the reference plugin.
            return Err(Error::invalid_config(format!(
                "duplicated sysctl keys are not allowed: {key}"
            )));
        }
    }
    Ok(found)
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

/// Returns the member `sysctl` of an object, with all its pairs.
fn sysctls(text: &str) -> Result<Vec<(String, String)>, Error> {
    let Some(sysctls) = member(text, "sysctl")? else {
        return Ok(Vec::new());
    };
    let pairs: Pairs = serde_json::from_str(sysctls.get())
        .map_err(|error| Error::decode(format!("sysctl: {error}")))?;
    Ok(pairs.0)
}

/// Returns a member of an object as text. Keys are compared without case; `null` is absent.
fn member(text: &str, key: &str) -> Result<Option<Box<RawValue>>, Error> {
    let members: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(text).map_err(|error| Error::decode(error.to_string()))?;
    let mut named = members
        .into_iter()
        .filter(|(name, value)| name.eq_ignore_ascii_case(key) && value.get() != "null");
    Ok(named.next().map(|(_, value)| value))
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
