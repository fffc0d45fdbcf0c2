//! Finds what is degraded.

use std::sync::atomic::Ordering;

use kernel::Kernel;
use model::IfName;
use planner::{BypassMode, DefaultState, DroppingDefault};

use crate::Engine;
use crate::degraded::Degraded;
use crate::report::Report;
use crate::status::NetworkStatus;

impl<K: Kernel> Engine<K> {
    /// Returns the active degradations.
    pub(crate) fn degraded(&self, networks: &[NetworkStatus]) -> Vec<Degraded> {
        let mut degraded = Vec::new();
        // An agent that serves only networks with their own IPAM needs no pod CIDR.
        if self.choices.settings.default_network.ranges.is_empty()
            && self.choices.is_default_wanted.load(Ordering::Acquire)
        {
            degraded.push(Degraded::NoPodCidr);
        }
        if self.node.uplinks.is_empty() {
            degraded.push(Degraded::NoUplink);
        }
        let named = self.choices.settings.uplinks.iter();
        let is_there = |name: &IfName| self.node.uplinks.iter().any(|uplink| uplink.name == *name);
        let missing = named.filter(|name| !is_there(name));
        degraded.extend(missing.cloned().map(Degraded::UplinkMissing));
        let bare = self.node.uplinks.iter().filter(|uplink| !uplink.attached);
        degraded.extend(bare.map(|uplink| Degraded::ProgramsMissing(uplink.name.clone())));
        let refused = self.node.refused.iter();
        degraded.extend(refused.map(|(network, refusal)| Degraded::NetworkRefused {
            network: network.clone(),
            why: refusal.to_string(),
        }));
        let missing = self.node.missing_egress.iter().copied();
        degraded.extend(missing.map(Degraded::NoEgressAddress));
        // Bypassing packets do not pass the tables.
        if self.choices.settings.bypass != BypassMode::Always {
            degraded.extend(self.upkeep.forwarding.defaults.iter().filter_map(dropped));
        }
        degraded.extend(self.lacks_nftables().then_some(Degraded::NoNftables));
        degraded.extend(self.upkeep.conditions.all().map(Degraded::Node));
        degraded.extend(networks.iter().flat_map(exhausted));
        let unreadable = self.upkeep.peers_unreadable.clone();
        degraded.extend(unreadable.map(Degraded::PeersUnreadable));
        let stale = self.upkeep.peers_stale.clone();
        degraded.extend(stale.map(Degraded::PeersStale));
        degraded.extend(self.node.peers.degraded());
        let unreadable = self.upkeep.policies_unreadable.clone();
        degraded.extend(unreadable.map(Degraded::PoliciesUnreadable));
        let damage = self.choices.policies_damage.clone();
        degraded.extend(damage.map(Degraded::PoliciesLost));
        degraded.extend(
            self.upkeep
                .last_reconcile
                .iter()
                .flat_map(|report| failed(report)),
        );
        degraded
    }
}

fn dropped(default: &DroppingDefault) -> Option<Degraded> {
    let DefaultState::Drops(why) = &default.state else {
        return None;
    };
    Some(Degraded::ForwardingDropped {
        what: default.what.clone(),
        why: why.clone(),
    })
}

/// Returns degradations for ranges with no free address, and for those with few.
fn exhausted(status: &NetworkStatus) -> impl Iterator<Item = Degraded> + '_ {
    status.pools.iter().filter_map(|pool| {
        let (network, range) = (status.network.name.clone(), pool.range);
        let left = pool.total.saturating_sub(pool.used);
        if left == 0 {
            return Some(Degraded::PoolExhausted { network, range });
        }
        // At least nine tenths are in use.
        (left <= pool.total / 10).then_some(Degraded::PoolNearlyExhausted {
            network,
            range,
            left,
        })
    })
}

fn failed(report: &Report) -> impl Iterator<Item = Degraded> + '_ {
    report
        .items
        .iter()
        .filter(|item| item.outcome == crate::Outcome::Failed)
        .map(|item| Degraded::RepairFailed {
            subject: item.subject.clone(),
            why: item.message.clone(),
        })
}
