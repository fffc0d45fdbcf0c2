//! Overrides of the configuration at run time: pod CIDRs and hairpin mode of the default network,
//! and non-masquerade CIDRs.
//!
//! An override is stored together with the configured value that it replaces, as
//! `configured>override`. A restarted agent uses the override while its configuration has the same
//! value. A configuration with another value is newer and replaces the override.

use std::collections::BTreeSet;

use kernel::Kernel;
use model::{Cidr, HairpinMode, Network, RangeSet};
use planner::Plan;
use store::{Store, StoreError};

use crate::node::NodeState;
use crate::transaction::Transaction;
use crate::{Engine, EngineError, network};

const POD_CIDRS: &str = "pod-cidrs";
const HAIRPIN_MODE: &str = "hairpin-mode";
const NON_MASQUERADE: &str = "non-masquerade-cidrs";

/// Separates the configured value from the override in the store.
const SEPARATOR: char = '>';

/// Result of setting an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    /// The value has changed.
    Updated,
    /// The value was in effect already.
    Unchanged,
}

/// Returns the default network: the configuration with its overrides.
pub(crate) fn configured_or_override(configured: &Network, store: &Store) -> Network {
    let mut network = configured.clone();
    if let Some(chosen) = chosen(store, POD_CIDRS, &cidrs(&configured.ranges)) {
        network.ranges = ranges(chosen).unwrap_or(network.ranges);
    }
    let mode = configured.hairpin.to_string();
    if let Some(chosen) = chosen(store, HAIRPIN_MODE, &mode) {
        network.hairpin = chosen.parse().unwrap_or(network.hairpin);
    }
    network
}

/// Returns the non-masquerade CIDRs: the override if there is one, and otherwise the configured
/// ones.
pub(crate) fn non_masquerade_or_override(
    configured: &BTreeSet<Cidr>,
    store: &Store,
) -> BTreeSet<Cidr> {
    let text = prefixes(configured);
    let before = store.choice(NON_MASQUERADE);
    let chosen = before.and_then(|choice| choice.split_once(SEPARATOR));
    // Unlike the other overrides, an empty configured list is a value: it means that everything is
    // masqueraded.
    let items = chosen
        .filter(|(over, _)| *over == text)
        .map(|(_, chosen)| chosen.split(',').filter(|item| !item.is_empty()));
    items
        .map(|items| items.map(str::parse).collect::<Result<_, _>>())
        .and_then(Result::ok)
        .unwrap_or_else(|| configured.clone())
}

/// Returns prefixes as the store holds them: `10.0.0.0/8,fd00::/8`.
pub(crate) fn prefixes(prefixes: &BTreeSet<Cidr>) -> String {
    let texts: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
    texts.join(",")
}

fn chosen<'a>(store: &'a Store, name: &str, configured: &str) -> Option<&'a str> {
    let (over, chosen) = store.choice(name)?.split_once(SEPARATOR)?;
    (over == configured || configured.is_empty()).then_some(chosen)
}

fn store_override(
    store: &mut Store,
    name: &str,
    configured: &str,
    chosen: &str,
) -> Result<(), StoreError> {
    store.put_choice(name, &format!("{configured}{SEPARATOR}{chosen}"))
}

/// Returns the subnets of ranges as the store holds pod CIDRs: `10.1.0.0/24,fd00:1::/64`.
pub(crate) fn cidrs(ranges: &[RangeSet]) -> String {
    let subnets: Vec<String> = ranges
        .iter()
        .flat_map(RangeSet::ranges)
        .map(|range| range.subnet().to_string())
        .collect();
    subnets.join(",")
}

fn ranges(cidrs: &str) -> Option<Vec<RangeSet>> {
    cidrs
        .split(',')
        .map(|text| {
            let cidr: Cidr = text.parse().ok()?;
            RangeSet::of_cidr(cidr).ok()
        })
        .collect()
}

impl<K: Kernel> Engine<K> {
    /// Replaces the pod CIDRs of the default network. On a failure the old ones stay.
    ///
    /// The first pod CIDRs are always accepted. Later ones are refused while a pod has an address
    /// of the current ones (behaviours K11, K15).
    pub fn set_pod_cidrs(&mut self, ranges: Vec<RangeSet>) -> Result<UpdateOutcome, EngineError> {
        let before = self.settings.default_network.clone();
        if before.ranges == ranges {
            return Ok(UpdateOutcome::Unchanged);
        }
        self.admit_pod_cidrs(&ranges)?;
        let text = cidrs(&ranges);
        let wanted = Network {
            ranges,
            ..before.clone()
        };
        let others = self.store.networks().values();
        network::admit(&wanted, &wanted, others)?;
        store_override(&mut self.store, POD_CIDRS, &self.configured_cidrs, &text)?;
        self.settings.default_network = wanted.clone();
        let mut transaction = Transaction::default();
        let prepared = self.prepare_network(&wanted, &mut transaction);
        let outcome = prepared.and_then(|_| Ok(self.release_networks()?));
        if let Err(error) = outcome {
            self.restore_pod_cidrs(before, transaction);
            return Err(error);
        }
        tracing::info!(pod_cidrs = text, "pod CIDRs of the default network changed");
        Ok(UpdateOutcome::Updated)
    }

    fn admit_pod_cidrs(&self, wanted: &[RangeSet]) -> Result<(), EngineError> {
        let network = &self.settings.default_network;
        let used = self
            .store
            .records()
            .keys()
            .any(|key| key.network == network.name);
        if wanted.is_empty() || (used && !network.ranges.is_empty()) {
            let error = EngineError::PodCidrsInUse {
                kept: cidrs(&network.ranges),
                refused: cidrs(wanted),
            };
            tracing::warn!("{error}");
            return Err(error);
        }
        Ok(())
    }

    fn restore_pod_cidrs(&mut self, before: Network, transaction: Transaction) {
        for failure in transaction.roll_back(&mut self.kernel) {
            tracing::warn!(
                failure,
                "cannot undo a step of a failed change of the pod CIDRs"
            );
        }
        let text = cidrs(&before.ranges);
        self.node.ready.remove(&before.name);
        self.settings.default_network = before;
        let restored = store_override(&mut self.store, POD_CIDRS, &self.configured_cidrs, &text)
            .and_then(|()| self.release_networks());
        if let Err(error) = restored {
            tracing::error!(
                error = crate::error::chain(&error),
                "cannot restore the pod CIDRs of the default network"
            );
        }
    }

    /// Replaces the non-masquerade CIDRs. On a failure the old ones stay. Established flows keep
    /// their translation.
    pub fn set_non_masquerade(&mut self, prefixes: BTreeSet<Cidr>) -> Result<(), EngineError> {
        let before = self.settings.non_masquerade.clone();
        self.store_non_masquerade(&prefixes)?;
        self.settings.non_masquerade = prefixes;
        let intent = self.node_intent();
        let mut transaction = Transaction::default();
        let apply = |kernel: &mut K, plan: &Plan| transaction.apply(kernel, plan);
        let (kernel, store) = (&mut self.kernel, &mut self.store);
        match self
            .node_reconciler
            .reconcile(kernel, &intent, store, apply)
        {
            Ok(reconciled) => {
                self.node = NodeState::of(&intent, reconciled);
                Ok(())
            }
            Err(error) => {
                for failure in transaction.roll_back(&mut self.kernel) {
                    tracing::warn!(
                        failure,
                        "cannot undo a step of a failed change of the non-masquerade CIDRs"
                    );
                }
                self.store_non_masquerade(&before)?;
                self.settings.non_masquerade = before;
                Err(error)
            }
        }
    }

    fn store_non_masquerade(&mut self, prefixes: &BTreeSet<Cidr>) -> Result<(), StoreError> {
        let text = self::prefixes(prefixes);
        let configured = &self.configured_non_masquerade;
        store_override(&mut self.store, NON_MASQUERADE, configured, &text)
    }

    /// Sets the hairpin mode of the default network, on its bridge and on the ports of its pods.
    pub fn set_hairpin_mode(
        &mut self,
        mode: HairpinMode,
        now: u64,
    ) -> Result<UpdateOutcome, EngineError> {
        if self.settings.default_network.hairpin == mode {
            return Ok(UpdateOutcome::Unchanged);
        }
        let chosen = mode.to_string();
        store_override(
            &mut self.store,
            HAIRPIN_MODE,
            &self.configured_hairpin,
            &chosen,
        )?;
        self.settings.default_network.hairpin = mode;
        self.apply_hairpin_mode()?;
        let report = self.reconcile(now);
        tracing::info!(mode = chosen, "hairpin mode of the default network changed");
        report.finished()?;
        Ok(UpdateOutcome::Updated)
    }

    /// Records the port setting of the hairpin mode in the attachments of the default network. The
    /// next reconciliation applies it.
    pub(crate) fn apply_hairpin_mode(&mut self) -> Result<(), StoreError> {
        let network = &self.settings.default_network;
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
