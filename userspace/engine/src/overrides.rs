//! Overrides of the configuration at run time: pod CIDRs and hairpin mode of the default network,
//! and non-masquerade CIDRs.

use std::collections::BTreeSet;

use kernel::Kernel;
use model::{Cidr, HairpinMode, Network, RangeSet};
use planner::Plan;
use store::StoreError;

use crate::before::Before;
use crate::node::NodeState;
use crate::setting::Choice as _;
use crate::{Engine, EngineError, network};

/// Result of setting an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// The value has changed.
    Updated,
    /// The value was in effect already.
    Unchanged,
}

impl<K: Kernel> Engine<K> {
    /// Replaces the pod CIDRs of the default network. On a failure the old ones stay.
    ///
    /// The first pod CIDRs are always accepted. Later ones are refused while a pod has an address
    /// of the current ones (behaviours K11, K15).
    pub fn set_pod_cidrs(&mut self, ranges: Vec<RangeSet>) -> Result<UpdateOutcome, EngineError> {
        let before = self.choices.settings.default_network.clone();
        if before.ranges == ranges {
            return Ok(UpdateOutcome::Unchanged);
        }
        self.admit_pod_cidrs(&ranges)?;
        let text = ranges.text();
        let wanted = Network {
            ranges,
            ..before.clone()
        };
        let others = self.store.networks().values();
        network::admit(&wanted, &wanted, others)?;
        let before = Before::DefaultNetwork(Box::new(before));
        self.transact(before, |engine, transaction| {
            engine.store_pod_cidrs(&wanted.ranges)?;
            engine.choices.settings.default_network = wanted.clone();
            engine.prepare_network(&wanted, transaction)?;
            Ok(engine.release_networks()?)
        })?;
        tracing::info!(pod_cidrs = text, "pod CIDRs of the default network changed");
        Ok(UpdateOutcome::Updated)
    }

    fn admit_pod_cidrs(&self, wanted: &Vec<RangeSet>) -> Result<(), EngineError> {
        let network = &self.choices.settings.default_network;
        let used = self
            .store
            .records()
            .keys()
            .any(|key| key.network == network.name);
        if wanted.is_empty() || (used && !network.ranges.is_empty()) {
            let error = EngineError::PodCidrsInUse {
                kept: network.ranges.text(),
                refused: wanted.text(),
            };
            tracing::warn!("{error}");
            return Err(error);
        }
        Ok(())
    }

    /// Replaces the non-masquerade CIDRs. On a failure the old ones stay. Established flows keep
    /// their translation.
    pub fn set_non_masquerade(&mut self, prefixes: BTreeSet<Cidr>) -> Result<(), EngineError> {
        let before = Before::NonMasquerade(self.choices.settings.non_masquerade.clone());
        self.transact(before, |engine, transaction| {
            engine.store_non_masquerade(&prefixes)?;
            engine.choices.settings.non_masquerade = prefixes;
            let intent = engine.node_intent();
            let phases = &mut engine.phases;
            let apply = |kernel: &mut K, plan: &Plan| transaction.apply(kernel, phases, plan);
            let (kernel, store) = (&mut engine.kernel, &mut engine.store);
            let reconciled = engine
                .upkeep
                .reconciler
                .reconcile(kernel, &intent, store, apply)?;
            engine.node = NodeState::of(&intent, reconciled);
            Ok(())
        })
    }

    pub(crate) fn store_non_masquerade(
        &mut self,
        prefixes: &BTreeSet<Cidr>,
    ) -> Result<(), StoreError> {
        self.choices
            .overrides
            .non_masquerade
            .choose(prefixes, &mut self.store)
    }

    pub(crate) fn store_pod_cidrs(&mut self, ranges: &Vec<RangeSet>) -> Result<(), StoreError> {
        self.choices
            .overrides
            .pod_cidrs
            .choose(ranges, &mut self.store)
    }

    /// Sets the hairpin mode of the default network, on its bridge and on the ports of its pods.
    pub fn set_hairpin_mode(
        &mut self,
        mode: HairpinMode,
        now: u64,
    ) -> Result<UpdateOutcome, EngineError> {
        if self.choices.settings.default_network.hairpin == mode {
            return Ok(UpdateOutcome::Unchanged);
        }
        self.choices
            .overrides
            .hairpin
            .choose(&mode, &mut self.store)?;
        self.choices.settings.default_network.hairpin = mode;
        self.apply_hairpin_mode()?;
        let report = self.reconcile(now);
        tracing::info!(%mode, "hairpin mode of the default network changed");
        report.finished()?;
        Ok(UpdateOutcome::Updated)
    }

    /// Records the port setting of the hairpin mode in the attachments of the default network. The
    /// next reconciliation applies it.
    pub(crate) fn apply_hairpin_mode(&mut self) -> Result<(), StoreError> {
        let network = &self.choices.settings.default_network;
        let wanted = network.hairpin == HairpinMode::HairpinVeth;
        let others: Vec<_> = self
            .store
            .records()
            .values()
            .filter(|record| {
                let attachment = &record.attachment;
                attachment.key.network == network.name
                    && attachment.adopted.is_none()
                    && attachment.hairpin != wanted
            })
            .cloned()
            .collect();
        for mut record in others {
            record.attachment.hairpin = wanted;
            self.store.put(&record)?;
        }
        Ok(())
    }
}
