//! The runtime's list of attachments that are still wanted. A list that is not there is another thing than an empty
//! one: the first says nothing, the second says that nothing is wanted (behaviour S12).

use std::collections::BTreeSet;

use model::{ContainerId, IfName};

use crate::Error;
use crate::json::{Node, Object};

/// A key of ours: what the runtime does not know goes even while its network namespace lives.
const FORCE: &str = "forceGC";

/// An attachment that the runtime knows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValidAttachment {
    /// The container.
    pub container_id: ContainerId,
    /// The interface's name in the container.
    pub ifname: IfName,
}

/// Where the specification puts the list, and where libcni put it before there was one; it sends both.
const KEYS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// The attachments that are still wanted; `None` when the runtime does not say.
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

/// Whether attachments go even while their network namespaces live.
pub(crate) fn is_forced(config: &Object<'_>) -> Result<bool, Error> {
    Ok(config.flag(FORCE)?.unwrap_or(false))
}

/// An entry whose names nothing can have is of no attachment of ours, and keeps none.
fn attachment(entry: &Object<'_>) -> Result<Option<ValidAttachment>, Error> {
    let container_id = entry.text("containerID")?.and_then(|id| id.parse().ok());
    let ifname = entry.text("ifname")?.and_then(|name| name.parse().ok());
    let pair = container_id.zip(ifname);
    Ok(pair.map(|(container_id, ifname)| ValidAttachment {
        container_id,
        ifname,
    }))
}
