//! Statements of the tables of iptables-legacy that forwarded packets meet.

use std::io;

use steps::{PathHook, PathRule, PathTable, Statement};

use super::{FAMILIES, Ip};
use crate::firewall::forwarding::blob::{Blob, Entry};
use crate::firewall::forwarding::{entry, path};
use crate::firewall::xtables;

/// Returns the statements of the tables that forwarded packets meet. Only first packets of
/// connections are evaluated in those of type `nat`.
pub(crate) fn path_tables() -> io::Result<Vec<PathTable>> {
    let mut found = Vec::new();
    for ip in &FAMILIES {
        let (tool, tables) = xtables::tables(ip.is_v4());
        for table in tables.iter().filter(|table| *table != "nat") {
            if let Some((_, blob)) = ip.load_table(table)? {
                found.push(ip.path_table(&blob, format!("{tool}: table {table}")));
            }
        }
    }
    Ok(found)
}

impl Ip {
    fn path_table(&self, blob: &Blob, name: String) -> PathTable {
        let bases = blob.chains.iter().filter_map(|chain| {
            let hook = match chain.hook? {
                0 => PathHook::Prerouting,
                2 => PathHook::Forward,
                4 => PathHook::Postrouting,
                _ => return None,
            };
            Some((chain.name.clone(), hook))
        });
        let chains = blob.chains.iter().map(|chain| {
            let rules = chain.rules.iter().map(|entry| self.path_rule(entry));
            (chain.name.clone(), rules.collect())
        });
        PathTable {
            name,
            bases: bases.collect(),
            chains: chains.collect(),
        }
    }

    fn path_rule(&self, entry: &Entry) -> PathRule {
        let mut statements = Vec::new();
        // Addresses, interfaces and protocol. Fragments never bypass the stack.
        if !self.conditions(&entry.bytes).is_empty() {
            statements.push(Statement::Named("compare".to_owned()));
        }
        for (name, _, data) in self.layout.matches(&entry.bytes) {
            statements.extend(entry::statements(&name, data));
        }
        match self.action(entry) {
            Some(action) => statements.push(Statement::Verdict(action)),
            None => statements.extend(path::target(&self.layout.target(&entry.bytes).0)),
        }
        PathRule { statements }
    }
}
