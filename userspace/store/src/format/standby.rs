//! Stored form of the ports for which an interface stands by.

use std::collections::BTreeSet;

use model::{PortMapping, StandbyPort};
use serde::{Deserialize, Serialize};

use super::port::{self, StoredPorts};

#[derive(Serialize, Deserialize)]
pub(super) struct StoredStandby {
    port: StoredPorts,
    ipv4: bool,
}

/// Returns the stored form of standby ports: ranges of each protocol, address and family.
pub(super) fn stored(standby: &BTreeSet<StandbyPort>) -> Vec<StoredStandby> {
    let of_family = |ipv4: bool| {
        let ports = standby.iter().filter(move |port| port.ipv4 == ipv4);
        let mut mappings: Vec<PortMapping> = ports.map(|port| port.mapping).collect();
        // Ports of one protocol and address side by side.
        mappings.sort_by_key(|mapping| (mapping.protocol, mapping.host_address, *mapping));
        let ranges = port::stored(&mappings).into_iter();
        ranges.map(move |port| StoredStandby { port, ipv4 })
    };
    [true, false].into_iter().flat_map(of_family).collect()
}

/// Returns the standby ports of a stored form.
pub(super) fn ports(stored: &[StoredStandby]) -> BTreeSet<StandbyPort> {
    let of = |stored: &StoredStandby| {
        let ipv4 = stored.ipv4;
        let mappings = port::mappings(&[stored.port]).into_iter();
        mappings.map(move |mapping| StandbyPort { mapping, ipv4 })
    };
    stored.iter().flat_map(of).collect()
}
