//! Keeps the forwarding rules in other software's filter tables in step with networks, attachments
//! and the tables themselves.
//!
//! A reconciliation reads the tables. A request that changes an attachment writes only where the
//! last reconciliation has found a default that drops.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kernel::Kernel;
use model::AttachmentKey;
use planner::{
    DefaultState, DroppingDefault, FilterBackend, FilterFamily, FilterTable, ForwardingIntent,
    ForwardingPlan, ForwardingStep, Scope, Step,
};
use store::StoreError;

use crate::reconcile::Item;
use crate::{Engine, EngineError, GcScope};

/// Subject of report items about forwarding rules.
pub const FORWARDING: &str = "forwarding";

/// Rounds of planning. Other software may change a table between the observation and the step.
const MAX_ROUNDS: usize = 5;

/// Prefixes of names in the store: addresses of an interface of another plugin with `firewall`; an
/// administrator's chain; a chain that was created for it.
const FIREWALLED: &str = "firewall/";
const ADMIN: &str = "firewall-admin/";
const CREATED: &str = "firewall-created/";

/// Rules that are in force, and the defaults that drop.
#[derive(Debug, Default)]
pub(crate) struct Forwarding {
    /// Intent of the last plan.
    intent: ForwardingIntent,
    /// Whether a table has rules of ours.
    has_rules: bool,
    /// Defaults that drop, with the state of pods' packets there.
    pub(crate) defaults: BTreeSet<DroppingDefault>,
}

/// Request of the `firewall` plugin for one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallUpdate {
    /// Key of the interface in its network.
    pub key: AttachmentKey,
    /// Keys under which the interface may be recorded, if the agent made it.
    pub keys: Vec<AttachmentKey>,
    /// Addresses of the interface.
    pub addresses: BTreeSet<IpAddr>,
    /// Chain of the administrator.
    pub admin_chain: String,
}

impl<K: Kernel> Engine<K> {
    /// Brings the rules of all tables in step. Failures are items, and reported as dropped packets.
    pub(crate) fn reconcile_forwarding(&mut self, items: &mut Vec<Item>) {
        let intent = self.forwarding_intent();
        match self.apply_forwarding(&intent, items) {
            Ok(plan) => {
                self.forwarding = Forwarding {
                    intent,
                    has_rules: plan.has_rules,
                    defaults: plan.defaults,
                };
            }
            Err(error) => items.push(Item::failed(FORWARDING, crate::error::chain(&error))),
        }
    }

    /// Brings the rules in step with a changed attachment, if there are any. A failure is logged;
    /// the next reconciliation reports it.
    pub(crate) fn sync_forwarding(&mut self) {
        // The first chain of an administrator needs rules where there are none yet.
        let is_needed = self.forwarding.has_rules || self.has_admin_chains();
        if !is_needed || self.forwarding_intent() == self.forwarding.intent {
            return;
        }
        let mut items = Vec::new();
        self.reconcile_forwarding(&mut items);
        for item in items.iter().filter(|item| item.has_failed()) {
            tracing::error!(
                error = item.message,
                "cannot write forwarding rules; the next reconciliation tries again"
            );
        }
    }

    fn forwarding_intent(&self) -> ForwardingIntent {
        ForwardingIntent::new(
            self.settings.forwarding,
            &self.node.pod_sources,
            self.store.records(),
            &self.firewalled(),
            self.admin_chains(),
        )
    }

    /// Plans and executes until nothing differs, or a table refuses its step.
    fn apply_forwarding(
        &mut self,
        intent: &ForwardingIntent,
        items: &mut Vec<Item>,
    ) -> Result<ForwardingPlan, EngineError> {
        let mut refused: Vec<(FilterTable, String)> = Vec::new();
        for round in 0..MAX_ROUNDS {
            let observed = self.kernel.observe(&Scope::Forwarding)?.forwarding;
            let mut plan = planner::plan_forwarding(intent, &observed);
            let is_last = round + 1 == MAX_ROUNDS;
            plan.steps
                .retain(|step| refused.iter().all(|(table, _)| *table != step.table));
            if plan.steps.is_empty() || is_last {
                mark_refused(&mut plan, &refused);
                return Ok(plan);
            }
            for step in plan.steps {
                self.record_created(&step)?;
                match self.execute_forwarding(&step) {
                    Ok(()) => items.push(Item::repaired(
                        FORWARDING.to_owned(),
                        step.to_string(),
                        Vec::new(),
                    )),
                    // Planned again in the next round.
                    Err(error) if is_outdated(&error) => {}
                    Err(error) => {
                        let message = format!("failed to {step}: {}", crate::error::chain(&error));
                        refused.push((step.table.clone(), crate::error::chain(&error)));
                        items.push(Item::failed(FORWARDING, message));
                    }
                }
            }
        }
        Ok(ForwardingPlan::default())
    }

    fn execute_forwarding(&mut self, step: &ForwardingStep) -> Result<(), kernel::StepError> {
        self.kernel.execute(&Step::Forwarding(step.clone()))
    }

    /// Removes all rules of ours, and created chains that are empty; returns a line for each table.
    pub(crate) fn remove_forwarding(&mut self) -> Result<Vec<String>, EngineError> {
        let created = self.created();
        let mut removed = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let observed = self.kernel.observe(&Scope::Forwarding)?.forwarding;
            let steps = planner::plan_forwarding_removal(&observed, &created);
            if steps.is_empty() {
                return Ok(removed);
            }
            for step in steps {
                match self.execute_forwarding(&step) {
                    Ok(()) => removed.push(step.to_string()),
                    Err(error) => tracing::debug!(
                        error = crate::error::chain(&error),
                        "a filter table has changed: removing the forwarding rules again"
                    ),
                }
            }
        }
        Err(EngineError::Unfinished(
            "the filter tables change all the time: forwarding rules are left".to_owned(),
        ))
    }

    /// Records an interface with `firewall` in its configuration, and its administrator's chain. An
    /// interface of ours is accepted by its bridge.
    pub fn add_firewall(&mut self, update: &FirewallUpdate) -> Result<(), EngineError> {
        let is_ours = update.keys.iter().any(|key| {
            let record = self.store.get(key);
            record.is_some_and(|record| record.attachment.adopted.is_none())
        });
        for family in update.addresses.iter().copied().map(FilterFamily::of) {
            let name = format!("{ADMIN}{}/{}", family_name(family), update.admin_chain);
            if self.store.choice(&name).is_none() {
                self.store.put_choice(&name, "")?;
            }
        }
        if !is_ours {
            let addresses = update.addresses.iter().map(ToString::to_string);
            let addresses = addresses.collect::<Vec<_>>().join(" ");
            self.store
                .put_choice(&format!("{FIREWALLED}{}", update.key), &addresses)?;
        }
        Ok(())
    }

    /// Removes the record of an interface with `firewall` in its configuration.
    pub(crate) fn remove_firewall(&mut self, keys: &[AttachmentKey]) -> Result<(), StoreError> {
        keys.iter()
            .try_for_each(|key| self.store.remove_choice(&format!("{FIREWALLED}{key}")))
    }

    /// Removes those records of a forced GC that its list does not contain. Others may be of live
    /// pods.
    pub(crate) fn collect_firewall(&mut self, scope: &GcScope) -> Result<(), StoreError> {
        let is_valid = |container: &str, ifname: &str| {
            let mut valid = scope.valid.iter();
            valid.any(|(id, name)| id.to_string() == container && name.as_str() == ifname)
        };
        let is_stale = |name: &str| {
            let mut parts = name.split('/');
            let parts = [parts.next(), parts.next(), parts.next()];
            matches!(parts, [Some(network), Some(container), Some(ifname)]
                if network == scope.network.to_string() && !is_valid(container, ifname))
        };
        let stale: Vec<String> = self
            .choices(FIREWALLED)
            .filter(|(name, _)| scope.forced && is_stale(name))
            .map(|(name, _)| format!("{FIREWALLED}{name}"))
            .collect();
        stale
            .iter()
            .try_for_each(|name| self.store.remove_choice(name))
    }

    /// Removes all records of the plugin, which are of an earlier boot.
    pub(crate) fn forget_firewall(&mut self) -> Result<(), StoreError> {
        for prefix in [FIREWALLED, ADMIN, CREATED] {
            let names = self
                .choices(prefix)
                .map(|(name, _)| format!("{prefix}{name}"));
            for name in names.collect::<Vec<_>>() {
                self.store.remove_choice(&name)?;
            }
        }
        Ok(())
    }

    fn choices(&self, prefix: &'static str) -> impl Iterator<Item = (&str, &str)> {
        let all = self.store.contents().choices.iter();
        all.filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, value.as_str())))
    }

    fn firewalled(&self) -> BTreeSet<IpAddr> {
        self.choices(FIREWALLED)
            .flat_map(|(_, addresses)| addresses.split(' '))
            .filter_map(|address| address.parse().ok())
            .collect()
    }

    fn has_admin_chains(&self) -> bool {
        self.choices(ADMIN).next().is_some()
    }

    fn admin_chains(&self) -> BTreeSet<(FilterFamily, String)> {
        self.choices(ADMIN)
            .filter_map(|(name, _)| {
                let (family, chain) = name.split_once('/')?;
                Some((family_of(family)?, chain.to_owned()))
            })
            .collect()
    }

    /// Records the chains that a step is about to create.
    fn record_created(&mut self, step: &ForwardingStep) -> Result<(), StoreError> {
        let base = step.creates_base.then(|| "FORWARD".to_owned());
        let backend = match step.table.backend {
            FilterBackend::Nftables => "nft",
            FilterBackend::Xtables => "legacy",
        };
        for chain in step.creates.iter().cloned().chain(base) {
            let family = family_name(step.table.family);
            let name = format!("{CREATED}{backend}/{family}/{chain}");
            self.store.put_choice(&name, "")?;
        }
        Ok(())
    }

    fn created(&self) -> BTreeSet<(FilterTable, String)> {
        self.choices(CREATED)
            .filter_map(|(name, _)| {
                let mut parts = name.splitn(3, '/');
                let backend = match parts.next()? {
                    "nft" => FilterBackend::Nftables,
                    _ => FilterBackend::Xtables,
                };
                let table = FilterTable {
                    backend,
                    ..FilterTable::iptables(family_of(parts.next()?)?)
                };
                Some((table, parts.next()?.to_owned()))
            })
            .collect()
    }
}

/// Defaults of a table that has refused its rules drop pods' packets.
fn mark_refused(plan: &mut ForwardingPlan, refused: &[(FilterTable, String)]) {
    let defaults = std::mem::take(&mut plan.defaults);
    plan.defaults = defaults
        .into_iter()
        .map(|mut default| {
            let table = refused
                .iter()
                .find(|(table, _)| default.what.ends_with(&table.to_string()));
            if let Some((_, error)) = table {
                default.state = DefaultState::Drops(format!("rules cannot be added: {error}"));
            }
            default
        })
        .collect();
}

fn is_outdated(error: &kernel::StepError) -> bool {
    error.source.kind() == std::io::ErrorKind::WouldBlock
}

fn family_name(family: FilterFamily) -> &'static str {
    if family == FilterFamily::Ip6 {
        "ip6"
    } else {
        "ip"
    }
}

fn family_of(name: &str) -> Option<FilterFamily> {
    match name {
        "ip" => Some(FilterFamily::Ip),
        "ip6" => Some(FilterFamily::Ip6),
        _ => None,
    }
}
