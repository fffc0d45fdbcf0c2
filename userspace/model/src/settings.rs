//! Settings of a pod's interface and of the network stack around it, as the tuning plugin makes them.

use std::collections::BTreeMap;

use crate::Mac;

/// Settings; what is `None` or not in the map is not spoken of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceSettings {
    /// Ethernet address.
    pub mac: Option<Mac>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Whether the interface takes frames for others.
    pub promiscuous: Option<bool>,
    /// Whether the interface takes all multicast frames.
    pub all_multicast: Option<bool>,
    /// Length of the transmit queue.
    pub tx_queue_length: Option<u32>,
    /// Sysctls of the pod's namespace, by path below `/proc/sys`.
    pub sysctls: BTreeMap<String, String>,
}

impl InterfaceSettings {
    /// Those of the settings that `other` speaks of.
    #[must_use]
    pub fn restricted_to(&self, other: &Self) -> Self {
        let sysctls = self
            .sysctls
            .iter()
            .filter(|(key, _)| other.sysctls.contains_key(*key));
        Self {
            mac: self.mac.filter(|_| other.mac.is_some()),
            mtu: self.mtu.filter(|_| other.mtu.is_some()),
            promiscuous: self.promiscuous.filter(|_| other.promiscuous.is_some()),
            all_multicast: self.all_multicast.filter(|_| other.all_multicast.is_some()),
            tx_queue_length: self
                .tx_queue_length
                .filter(|_| other.tx_queue_length.is_some()),
            sysctls: sysctls.map(|(k, v)| (k.clone(), v.clone())).collect(),
        }
    }

    /// Whether nothing is spoken of.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
