//! Filter tables of nftables, and the tables that translate destinations.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use nix::errno::Errno;
use steps::{
    ADMIN_CHAIN, AcceptRule, Action, BaseChain, FORWARD_CHAIN, FilterBackend, FilterFamily,
    FilterHook, FilterRule, FilterTable, ForwardingStep, Place, TableState,
};

use super::{decode, encode};
use crate::firewall::hostport_table;
use crate::firewall::nftables::{
    Batch, Chain, Family, Hook, Nftables, Position, ReadChain, Rejected, Rule, expr,
};

/// Hook of a filter table's FORWARD chain: `NF_INET_FORWARD`, `NF_IP_PRI_FILTER`.
const FORWARD: Hook = Hook {
    kind: "filter",
    number: 2,
    priority: 0,
};

type Tables = BTreeMap<FilterTable, TableState>;

/// The socket, and what was read last with its generation.
#[derive(Default)]
pub(super) struct NftTables {
    nftables: Option<Nftables>,
    last: Option<(u32, Tables)>,
}

impl NftTables {
    /// Reads the tables. An unchanged ruleset is not read again: it may have many thousand rules.
    pub(super) fn read(&mut self) -> io::Result<Tables> {
        if self.nftables.is_none() {
            self.nftables = Nftables::open()?;
        }
        let Some(nftables) = &mut self.nftables else {
            return Ok(Tables::new());
        };
        let generation = match nftables.generation() {
            Ok(generation) => generation,
            // The kernel has netfilter without nftables.
            Err(error) if is_unsupported(&error) => return Ok(Tables::new()),
            Err(error) => return Err(error),
        };
        if let Some((last, tables)) = &self.last
            && *last == generation
        {
            return Ok(tables.clone());
        }
        let tables = read(nftables, generation, filter_hook)?;
        // A ruleset that changed meanwhile is of no generation; writes for it are refused.
        self.last = Some((generation, tables.clone()));
        Ok(tables)
    }

    /// Reads the tables that translate the destinations of new connections.
    pub(super) fn translations() -> io::Result<Tables> {
        let Some(mut nftables) = Nftables::open()? else {
            return Ok(Tables::new());
        };
        match nftables.generation() {
            Ok(generation) => read(&mut nftables, generation, translation_hook),
            Err(error) if is_unsupported(&error) => Ok(Tables::new()),
            Err(error) => Err(error),
        }
    }

    /// Whether the last read has found that the kernel has nftables.
    pub(super) fn is_supported(&self) -> bool {
        self.last.is_some()
    }

    pub(super) fn write(&mut self, step: &ForwardingStep) -> io::Result<()> {
        self.last = None;
        if self.nftables.is_none() {
            self.nftables = Nftables::open()?;
        }
        let Some(nftables) = &mut self.nftables else {
            return Err(Errno::EPROTONOSUPPORT.into());
        };
        let tried = nftables.commit(batch(step, step.table.is_iptables()));
        let tried = match tried {
            // Without the modules of xtables: `iptables` has never been used here.
            Err(rejected) if step.table.is_iptables() && !rejected.is_outdated() => {
                let native = nftables.commit(batch(step, false));
                native.map_err(|_| rejected)
            }
            tried => tried,
        };
        match tried {
            Err(rejected) if rejected.is_outdated() => Err(Errno::EAGAIN.into()),
            tried => tried.map_err(|Rejected { error, .. }| error),
        }?;
        if step.deletes_created.contains("FORWARD") {
            let mut batch = Batch::default();
            batch.delete_empty_table(family(step.table.family), &step.table.name);
            // Other software has chains or sets in it.
            let _in_use = nftables.commit(batch);
        }
        Ok(())
    }
}

/// Returns whether other software has rules in a base chain, or an administrator in a chain that
/// our rules evaluate.
pub(crate) fn has_foreign_rules(family: u8, table: &str, chain: &str) -> io::Result<bool> {
    let opened = Family::of(family).zip(Nftables::open()?);
    let Some((family, mut nftables)) = opened else {
        return Ok(true);
    };
    let mut evaluated = vec![chain.to_owned()];
    while let Some(chain) = evaluated.pop() {
        for rule in nftables.rules(family, table, &chain)? {
            let Action::Jump(to) = decode::rule(&rule, family).1 else {
                return Ok(true);
            };
            if to == ADMIN_CHAIN || chain == ADMIN_CHAIN {
                evaluated.push(to);
            } else if to != FORWARD_CHAIN {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

pub(super) fn is_unsupported(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::EINVAL, Errno::EOPNOTSUPP, Errno::EPROTONOSUPPORT]
        .iter()
        .any(|errno| code == Some(*errno as i32))
}

/// Returns the hook of a base chain that is read.
type HookOf = fn(&ReadChain) -> Option<FilterHook>;

/// Reads the tables with base chains of which `hook` returns one.
fn read(nftables: &mut Nftables, generation: u32, hook: HookOf) -> io::Result<Tables> {
    let chains = nftables.chains()?;
    let matters: BTreeSet<(Family, &str)> = chains
        .iter()
        .filter(|chain| hook(chain).is_some() && chain.table != hostport_table::TABLE)
        .map(|chain| (chain.family, chain.table.as_str()))
        .collect();
    let mut tables = Tables::new();
    for (family, name) in matters {
        let mut state = TableState {
            generation: generation.into(),
            ..TableState::default()
        };
        for chain in chains
            .iter()
            .filter(|it| (it.family, it.table.as_str()) == (family, name))
        {
            state.rules.insert(chain.name.clone(), Vec::new());
            state.base.extend(hook(chain).map(|hook| BaseChain {
                name: chain.name.clone(),
                hook,
                drops: chain.drops,
            }));
        }
        for (chain, rule) in nftables.rules_of_table(family, name)? {
            let (conditions, action) = decode::rule(&rule, family);
            state.rules.entry(chain).or_default().push(FilterRule {
                handle: rule.handle,
                conditions,
                action,
                comment: rule.comment,
            });
        }
        let table = FilterTable {
            backend: FilterBackend::Nftables,
            family: of(family),
            name: name.to_owned(),
        };
        tables.insert(table, state);
    }
    Ok(tables)
}

/// Hooks of chains that filter forwarded packets.
fn filter_hook(chain: &ReadChain) -> Option<FilterHook> {
    match chain.hook.filter(|_| chain.is_filter)?.0 {
        0 => Some(FilterHook::Prerouting),
        2 => Some(FilterHook::Forward),
        4 => Some(FilterHook::Postrouting),
        _ => None,
    }
}

/// Hooks of chains that translate destinations.
fn translation_hook(chain: &ReadChain) -> Option<FilterHook> {
    match chain.hook.filter(|_| chain.is_nat)?.0 {
        0 => Some(FilterHook::Prerouting),
        3 => Some(FilterHook::Output),
        _ => None,
    }
}

fn of(family: Family) -> FilterFamily {
    match family {
        Family::Inet => FilterFamily::Inet,
        Family::Ip => FilterFamily::Ip,
        Family::Bridge => FilterFamily::Bridge,
        Family::Ip6 => FilterFamily::Ip6,
    }
}

pub(super) const fn family_name(family: Family) -> &'static str {
    match family {
        Family::Inet => "inet",
        Family::Ip => "ip",
        Family::Bridge => "bridge",
        Family::Ip6 => "ip6",
    }
}

pub(super) fn family(family: FilterFamily) -> Family {
    match family {
        FilterFamily::Inet => Family::Inet,
        FilterFamily::Ip => Family::Ip,
        FilterFamily::Bridge => Family::Bridge,
        FilterFamily::Ip6 => Family::Ip6,
    }
}

/// Encodes the step. Jumps are removed before the chains that they lead to, and added after them.
fn batch(step: &ForwardingStep, as_iptables: bool) -> Batch {
    let (family, table) = (family(step.table.family), step.table.name.as_str());
    let mut batch = Batch::of_generation(u32::try_from(step.generation).unwrap_or(0));
    if step.generation == 0 {
        batch = Batch::default();
    }
    let chain = |name, hook| Chain {
        family,
        table,
        name,
        hook,
    };
    if step.creates_base {
        batch.add_table(family, table);
        batch.add_chain(&chain("FORWARD", Some(FORWARD)));
    }
    for name in &step.creates {
        batch.add_chain(&chain(name, None));
    }
    for (chain, handle) in &step.stale_jumps {
        batch.delete_rule(family, table, chain, *handle);
    }
    for name in &step.deletes {
        batch.flush_chain(family, table, name);
        batch.delete_chain(family, table, name);
    }
    for (name, rules) in &step.fills {
        batch.add_chain(&chain(name, None));
        batch.flush_chain(family, table, name);
        for rule in rules {
            add_rule(&mut batch, (family, table, name), rule, as_iptables);
        }
    }
    for (own, place) in &step.jumps {
        let position = match place {
            Place::First { .. } => Position::First,
            Place::Last { .. } => Position::Last,
            Place::Before { handle, .. } => Position::Before(*handle),
        };
        batch.add_rule(&Rule {
            family,
            table,
            chain: place.chain(),
            position,
            expressions: &[expr::counter(), encode::jump(own)],
            comment: encode::jump_comment(own),
            xt_protocol: None,
        });
    }
    for name in &step.deletes_created {
        batch.delete_chain(family, table, name);
    }
    batch
}

fn add_rule(
    batch: &mut Batch,
    (family, table, chain): (Family, &str, &str),
    rule: &AcceptRule,
    as_iptables: bool,
) {
    let (expressions, xt_protocol) = encode::rule(rule, family, as_iptables);
    batch.add_rule(&Rule {
        family,
        table,
        chain,
        position: Position::Last,
        expressions: &expressions,
        comment: &rule.to_string(),
        xt_protocol,
    });
}
