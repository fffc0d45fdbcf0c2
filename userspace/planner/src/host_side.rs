//! The host's side of an attachment, in an observation of the attachment or of the whole node.

use std::collections::BTreeSet;

use model::Attachment;
use steps::{
    Entries, Hook, Link, Observed, ObservedAttachment, ObservedHostSide, PortReservations,
};

/// An observation that has the host's side of an attachment.
pub trait HostSide {
    /// Returns the host's end of the veth; `None` where it does not exist.
    fn host_link(&self, attachment: &Attachment) -> Option<&Link>;

    /// Returns the programs of pods on the host's end.
    fn pod_hooks(&self, attachment: &Attachment) -> BTreeSet<Hook>;

    /// Returns the bridge; `None` where it does not exist.
    fn bridge(&self, attachment: &Attachment) -> Option<&Link>;

    /// Returns table entries: at least those of the attachment.
    fn entries(&self) -> &Entries;

    /// Returns port reservations in force: at least those of the attachment.
    fn port_reservations(&self) -> &PortReservations;
}

impl HostSide for ObservedHostSide {
    fn host_link(&self, _: &Attachment) -> Option<&Link> {
        self.host_link.as_ref()
    }

    fn pod_hooks(&self, _: &Attachment) -> BTreeSet<Hook> {
        self.hooks.clone()
    }

    fn bridge(&self, _: &Attachment) -> Option<&Link> {
        self.bridge.as_ref()
    }

    fn entries(&self) -> &Entries {
        &self.entries
    }

    fn port_reservations(&self) -> &PortReservations {
        &self.port_reservations
    }
}

impl HostSide for ObservedAttachment {
    fn host_link(&self, attachment: &Attachment) -> Option<&Link> {
        self.host.host_link(attachment)
    }

    fn pod_hooks(&self, attachment: &Attachment) -> BTreeSet<Hook> {
        self.host.pod_hooks(attachment)
    }

    fn bridge(&self, attachment: &Attachment) -> Option<&Link> {
        self.host.bridge(attachment)
    }

    fn entries(&self) -> &Entries {
        self.host.entries()
    }

    fn port_reservations(&self) -> &PortReservations {
        self.host.port_reservations()
    }
}

impl HostSide for Observed {
    fn host_link(&self, attachment: &Attachment) -> Option<&Link> {
        let link = self.links.get(attachment.host_link().name());
        link.map(|link| &link.link)
    }

    fn pod_hooks(&self, attachment: &Attachment) -> BTreeSet<Hook> {
        let link = self.links.get(attachment.host_link().name());
        let hooks = link.into_iter().flat_map(|link| &link.hooks);
        hooks.copied().filter(|hook| hook.is_of_pods()).collect()
    }

    fn bridge(&self, attachment: &Attachment) -> Option<&Link> {
        let link = self.links.get(&attachment.bridge);
        link.map(|link| &link.link)
    }

    fn entries(&self) -> &Entries {
        &self.entries
    }

    fn port_reservations(&self) -> &PortReservations {
        &self.port_reservations
    }
}
