//! Keeps the forwarding rules in other software's filter tables in step with networks, attachments
//! and the tables themselves.
//!
//! A reconciliation reads the tables. A request that changes an attachment writes only where the
//! last reconciliation has found a default that drops.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use kernel::Kernel;
use model::AttachmentKey;
use planner::{ForwardingIntent, ForwardingPlan};
use steps::{FilterBackend, FilterFamily, FilterTable, ForwardingQuery, ForwardingStep, Step};
use store::StoreError;

use crate::forwarding_state::Forwarding;
use crate::report::Item;
use crate::{Engine, EngineError, GcScope};

/// Subject of report items about forwarding rules.
pub const FORWARDING: &str = "forwarding";

/// Rounds of planning. Other software may change a table between the observation and the step, and
/// a step for a table of nftables outdates those for the others.
const MAX_ROUNDS: usize = 12;

/// Prefixes of names in the store: an interface with `firewall` in its configuration, with
/// [`Firewalled`] as value; a chain that was created for an administrator.
const FIREWALLED: &str = "firewall/";
const CREATED: &str = "firewall-created/";

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

/// An interface with `firewall` in its configuration, as the store has it: words, the addresses
/// last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Firewalled {
    /// Chain of the administrator.
    admin_chain: String,
    /// Key of the attachment, if the agent made the interface; a word `-` where it did not.
    recorded: Option<String>,
    addresses: BTreeSet<IpAddr>,
}

impl fmt::Display for Firewalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recorded = self.recorded.as_deref().unwrap_or("-");
        write!(f, "{} {recorded}", self.admin_chain)?;
        self.addresses
            .iter()
            .try_for_each(|address| write!(f, " {address}"))
    }
}

impl FromStr for Firewalled {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split(' ').map(str::to_owned);
        let missing = || format!("{text:?} has too few words");
        let admin_chain = words.next().ok_or_else(missing)?;
        let recorded = words.next().ok_or_else(missing)?;
        let addresses =
            words.map(|word| word.parse().map_err(|_| format!("{word:?} is no address")));
        Ok(Self {
            admin_chain,
            recorded: Some(recorded).filter(|key| key != "-"),
            addresses: addresses.collect::<Result<_, String>>()?,
        })
    }
}

impl<K: Kernel> Engine<K> {
    /// Brings the rules of all tables in step. Failures are items, and reported as dropped packets.
    pub(crate) fn reconcile_forwarding(&mut self, items: &mut Vec<Item>) {
        let intent = self.forwarding_intent();
        match self.apply_forwarding(&intent, items) {
            Ok(plan) => {
                self.upkeep.forwarding = Forwarding {
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
        let is_needed =
            self.upkeep.forwarding.has_rules || self.choices(FIREWALLED).next().is_some();
        if !is_needed || self.forwarding_intent() == self.upkeep.forwarding.intent {
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
        let firewalled = self.firewalled();
        let foreign = firewalled.iter().filter(|one| one.recorded.is_none());
        let admin_chains = firewalled.iter().flat_map(|one| {
            let families = one.addresses.iter().copied().map(FilterFamily::of);
            families.map(|family| (family, one.admin_chain.clone()))
        });
        let mut intent = ForwardingIntent::new(
            self.choices.settings.forwarding,
            &self.node.pod_sources,
            self.store.records(),
            &foreign.flat_map(|one| one.addresses.clone()).collect(),
            admin_chains.collect(),
        );
        intent.created = self.created();
        intent
    }

    /// Plans and executes until nothing differs. A table that refuses its step is left.
    fn apply_forwarding(
        &mut self,
        intent: &ForwardingIntent,
        items: &mut Vec<Item>,
    ) -> Result<ForwardingPlan, EngineError> {
        let mut intent = intent.clone();
        for round in 0..MAX_ROUNDS {
            let observed = self.kernel.observe(&ForwardingQuery)?;
            let plan = planner::plan_forwarding(&intent, &observed);
            if plan.steps.is_empty() {
                return Ok(plan);
            }
            for step in plan.steps {
                self.record_created(&step)?;
                match self.execute_forwarding(&step) {
                    Ok(()) => {
                        self.forget_created(&step)?;
                        let text = step.to_string();
                        items.push(Item::repaired(FORWARDING.to_owned(), text, Vec::new()));
                    }
                    // Planned again in the next round.
                    Err(error) if is_outdated(&error) && round + 1 < MAX_ROUNDS => {}
                    // Reported with the default: a table may belong to its owner alone.
                    Err(error) => {
                        tracing::debug!(error = %error.source, "cannot {step}");
                        intent.refused.insert(step.table, error.source.to_string());
                    }
                }
            }
        }
        let observed = self.kernel.observe(&ForwardingQuery)?;
        Ok(planner::plan_forwarding(&intent, &observed))
    }

    fn execute_forwarding(&mut self, step: &ForwardingStep) -> Result<(), kernel::StepError> {
        self.kernel.execute(&Step::Forwarding(step.clone()))
    }

    /// Removes all rules of ours, and created chains that are empty; returns a line for each table.
    pub(crate) fn remove_forwarding(&mut self) -> Result<Vec<String>, EngineError> {
        let created = self.created();
        let mut removed = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let observed = self.kernel.observe(&ForwardingQuery)?;
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
        let ours = update.keys.iter().find(|key| {
            let record = self.store.get(key);
            record.is_some_and(|record| record.attachment.adopted.is_none())
        });
        let firewalled = Firewalled {
            admin_chain: update.admin_chain.clone(),
            recorded: ours.map(ToString::to_string),
            addresses: update.addresses.clone(),
        };
        let name = format!("{FIREWALLED}{}", update.key);
        Ok(self.store.put_choice(&name, &firewalled.to_string())?)
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
        for prefix in [FIREWALLED, CREATED] {
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

    /// Returns the interfaces with `firewall` in their configuration. Those of attachments that are
    /// gone do not count.
    fn firewalled(&self) -> Vec<Firewalled> {
        let keys: BTreeSet<String> = self
            .store
            .records()
            .keys()
            .map(ToString::to_string)
            .collect();
        self.choices(FIREWALLED)
            .filter_map(|(_, value)| value.parse().ok())
            .filter(|one: &Firewalled| one.recorded.as_ref().is_none_or(|key| keys.contains(key)))
            .collect()
    }

    /// Records the chains that a step is about to create.
    fn record_created(&mut self, step: &ForwardingStep) -> Result<(), StoreError> {
        let base = step.creates_base.then(|| "FORWARD".to_owned());
        for chain in step.creates.iter().cloned().chain(base) {
            self.store
                .put_choice(&created_name(&step.table, &chain), "")?;
        }
        Ok(())
    }

    /// Removes the records of the chains that a step has deleted.
    fn forget_created(&mut self, step: &ForwardingStep) -> Result<(), StoreError> {
        let chains = step.deletes_created.iter();
        let mut names = chains.map(|chain| created_name(&step.table, chain));
        names.try_for_each(|name| self.store.remove_choice(&name))
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

fn is_outdated(error: &kernel::StepError) -> bool {
    error.source.kind() == std::io::ErrorKind::WouldBlock
}

fn created_name(table: &FilterTable, chain: &str) -> String {
    let backend = match table.backend {
        FilterBackend::Nftables => "nft",
        FilterBackend::Xtables => "legacy",
    };
    format!("{CREATED}{backend}/{}/{chain}", family_name(table.family))
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
