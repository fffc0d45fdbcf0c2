//! Announcement of addresses by the interface of a pod.

use std::fmt;
use std::net::IpAddr;

use model::{IfName, Mac, Netns};

/// An announcement of addresses by a pod's interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Pod's network namespace.
    pub netns: Netns,
    /// Interface name in the pod.
    pub ifname: IfName,
    /// Ethernet address of the interface.
    pub mac: Mac,
    /// The addresses.
    pub addresses: Vec<IpAddr>,
}

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "announce {} of {}", self.mac, self.ifname)?;
        let path = &self.netns.path;
        write!(f, " in {path} as the address of")?;
        let mut addresses = self.addresses.iter();
        addresses.try_for_each(|address| write!(f, " {address}"))
    }
}
