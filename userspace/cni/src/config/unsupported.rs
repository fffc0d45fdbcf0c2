//! Refuses settings of the reference plugins that Viaduct does not implement.
//!
//! Ignoring one silently would give a pod another network than its operator configured: a missing
//! VLAN, an address that is not checked. Each is refused with its key and value (error code 2),
//! unless its value requests the behaviour that Viaduct has anyway.

use serde_json::Value;

use crate::Error;
use crate::json::{Node, Object};

/// Keys that must be off: false, 0 or empty.
const OFF: [&str; 4] = [
    "masqAll",
    "conditionsV4",
    "conditionsV6",
    "externalSetMarkChain",
];

/// Keys that must be on: replies to hostports always go through Viaduct's translation.
const ON: [&str; 1] = ["snat"];

/// portmap's default of `markMasqBit`.
const MARK_MASQ_BIT: i64 = 13;

/// Fails if a portmap configuration has a setting that is not supported.
pub(crate) fn check_portmap(config: &Object<'_>) -> Result<(), Error> {
    must_be_off(
        config,
        &[
            "masqAll",
            "conditionsV4",
            "conditionsV6",
            "externalSetMarkChain",
        ],
    )?;
    if let Some(node) = config.get("snat")
        && !node.flag()?
    {
        return Err(refusal(&node));
    }
    check_mark(config)
}

fn check_mark(config: &Object<'_>) -> Result<(), Error> {
    match config.get("markMasqBit") {
        Some(node) if node.number()? != MARK_MASQ_BIT => Err(refusal(&node)),
        _ => Ok(()),
    }
}

/// Fails if a configuration of `viaduct` or `bridge` has a setting that is not supported.
pub(crate) fn check(config: &Object<'_>) -> Result<(), Error> {
    let ipam = config.object("ipam")?.filter(|ipam| !ipam.is_empty());
    if config.flag("disableContainerInterface")? == Some(true) && ipam.is_some() {
        return Err(Error::invalid_config(
            "cannot use IPAM when DisableContainerInterface flag is set",
        ));
    }
    must_be_off(config, &OFF)?;
    for node in ON.iter().filter_map(|key| config.get(key)) {
        if !node.flag()? {
            return Err(refusal(&node));
        }
    }
    check_mark(config)
}

fn must_be_off(object: &Object<'_>, keys: &[&str]) -> Result<(), Error> {
    let mut set = keys.iter().filter_map(|key| object.get(key));
    match set.find(|node| !is_off(node.value())) {
        None => Ok(()),
        Some(node) => Err(refusal(&node)),
    }
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Returns the error (code 2) for a setting that is not supported.
pub(crate) fn refusal(node: &Node<'_>) -> Error {
    Error::unsupported_field(node.path(), &node.value().to_string())
        .with_details("viaduct does not honour this setting and does not ignore it; remove it")
}
