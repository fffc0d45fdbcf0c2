//! What may be chosen while the agent runs: the pod CIDRs and the hairpin mode of its own network, and the prefixes to
//! which pods keep their own addresses.
//!
//! A choice is remembered together with what was configured when it was made. The next agent goes by it as long as its
//! configuration says the same; another configuration is a later word, and wins.

use std::collections::BTreeSet;

use kernel::Kernel;
use model::{Cidr, HairpinMode, Network, RangeSet};
use planner::Plan;
use store::{Store, StoreError};

use crate::node::Node;
use crate::transaction::Done;
use crate::{Engine, EngineError, network};

const POD_CIDRS: &str = "pod-cidrs";
const HAIRPIN_MODE: &str = "hairpin-mode";
const NON_MASQUERADE: &str = "non-masquerade-cidrs";

/// Between what was configured and what was chosen.
const OVER: char = '>';

/// What came of a wish for other pod CIDRs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// They are as wished from now on.
    Done,
    /// They were so already.
    Unchanged,
}

/// The network as configured, with what was chosen since.
pub(crate) fn recall(configured: &Network, store: &Store) -> Network {
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

/// The prefixes that are not masqueraded as configured, or as chosen since.
pub(crate) fn recall_non_masquerade(configured: &BTreeSet<Cidr>, store: &Store) -> BTreeSet<Cidr> {
    let text = prefixes(configured);
    let before = store.choice(NON_MASQUERADE);
    let chosen = before.and_then(|choice| choice.split_once(OVER));
    // An empty list is a configuration like any other here: it means that all is masqueraded.
    let items = chosen
        .filter(|(over, _)| *over == text)
        .map(|(_, chosen)| chosen.split(',').filter(|item| !item.is_empty()));
    items
        .map(|items| items.map(str::parse).collect::<Result<_, _>>())
        .and_then(Result::ok)
        .unwrap_or_else(|| configured.clone())
}

/// Prefixes in one word.
pub(crate) fn prefixes(prefixes: &BTreeSet<Cidr>) -> String {
    let texts: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
    texts.join(",")
}

fn chosen<'a>(store: &'a Store, name: &str, configured: &str) -> Option<&'a str> {
    let (over, chosen) = store.choice(name)?.split_once(OVER)?;
    (over == configured || configured.is_empty()).then_some(chosen)
}

fn remember(
    store: &mut Store,
    name: &str,
    configured: &str,
    chosen: &str,
) -> Result<(), StoreError> {
    store.put_choice(name, &format!("{configured}{OVER}{chosen}"))
}

/// The subnets of ranges that are whole pod CIDRs, in one word.
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
    /// Gives the agent's own network other pod CIDRs, wholly or not at all. The first ones are taken; later ones as
    /// long as no pod has an address of those before (behaviours K11, K15).
    pub fn set_pod_cidrs(&mut self, ranges: Vec<RangeSet>) -> Result<Update, EngineError> {
        let before = self.settings.default_network.clone();
        if before.ranges == ranges {
            return Ok(Update::Unchanged);
        }
        self.admit_pod_cidrs(&ranges)?;
        let text = cidrs(&ranges);
        let wanted = Network {
            ranges,
            ..before.clone()
        };
        let others = self.store.networks().values();
        network::admit(&wanted, &wanted, others)?;
        remember(&mut self.store, POD_CIDRS, &self.configured_cidrs, &text)?;
        self.settings.default_network = wanted.clone();
        let mut done = Done::default();
        let prepared = self.prepare_network(&wanted, &mut done);
        let outcome = prepared.and_then(|_| Ok(self.release_networks()?));
        if let Err(error) = outcome {
            self.take_back(before, done);
            return Err(error);
        }
        tracing::info!(pod_cidrs = text, "pods get addresses of these from now on");
        Ok(Update::Done)
    }

    fn admit_pod_cidrs(&self, wanted: &[RangeSet]) -> Result<(), EngineError> {
        let network = &self.settings.default_network;
        let used = self
            .store
            .records()
            .keys()
            .any(|key| key.network == network.name);
        if wanted.is_empty() || (used && !network.ranges.is_empty()) {
            let error = EngineError::PodCidrsKept {
                kept: cidrs(&network.ranges),
                refused: cidrs(wanted),
            };
            tracing::warn!("{error}");
            return Err(error);
        }
        Ok(())
    }

    fn take_back(&mut self, before: Network, done: Done) {
        for failure in done.roll_back(&mut self.kernel) {
            tracing::warn!("cannot undo: {failure}");
        }
        let text = cidrs(&before.ranges);
        self.node.ready.remove(&before.name);
        self.settings.default_network = before;
        let forgotten = remember(&mut self.store, POD_CIDRS, &self.configured_cidrs, &text)
            .and_then(|()| self.release_networks());
        if let Err(error) = forgotten {
            tracing::error!(
                error = crate::error::chain(&error),
                "cannot forget the pod CIDRs"
            );
        }
    }

    /// Sets the prefixes to which pods keep their own address, wholly or not at all. Flows keep their mapping.
    pub fn set_non_masquerade(&mut self, prefixes: BTreeSet<Cidr>) -> Result<(), EngineError> {
        let before = self.settings.non_masquerade.clone();
        self.remember_non_masquerade(&prefixes)?;
        self.settings.non_masquerade = prefixes;
        let intent = self.node_intent();
        let mut done = Done::default();
        let apply = |kernel: &mut K, plan: &Plan| done.apply(kernel, plan);
        let (kernel, store) = (&mut self.kernel, &mut self.store);
        match self.surveyor.settle(kernel, &intent, store, apply) {
            Ok(settled) => {
                self.node = Node::of(&intent, settled);
                Ok(())
            }
            Err(error) => {
                for failure in done.roll_back(&mut self.kernel) {
                    tracing::warn!("cannot undo: {failure}");
                }
                self.remember_non_masquerade(&before)?;
                self.settings.non_masquerade = before;
                Err(error)
            }
        }
    }

    fn remember_non_masquerade(&mut self, prefixes: &BTreeSet<Cidr>) -> Result<(), StoreError> {
        let text = self::prefixes(prefixes);
        let configured = &self.configured_non_masquerade;
        remember(&mut self.store, NON_MASQUERADE, configured, &text)
    }

    /// How pods of the agent's own network reach themselves from now on. The bridge and its ports follow.
    pub fn set_hairpin_mode(&mut self, mode: HairpinMode, now: u64) -> Result<Update, EngineError> {
        if self.settings.default_network.hairpin == mode {
            return Ok(Update::Unchanged);
        }
        let chosen = mode.to_string();
        remember(
            &mut self.store,
            HAIRPIN_MODE,
            &self.configured_hairpin,
            &chosen,
        )?;
        self.settings.default_network.hairpin = mode;
        self.follow_hairpin_mode()?;
        let report = self.reconcile(now);
        tracing::info!(mode = chosen, "hairpin mode");
        report.finished()?;
        Ok(Update::Done)
    }

    /// Attachments of the agent's own network are to have the ports that its mode demands.
    pub(crate) fn follow_hairpin_mode(&mut self) -> Result<(), StoreError> {
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
