//! Settings of the plugins that we stand in for and that we do not honour.
//!
//! To ignore one silently would give a pod another network than its operator wrote down: a missing VLAN,
//! an address that is not checked. So each is refused with its key and value (code 2), unless it says what is so anyway.

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

/// Keys that must be on: published ports always reach pods that answer by us.
const ON: [&str; 1] = ["snat"];

/// What portmap does when it is not told otherwise.
const MARK_MASQ_BIT: i64 = 13;

/// Refuses what we do not honour of portmap.
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

/// Refuses what we do not honour in a whole configuration.
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

pub(crate) fn refusal(node: &Node<'_>) -> Error {
    Error::unsupported_field(node.path(), &node.value().to_string())
        .with_details("viaduct does not honour this setting and does not ignore it; remove it")
}
