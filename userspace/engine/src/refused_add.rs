//! ADDs whose result the version of the protocol cannot express (decision 123).
//!
//! The reference plugins find this last, when the bridge is there, and leave the bridge: it belongs
//! to the network, not to the attachment.

use kernel::Kernel;
use model::{Intent, Network};
use planner::Refusal;

use crate::before::Before;
use crate::{Engine, EngineError, network};

/// MTU of a plan that is made for its refusals only.
const ANY_MTU: u32 = 1500;

impl<K: Kernel> Engine<K> {
    /// Makes the bridge of the network, if it is missing, and nothing of the attachment.
    ///
    /// Fails and makes nothing where an ADD would fail for another reason than its result. A bridge
    /// that is there stays as it is.
    pub fn make_bridge(&mut self, intent: &Intent) -> Result<(), EngineError> {
        let _add = crash::verb("add");
        let key = &intent.key;
        // Also because a transaction that fails removes the record.
        if self.store.get(key).is_some() {
            return Err(Refusal::AlreadyAttached { key: key.clone() }.into());
        }
        let intent = self.with_current_network(intent).into_owned();
        let default = &self.choices.settings.default_network;
        network::admit(&intent.network, default, self.store.networks().values())?;
        let recorded = self.store.networks().get(&key.network).cloned();
        let without_addresses = Network {
            ranges: Vec::new(),
            ..intent.network.clone()
        };
        // A recorded network has attachments, which need its gateway addresses.
        let network = recorded.clone().unwrap_or(without_addresses);
        let before = Before::Absent {
            key: key.clone(),
            network: recorded,
        };
        self.transact(before, |engine, transaction| {
            match engine.plan(&intent, ANY_MTU) {
                Err(EngineError::Refused(Refusal::NoBridge { .. })) => {}
                planned => return planned.map(drop),
            }
            engine.node.ready.remove(&network.name);
            let mtu = engine.prepare_network(&network, transaction)?;
            engine.plan(&intent, mtu).map(drop)
        })?;
        Ok(self.release_networks()?)
    }
}
