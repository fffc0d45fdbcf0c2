//! Settings of a pod's interface and sysctls of its namespace, those of the reference tuning
//! plugin.

use std::collections::BTreeMap;

use crate::Mac;

/// Settings of an interface. `None`, or a sysctl that is not in the map, means unspecified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceSettings {
    /// Ethernet address.
    pub mac: Option<Mac>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Whether promiscuous mode is on (`IFF_PROMISC`).
    pub promiscuous: Option<bool>,
    /// Whether all multicast frames are received (`IFF_ALLMULTI`).
    pub all_multicast: Option<bool>,
    /// Length of the transmit queue in packets (`txqueuelen`).
    pub tx_queue_length: Option<u32>,
    /// Sysctls of the pod's namespace, by path below `/proc/sys`.
    pub sysctls: BTreeMap<String, String>,
}

impl InterfaceSettings {
    /// Returns the settings that `other` specifies too.
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

    /// Returns each setting of the link itself as settings of its own.
    pub fn each_link_setting(&self) -> Vec<Self> {
        let none = Self::default;
        let each = [
            Self {
                mtu: self.mtu,
                ..none()
            },
            Self {
                mac: self.mac,
                ..none()
            },
            Self {
                promiscuous: self.promiscuous,
                ..none()
            },
            Self {
                all_multicast: self.all_multicast,
                ..none()
            },
            Self {
                tx_queue_length: self.tx_queue_length,
                ..none()
            },
        ];
        let mut each = Vec::from(each);
        each.retain(Self::has_link_settings);
        each
    }

    /// Returns whether a setting of the link itself is specified, not sysctls alone.
    pub fn has_link_settings(&self) -> bool {
        self.mac.is_some()
            || self.mtu.is_some()
            || self.promiscuous.is_some()
            || self.all_multicast.is_some()
            || self.tx_queue_length.is_some()
    }

    /// Returns whether no setting is specified.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
