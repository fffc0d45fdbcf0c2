//! Connections that netfilter translates to pods, before the pods get hostports of the agent; and
//! the reverse, hostports that end before their connections do.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kernel::Kernel;
use model::{Attachment, AttachmentKey, State};
use planner::{TranslatedConnections, clients};
use steps::TrackedConnection;

use crate::chain::InterfaceServices;
use crate::{Engine, EngineError};

/// Connections that netfilter translates to pods, and what was done with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptConnections {
    /// Connections from outside that netfilter goes on translating.
    pub kept: u64,
    /// Connections from outside that would be reset, because they could not get a flow.
    pub lost: Vec<TrackedConnection>,
    /// Connections of the pods themselves, which would be reset.
    pub of_pods: Vec<TrackedConnection>,
}

impl<K: Kernel> Engine<K> {
    /// Lets netfilter go on translating the open connections that it translates to these pods, when
    /// their ports get hostports. `dry_run` changes nothing.
    pub fn keep_connections(
        &mut self,
        pods: &BTreeSet<IpAddr>,
        dry_run: bool,
    ) -> Result<KeptConnections, EngineError> {
        let found = self.kernel.translated_connections(pods)?;
        let own = self.own_among(clients(&found))?;
        let sorted = TranslatedConnections::sort(&found, pods, &own);
        let mut result = KeptConnections {
            of_pods: sorted.of_pods,
            ..KeptConnections::default()
        };
        for connection in sorted.from_outside {
            if dry_run || self.kernel.make_flow(&connection)? {
                result.kept += 1;
            } else {
                result.lost.push(connection);
            }
        }
        Ok(result)
    }

    /// Unpublishes the ports of an adopted interface and keeps its programs, so that established
    /// flows are translated until they end.
    pub fn drain_ports(&mut self, key: &AttachmentKey) -> Result<Attachment, EngineError> {
        let record = self
            .store
            .get(key)
            .filter(|record| record.state == State::Attached)
            .filter(|record| record.attachment.adopted.is_some())
            .cloned()
            .ok_or_else(|| EngineError::NotAttached(key.clone()))?;
        self.hand_over_ports(Some(key));
        self.publish(&record, &InterfaceServices::default())
    }
}
