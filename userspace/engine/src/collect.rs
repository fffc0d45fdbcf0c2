//! CNI GC: what a runtime does not know any more is removed, but only what cannot be in use (behaviour S12).
//!
//! The runtime's list may be old, of another runtime that uses a network of the same name, or empty because it has lost
//! its cache. So the namespace has the last word: as long as its path leads to the very namespace that the attachment
//! was made in, a pod may live there, and the attachment stays unless whoever asks insists. Nothing else tells: a
//! process may keep a namespace alive that no path leads to, but no runtime can come back to it.

use std::collections::BTreeSet;

use kernel::Kernel;
use model::{AttachmentKey, ContainerId, IfName, NetworkName, Record};

use crate::error::chain;
use crate::{Engine, EngineError};

/// What to remove.
#[derive(Clone, Debug)]
pub struct Collect {
    /// Attachments of this network only.
    pub network: NetworkName,
    /// But not these.
    pub valid: BTreeSet<(ContainerId, IfName)>,
    /// Whether attachments go even while their network namespaces live.
    pub forced: bool,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Attachments that are gone.
    pub removed: Vec<AttachmentKey>,
    /// Attachments that the runtime does not know and whose network namespaces live.
    pub alive: Vec<AttachmentKey>,
    /// What could not be removed, and why.
    pub failures: Vec<String>,
}

impl<K: Kernel> Engine<K> {
    /// Removes what the runtime does not know, goes on through failures and tells everything.
    pub fn collect(&mut self, collect: &Collect) -> Collected {
        let _gc = crash::verb("gc");
        let unknown: Vec<Record> = self
            .store
            .records()
            .values()
            .filter(|record| collect.concerns(&record.attachment.key))
            .cloned()
            .collect();
        let mut collected = Collected::default();
        for record in unknown {
            let key = record.attachment.key.clone();
            match self.collect_one(&record, collect.forced) {
                Ok(true) => collected.removed.push(key),
                Ok(false) => {
                    tracing::warn!(%key, netns = %record.attachment.netns.path,
                        "the runtime does not know it, but its network namespace lives: left alone");
                    collected.alive.push(key);
                }
                Err(error) => collected.failures.push(chain(&error)),
            }
        }
        collected
    }

    fn collect_one(&mut self, record: &Record, forced: bool) -> Result<bool, EngineError> {
        let attachment = &record.attachment;
        if !forced {
            let observed = self.observe(attachment)?;
            if observed.netns.get(&attachment.netns.path) == Some(&attachment.netns) {
                return Ok(false);
            }
        }
        self.del(&attachment.key)?;
        Ok(true)
    }
}

impl Collect {
    fn concerns(&self, key: &AttachmentKey) -> bool {
        let names = (key.container_id.clone(), key.ifname.clone());
        key.network == self.network && !self.valid.contains(&names)
    }
}
