//! The runtime's list of valid attachments, for GC.
//!
//! A missing list differs from an empty one: without a list GC removes nothing, with an empty list
//! it removes everything (behaviour S12).

use std::collections::BTreeSet;

use model::{ContainerId, IfName};

use crate::Error;
use crate::json::{Node, Object};

/// Viaduct's own key: GC also removes attachments whose network namespaces still exist.
const FORCE: &str = "forceGC";

/// An attachment of the runtime's list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValidAttachment {
    /// The container's ID.
    pub container_id: ContainerId,
    /// The interface's name in the container.
    pub ifname: IfName,
}

/// Keys of the list: the specification's, and libcni's from before that was defined; libcni sends
/// both.
const KEYS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// Parses the list of valid attachments; `None` if the configuration has none.
pub(crate) fn valid_attachments(
    config: &Object<'_>,
) -> Result<Option<BTreeSet<ValidAttachment>>, Error> {
    let nodes: Vec<Node<'_>> = KEYS.iter().filter_map(|key| config.get(key)).collect();
    if nodes.is_empty() {
        return Ok(None);
    }
    let mut valid = BTreeSet::new();
    for node in nodes.iter().filter(|node| !node.value().is_null()) {
        for entry in node.list()? {
            valid.extend(attachment(&entry.object()?)?);
        }
    }
    Ok(Some(valid))
}

/// Returns whether GC also removes attachments whose network namespaces still exist.
pub(crate) fn is_forced(config: &Object<'_>) -> Result<bool, Error> {
    Ok(config.flag(FORCE)?.unwrap_or(false))
}

/// Parses an entry. One with an invalid container ID or interface name cannot be an attachment of
/// ours: it is skipped.
fn attachment(entry: &Object<'_>) -> Result<Option<ValidAttachment>, Error> {
    let container_id = entry.text("containerID")?.and_then(|id| id.parse().ok());
    let ifname = entry.text("ifname")?.and_then(|name| name.parse().ok());
    let pair = container_id.zip(ifname);
    Ok(pair.map(|(container_id, ifname)| ValidAttachment {
        container_id,
        ifname,
    }))
}
