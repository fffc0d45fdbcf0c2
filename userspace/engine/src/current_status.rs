//! The current status of the engine.

use std::net::IpAddr;
use std::sync::Arc;

use kernel::Kernel;
use model::{Network, Range};

use crate::Engine;
use crate::status::{
    BypassStatus, ForwardingStatus, NetworkStatus, PoolStatus, ShaperStatus, Status,
};

impl<K: Kernel> Engine<K> {
    /// Returns the status.
    pub fn status(&self) -> Status {
        let leases: Vec<IpAddr> = self.store.leases().into_keys().collect();
        let networks: Vec<NetworkStatus> = self
            .networks()
            .map(|network| self.network_status(network, &leases))
            .collect();
        Status {
            degraded: self.degraded(&networks),
            networks,
            uplinks: self.node.uplinks.clone(),
            containers: self.node.containers.clone(),
            attachments: self.store.records().len(),
            flow_entries: (self.node.flow_entries, self.choices.settings.flow_entries),
            bypass: BypassStatus {
                mode: self.choices.settings.bypass,
                active: self.node.bypass,
                offload: self.node.offload,
                holding_rules: self.node.holding_rules.clone(),
                holding_unreplied: self.node.holding_unreplied.clone(),
                rules: self.node.obstacles.clone(),
            },
            forwarding: ForwardingStatus {
                mode: self.choices.settings.forwarding,
                defaults: self.upkeep.forwarding.defaults.clone(),
            },
            shaper: ShaperStatus {
                mode: self.choices.settings.shaper,
                ..self.node.shaper
            },
            datapath_log: self.kernel.datapath_log(),
            peers: Arc::clone(&self.node.peers),
            policies: Arc::clone(self.choices.network_policies().list()),
            last_reconcile: self.upkeep.last_reconcile.clone(),
        }
    }

    fn network_status(&self, network: &Network, leases: &[IpAddr]) -> NetworkStatus {
        let ready = self.node.ready.get(&network.name);
        let keys = self.store.records().keys();
        let ranges = network.ranges.iter().flat_map(model::RangeSet::ranges);
        // A range of one address is not reported: it is exhausted whenever it is used.
        let pools = ranges.filter(|range| range.first() != range.last());
        NetworkStatus {
            network: network.clone(),
            is_default: network.name == self.choices.settings.default_network.name,
            mtu: ready.map(|ready| ready.mtu),
            bridge_mac: ready.and_then(|ready| ready.mac),
            attachments: keys.filter(|key| key.network == network.name).count(),
            pools: pools.map(|range| pool(*range, leases)).collect(),
        }
    }
}

fn pool(range: Range, leases: &[IpAddr]) -> PoolStatus {
    let used = leases
        .iter()
        .filter(|address| range.offers(**address))
        .count();
    let (first, last) = (number(range.first()), number(range.last()));
    let gateway = range.gateway().map(number);
    let inside = gateway.is_some_and(|gateway| (first..=last).contains(&gateway));
    let gateways = u128::from(inside);
    let total = last.saturating_sub(first).saturating_add(1) - gateways;
    PoolStatus {
        range,
        used: u64::try_from(used).unwrap_or(u64::MAX),
        total: u64::try_from(total).unwrap_or(u64::MAX),
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}
