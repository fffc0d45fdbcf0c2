//! Reads the filter tables that forwarded packets pass, and writes our rules into them.
//!
//! nftables' tables by netlink, those of iptables-legacy by socket options. Rules of other software
//! are read as far as the planner needs them, and never changed.

mod blob;
mod decode;
mod encode;
mod entry;
mod legacy;
mod nft;
mod path;

use std::collections::BTreeMap;
use std::io;

use steps::{FilterBackend, FilterTable, ForwardTables, ForwardingStep, TableState};

pub(crate) use legacy::statements::path_tables as legacy_path_tables;
pub(crate) use legacy::{fingerprint, has_foreign_entries};
pub(crate) use nft::has_foreign_rules;
pub(crate) use path::PathReader;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    legacy::fuzz(bytes);
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz_rule(rule: &crate::firewall::nftables::ReadRule) {
    use crate::firewall::nftables::Family;
    for family in [Family::Inet, Family::Ip, Family::Ip6] {
        let _ = decode::rule(rule, family);
    }
}

/// Reader and writer of the filter tables of one network namespace.
#[derive(Default)]
pub(crate) struct FilterTables {
    nftables: nft::NftTables,
}

impl FilterTables {
    /// Reads the tables of the namespace of the calling thread.
    pub(crate) fn read(&mut self) -> io::Result<ForwardTables> {
        let mut tables: BTreeMap<FilterTable, TableState> = self.nftables.read()?;
        tables.extend(legacy::read()?);
        Ok(ForwardTables {
            has_nftables: self.nftables.is_supported(),
            tables,
        })
    }

    /// Reads the tables that translate the destinations of new connections, of the namespace of the
    /// calling thread.
    pub(crate) fn translations() -> io::Result<BTreeMap<FilterTable, TableState>> {
        let mut tables = nft::NftTables::translations()?;
        tables.extend(legacy::translations()?);
        Ok(tables)
    }

    /// Executes the step in one transaction of its table. Fails with `EAGAIN` where the table has
    /// changed since it was read.
    pub(crate) fn write(&mut self, step: &ForwardingStep) -> io::Result<()> {
        match step.table.backend {
            FilterBackend::Nftables => self.nftables.write(step),
            FilterBackend::Xtables => legacy::write(step),
        }
    }
}
