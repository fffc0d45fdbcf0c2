//! Keys of attachments.

use std::fmt;

use crate::{ContainerId, IfName, NetworkName};

/// Unique key of an attachment: one container may be on several networks, or twice on one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentKey {
    /// Name of the CNI network.
    pub network: NetworkName,
    /// `CNI_CONTAINERID`.
    pub container_id: ContainerId,
    /// `CNI_IFNAME`: interface name in the container.
    pub ifname: IfName,
}

impl fmt::Display for AttachmentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.network, self.container_id, self.ifname)
    }
}
