//! The set of networks on the node: derives the intent for the node from it, prepares bridges, and
//! drops unused networks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use ipam::AddressRefusal;
use kernel::Kernel;
use model::{IfName, Network, NetworkName};
use planner::{NodeIntent, PeerIntent, Plan, Refusal};
use store::StoreError;

use crate::node::NodeState;
use crate::transaction::Transaction;
use crate::{Engine, EngineError, network};

impl<K: Kernel> Engine<K> {
    /// Reconciles the node until the bridge of `network` is ready, and returns the MTU of the
    /// network in bytes.
    ///
    /// Returns at once if the bridge was ready for the same definition at the last observation.
    pub(crate) fn prepare_network(
        &mut self,
        network: &Network,
        transaction: &mut Transaction,
    ) -> Result<u32, EngineError> {
        let default = &self.choices.settings.default_network;
        if network.name == default.name && network.ranges.is_empty() {
            self.choices
                .is_default_wanted
                .store(true, Ordering::Release);
            let network = network.name.clone();
            return Err(Refusal::Address(AddressRefusal::NoRanges { network }).into());
        }
        network::admit(network, default, self.store.networks().values())?;
        let name = &network.name;
        if let Some(ready) = self.node.ready.get(name)
            && ready.network == *network
        {
            return Ok(ready.mtu);
        }
        // Recorded before the bridge is made, so that a restart after a crash in between finds the
        // bridge.
        if self.store.networks().get(name) != Some(network) {
            self.store.put_network(network)?;
        }
        let intent = self.node_intent();
        let (kernel, store, phases) = (&mut self.kernel, &mut self.store, &mut self.phases);
        let apply = |kernel: &mut K, plan: &Plan| transaction.apply(kernel, phases, plan);
        let reconciled = self
            .upkeep
            .reconciler
            .reconcile(kernel, &intent, store, apply)?;
        self.node = NodeState::of(&intent, reconciled);
        if let Some(refusal) = self.node.refused.get(name) {
            return Err(refusal.clone().into());
        }
        self.node
            .ready
            .get(name)
            .map(|ready| ready.mtu)
            .ok_or_else(|| {
                let bridge = network.bridge.clone();
                Refusal::NoBridge { bridge }.into()
            })
    }

    /// Returns the intent for the node: all networks (the default network first) and the settings
    /// of the datapath.
    pub(crate) fn node_intent(&self) -> NodeIntent {
        let default = &self.choices.settings.default_network.name;
        // Without a pod CIDR the default network needs no bridge yet.
        let networks = self
            .networks()
            .filter(|network| network.name != *default || !network.ranges.is_empty());
        NodeIntent {
            networks: networks.cloned().collect(),
            uplinks: self.choices.settings.uplinks.clone(),
            non_masquerade: self.choices.settings.non_masquerade.clone(),
            egress: self.egress(),
            bypass: self.choices.settings.bypass,
            shaper: self.choices.settings.shaper,
            xdp_prefilter: self.choices.settings.xdp_prefilter,
            peers: PeerIntent {
                peers: self.choices.peers.clone(),
                options: self.choices.settings.peers.clone(),
            },
            policies: self.choices.network_policies(),
        }
    }

    /// Returns the egress addresses of each bridge: the agent's for the default network, and those
    /// of the other networks.
    fn egress(&self) -> BTreeMap<IfName, BTreeSet<IpAddr>> {
        let settings = &self.choices.settings;
        let bridge = settings.default_network.bridge.clone();
        let mut egress = BTreeMap::from([(bridge, settings.egress.clone())]);
        for network in self.networks() {
            let own = network.options.egress.iter();
            egress
                .entry(network.bridge.clone())
                .or_default()
                .extend(own);
        }
        egress
    }

    /// Returns the default network, then the networks that attachments use.
    pub(crate) fn networks(&self) -> impl Iterator<Item = &Network> {
        let default = &self.choices.settings.default_network;
        let others = self
            .store
            .networks()
            .values()
            .filter(|network| network.name != default.name);
        [default].into_iter().chain(others)
    }

    /// Removes networks without attachments from the records, except for kept ones. Their bridges
    /// stay, because other software may have attached links to them.
    pub(crate) fn release_networks(&mut self) -> Result<(), StoreError> {
        let attached = self.store.records().keys().map(|key| &key.network);
        let used: BTreeSet<&NetworkName> = attached.chain(&self.choices.kept_networks).collect();
        let unused: Vec<NetworkName> = self
            .store
            .networks()
            .keys()
            .filter(|name| !used.contains(name))
            .cloned()
            .collect();
        for name in unused {
            self.store.remove_network(&name)?;
            if name != self.choices.settings.default_network.name {
                self.node.ready.remove(&name);
            }
        }
        Ok(())
    }
}
