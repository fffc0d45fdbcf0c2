//! CNI GC: removes attachments that the runtime's list does not contain and that cannot be in use
//! (behaviour S12).
//!
//! The list may be outdated, of another runtime that uses a network of the same name, or empty
//! because the runtime has lost its cache. So the namespace decides: while its path leads to the
//! namespace in which the attachment was made, a pod may use it, and the attachment stays unless
//! the request is forced. A process may keep a namespace alive without a path, but no runtime can
//! use such a namespace again.

use std::collections::BTreeSet;

use kernel::Kernel;
use model::{AttachmentKey, ContainerId, IfName, NetworkName, Record};
use steps::AttachmentNetns;

use crate::error::chain;
use crate::{Engine, EngineError};

/// Attachments that a GC may remove.
#[derive(Clone, Debug)]
pub struct GcScope {
    /// Network whose attachments are collected.
    pub network: NetworkName,
    /// Attachments that the runtime lists as valid; they stay.
    pub valid: BTreeSet<(ContainerId, IfName)>,
    /// Whether attachments are removed although their network namespaces still exist.
    pub forced: bool,
}

/// Result of a GC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcResult {
    /// Attachments that were removed.
    pub removed: Vec<AttachmentKey>,
    /// Attachments that the runtime does not list but whose network namespaces exist; they stay.
    pub alive: Vec<AttachmentKey>,
    /// Failed removals, one line for each.
    pub failures: Vec<String>,
}

impl<K: Kernel> Engine<K> {
    /// Removes the attachments in `scope`. Goes on after failures and returns all of them.
    pub fn collect(&mut self, scope: &GcScope) -> GcResult {
        let _gc = crash::verb("gc");
        let unlisted: Vec<Record> = self
            .store
            .records()
            .values()
            .filter(|record| scope.includes(&record.attachment.key))
            .cloned()
            .collect();
        let mut collected = GcResult::default();
        for record in unlisted {
            let key = record.attachment.key.clone();
            match self.collect_one(&record, scope.forced) {
                Ok(true) => collected.removed.push(key),
                Ok(false) => {
                    tracing::warn!(
                        %key,
                        netns = %record.attachment.netns.path,
                        "GC left attachment alone: the runtime does not list it, but its network namespace exists"
                    );
                    collected.alive.push(key);
                }
                Err(error) => collected.failures.push(chain(&error)),
            }
        }
        if let Err(error) = self.collect_firewall(scope) {
            collected.failures.push(chain(&error));
        }
        collected
    }

    fn collect_one(&mut self, record: &Record, forced: bool) -> Result<bool, EngineError> {
        let attachment = &record.attachment;
        if !forced {
            let observed = self.observe(attachment)?;
            if matches!(observed.netns, AttachmentNetns::Same { .. }) {
                return Ok(false);
            }
        }
        self.del(&attachment.key)?;
        Ok(true)
    }
}

impl GcScope {
    fn includes(&self, key: &AttachmentKey) -> bool {
        let names = (key.container_id.clone(), key.ifname.clone());
        key.network == self.network && !self.valid.contains(&names)
    }
}
