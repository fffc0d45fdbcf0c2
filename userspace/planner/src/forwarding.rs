//! Forwarding of pods' packets past the *default* of other software's filter tables.
//!
//! A table whose chain of the forward hook drops whatever no rule has accepted would drop packets
//! of pods. There this module plans accept rules of our own, in chains of our own, behind one jump
//! right before the default takes effect: all explicit rules are evaluated first and obeyed. Tables
//! without such a default get no rules. Chains of the `firewall` plugin's administrator are
//! evaluated first in the forward hook, as with the reference plugin.

mod intent;
mod probe;
mod rules;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use steps::{
    ADMIN_CHAIN, AcceptRule, FORWARD_CHAIN, FilterFamily, FilterHook, FilterTable, ForwardTables,
    ForwardingStep, Place, TableState,
};

pub use intent::{ForwardingIntent, PodSources};
pub use probe::Probe;
pub use rules::accept_rules;

use probe::Fate;
use walk::DefaultDrop;

/// Whether pods' packets are carried past dropping defaults (`--forwarding`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardingMode {
    /// By accept rules of our own.
    #[default]
    Auto,
    /// They are left to the rules of other software.
    Leave,
}

impl ForwardingMode {
    /// Returns the value as the configuration spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Leave => "leave",
        }
    }
}

impl fmt::Display for ForwardingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ForwardingMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Auto, Self::Leave]
            .into_iter()
            .find(|mode| mode.name() == text)
            .ok_or_else(|| format!("{text:?} is none of auto, leave"))
    }
}

/// A default that drops pods' packets, and what is done about it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DroppingDefault {
    /// The default, for people: `policy DROP of chain FORWARD of table ip filter`.
    pub what: String,
    /// State of pods' packets there.
    pub state: DefaultState,
}

/// State of pods' packets at a dropping default.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DefaultState {
    /// Rules of ours accept them before it.
    Carried,
    /// Rules of other software may accept them before it; none of ours does.
    Left,
    /// It drops them, for this reason.
    Drops(String),
}

/// Plan for the filter tables, and the defaults that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardingPlan {
    /// Changes, one for each table that differs.
    pub steps: Vec<ForwardingStep>,
    /// Defaults that drop, whether or not pods' packets pass them.
    pub defaults: BTreeSet<DroppingDefault>,
    /// Whether rules of ours depend on addresses and ports of pods: they must be planned again when
    /// an attachment changes.
    pub has_rules: bool,
}

/// Plans the forwarding rules of all tables. A second plan after the first one is empty.
pub fn plan_forwarding(intent: &ForwardingIntent, observed: &ForwardTables) -> ForwardingPlan {
    let mut plan = ForwardingPlan::default();
    let mut tables = observed.tables.clone();
    if observed.has_nftables {
        add_admin_tables(intent, &mut tables);
    }
    for (table, state) in &tables {
        let defaults = walk::defaults(state);
        let mut accepts = Vec::new();
        for default in defaults.iter().filter(|_| concerns_pods(intent, table)) {
            let (place, found) = judge(intent, table, state, default);
            accepts.extend(place.map(|place| (FORWARD_CHAIN, place)));
            plan.defaults.extend(found);
        }
        let wanted = Wanted {
            jumps: admin_jumps(intent, table, state).chain(accepts).collect(),
            rules: rules_of(intent, table),
            admin: admin_of(intent, table),
            created: created_in(intent, table),
        };
        plan.has_rules |= !wanted.jumps.is_empty();
        let step = step(table, state, &wanted);
        plan.steps
            .extend(step.filter(|_| !intent.refused.contains_key(table)));
    }
    plan
}

/// Plans the removal of everything that is ours. `created` are chains that earlier steps have
/// created; they are deleted where they are empty.
pub fn plan_forwarding_removal(
    observed: &ForwardTables,
    created: &BTreeSet<(FilterTable, String)>,
) -> Vec<ForwardingStep> {
    let nothing = ForwardingIntent {
        created: created.clone(),
        ..ForwardingIntent::default()
    };
    plan_forwarding(&nothing, observed).steps
}

/// What a table is to have of ours.
#[derive(Default)]
struct Wanted {
    jumps: Vec<(&'static str, Place)>,
    rules: Vec<AcceptRule>,
    admin: BTreeSet<String>,
    created: BTreeSet<String>,
}

impl Wanted {
    fn has(&self, chain: &str) -> bool {
        self.jumps.iter().any(|(own, _)| *own == chain)
    }

    fn rules(&self, chain: &str) -> Vec<AcceptRule> {
        if chain == ADMIN_CHAIN {
            self.admin.iter().cloned().map(AcceptRule::Admin).collect()
        } else {
            self.rules.clone()
        }
    }
}

fn unchanged(table: &FilterTable, state: &TableState) -> ForwardingStep {
    ForwardingStep {
        table: table.clone(),
        generation: state.generation,
        stale_jumps: Vec::new(),
        creates_base: false,
        creates: BTreeSet::new(),
        fills: BTreeMap::new(),
        jumps: Vec::new(),
        deletes: BTreeSet::new(),
        deletes_created: BTreeSet::new(),
    }
}

/// Returns the change from the table's state to what is wanted; `None` where nothing differs.
fn step(table: &FilterTable, state: &TableState, wanted: &Wanted) -> Option<ForwardingStep> {
    let mut step = unchanged(table, state);
    step.creates_base = state.base.is_empty() && !wanted.jumps.is_empty();
    let present = state.own_jumps();
    for own in [ADMIN_CHAIN, FORWARD_CHAIN] {
        let places: Vec<&Place> = wanted.jumps_to(own).collect();
        let jumps: Vec<_> = present.iter().filter(|jump| jump.to == own).collect();
        let in_place = jumps.len() == places.len()
            && jumps
                .iter()
                .all(|jump| places.iter().any(|place| state.is_at(jump, place)));
        if !in_place {
            let old = jumps.iter().map(|jump| (jump.chain.clone(), jump.handle));
            step.stale_jumps.extend(old);
            step.jumps
                .extend(places.into_iter().map(|place| (own, place.clone())));
        }
        let rules = wanted.rules(own);
        match (wanted.has(own), state.comments(own)) {
            (false, Some(_)) => drop(step.deletes.insert(own)),
            (true, present) if present != Some(texts(&rules)) => {
                drop(step.fills.insert(own, rules));
            }
            _ => {}
        }
    }
    if wanted.has(ADMIN_CHAIN) {
        let missing = wanted
            .admin
            .iter()
            .filter(|chain| !state.rules.contains_key(*chain));
        step.creates = missing.cloned().collect();
    }
    let is_needed = |chain: &String| {
        wanted.admin.contains(chain) || wanted.jumps.iter().any(|(_, place)| place.chain() == chain)
    };
    let unneeded = wanted.created.iter().filter(|chain| !is_needed(chain));
    step.deletes_created = unneeded
        .filter(|chain| state.is_unused(chain))
        .cloned()
        .collect();
    (step != unchanged(table, state)).then_some(step)
}

impl Wanted {
    fn jumps_to(&self, own: &str) -> impl Iterator<Item = &Place> {
        self.jumps
            .iter()
            .filter(move |(to, _)| *to == own)
            .map(|(_, place)| place)
    }
}

fn texts(rules: &[AcceptRule]) -> Vec<String> {
    rules.iter().map(ToString::to_string).collect()
}

/// Whether a pod has addresses of the families that the table filters.
fn concerns_pods(intent: &ForwardingIntent, table: &FilterTable) -> bool {
    let mut families = table.family.addresses().iter();
    families.any(|family| intent.families.contains(family))
}

/// Returns where our jump belongs, and what to report.
fn judge(
    intent: &ForwardingIntent,
    table: &FilterTable,
    state: &TableState,
    default: &DefaultDrop,
) -> (Option<Place>, Option<DroppingDefault>) {
    let what = format!("{} of {table}", default.what);
    let report = |state| {
        Some(DroppingDefault {
            what: what.clone(),
            state,
        })
    };
    let is_carried = table.family != FilterFamily::Bridge && default.hook == FilterHook::Forward;
    let refused = intent.refused.get(table);
    let place = default
        .place
        .clone()
        .filter(|_| is_carried && refused.is_none());
    if let (ForwardingMode::Auto, Some(place)) = (intent.mode, place) {
        return (Some(place), report(DefaultState::Carried));
    }
    let refused = refused.map(|error| {
        format!("it refuses rules ({error}): accept the pods' packets with the tool of its owner")
    });
    let why = if let Some(refused) = &refused {
        refused
    } else if intent.mode == ForwardingMode::Leave && default.place.is_some() && is_carried {
        "forwarding is \"leave\": set it to \"auto\", or accept the pods' packets in a rule"
    } else if default.place.is_none() {
        "explicit rules jump to the same chain: accept the pods' packets in a rule before it"
    } else {
        "rules are added to chains of the forward hook only: accept the pods' packets in a rule"
    };
    let mut fates = intent
        .probes
        .iter()
        .filter(|probe| table.family.addresses().contains(&probe.family))
        .map(|probe| {
            let mut probe = probe.clone();
            probe.is_bridged = table.family == FilterFamily::Bridge;
            probe::fate(state, &default.base, &probe)
        });
    // Sure only where no rule could accept the packet.
    let drops = fates.any(|fate| fate == Fate::Dropped);
    let reported = if drops {
        report(DefaultState::Drops(why.to_owned()))
    } else {
        report(DefaultState::Left)
    };
    (None, reported)
}

/// Returns the jumps to the administrator's chains: first in each base chain of the forward hook of
/// the filter tables of iptables.
fn admin_jumps<'a>(
    intent: &ForwardingIntent,
    table: &FilterTable,
    state: &'a TableState,
) -> impl Iterator<Item = (&'static str, Place)> + use<'a> {
    let any = !admin_of(intent, table).is_empty();
    let existing = state
        .base
        .iter()
        .filter(|base| base.name == "FORWARD" && base.hook == FilterHook::Forward)
        .map(|base| base.name.clone());
    let created = state.base.is_empty().then(|| "FORWARD".to_owned());
    let chains = existing.chain(created).filter(move |_| any);
    chains.map(|chain| (ADMIN_CHAIN, Place::First { chain }))
}

fn admin_of(intent: &ForwardingIntent, table: &FilterTable) -> BTreeSet<String> {
    if !table.is_iptables() || intent.refused.contains_key(table) {
        return BTreeSet::new();
    }
    intent
        .admin_chains
        .iter()
        .filter(|(family, _)| *family == table.family)
        .map(|(_, chain)| chain.clone())
        .collect()
}

fn created_in(intent: &ForwardingIntent, table: &FilterTable) -> BTreeSet<String> {
    let created = intent.created.iter().filter(|(of, _)| of == table);
    created.map(|(_, chain)| chain.clone()).collect()
}

/// Adds the filter table of iptables, where there is none of any backend.
fn add_admin_tables(intent: &ForwardingIntent, tables: &mut BTreeMap<FilterTable, TableState>) {
    let families: BTreeSet<_> = intent
        .admin_chains
        .iter()
        .map(|(family, _)| *family)
        .collect();
    for family in families {
        let of_family = |table: &&FilterTable| table.is_iptables() && table.family == family;
        if !tables.keys().any(|table| of_family(&table)) {
            tables.insert(FilterTable::iptables(family), TableState::default());
        }
    }
}

/// Returns the accept rules that concern the families of the table.
fn rules_of(intent: &ForwardingIntent, table: &FilterTable) -> Vec<AcceptRule> {
    let families = table.family.addresses();
    let of_family = |address: IpAddr| families.contains(&FilterFamily::of(address));
    intent
        .rules
        .iter()
        .filter(|rule| rule.address().is_none_or(of_family))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests;
