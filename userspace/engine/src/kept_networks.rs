//! Networks that stay without attachments: those of Docker, which creates and deletes them.
//!
//! Other networks exist as long as they have attachments, and their bridges stay. The bridge of a
//! kept network is made at once, and deleted with the network.

use kernel::Kernel;
use model::{AttachmentKey, Network, NetworkName};
use steps::NodeQuery;

use crate::before::Before;
use crate::transaction::{execute_all, failures};
use crate::{Engine, EngineError};

impl<K: Kernel> Engine<K> {
    /// Makes the bridge of a network, and keeps the network until [`Engine::release_network`]. The
    /// agent keeps it again after each start: the records do not contain which networks are kept.
    pub fn keep_network(&mut self, network: &Network) -> Result<(), EngineError> {
        let _keep = crash::verb("keep-network");
        let name = &network.name;
        let before = Before::Network {
            name: name.clone(),
            network: self.store.networks().get(name).cloned(),
        };
        self.transact(before, |engine, transaction| {
            engine.prepare_network(network, transaction)
        })?;
        // A network that was prepared before may not be recorded any more.
        if self.store.networks().get(name) != Some(network) {
            self.store.put_network(network)?;
        }
        self.choices.kept_networks.insert(name.clone());
        Ok(())
    }

    /// Deletes a network without attachments, and its bridge if that is ours and has no ports. An
    /// unknown network is success. After a failure the network is still kept, for the next try.
    pub fn release_network(&mut self, name: &NetworkName) -> Result<(), EngineError> {
        let _release = crash::verb("release-network");
        let records = self.store.records().keys();
        let of_network = records.filter(|key| key.network == *name);
        let attached: Vec<AttachmentKey> = of_network.cloned().collect();
        if !attached.is_empty() {
            return Err(EngineError::StillAttached(attached));
        }
        let Some(network) = self.store.networks().get(name).cloned() else {
            self.choices.kept_networks.remove(name);
            return Ok(());
        };
        let observed = self.kernel.observe(&NodeQuery::default())?;
        let others = self.networks().filter(|other| other.name != *name);
        let plan = planner::plan_remove_bridge(&network, others, &observed);
        let failures = failures(execute_all(&mut self.kernel, &plan));
        if !failures.is_empty() {
            return Err(EngineError::Unfinished(failures.join("; ")));
        }
        self.store.remove_network(name)?;
        // After the bridge and the record: reconciliation drops the record of a network that is
        // not kept, and a repeated release would then leave the bridge.
        self.choices.kept_networks.remove(name);
        self.node.ready.remove(name);
        Ok(())
    }
}
