//! The datapath's tables: one for each kind of [`EntryKey`], and the maps that only the agent's
//! reports and the sweep use.
//!
//! Rows of a hash whose values are one expression are declared here, all others in a file each.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use abi::{Address, maps};
use aya::Ebpf;
use model::IfName;
use steps::{Entries, Entry, EntryKey, LinkRef};

use crate::bpf::encoding::{self, address_or_any, ip_or_none};
use crate::bpf::map::{ANY, Hash, List, PerCpu, Wire, take, written};
use crate::bpf::table::{HashTable, Table, rows};
use crate::bpf::trie_table::TrieTable;
use crate::error::{OpenError, io_error};
use crate::netlink::ifindex::Names;

mod endpoints;
mod hostports;
mod limits;
mod networks;
pub(crate) mod pods;
mod policies;
mod prefixes;
mod settings;
mod shaped_subnets;
mod trusted_links;
mod tunnel_peers;
mod uplinks;

/// Declares the table of each kind of key: the compiler requires one for each.
macro_rules! planned {
    ($($key:ident in $field:ident: $table:ty;)*) => {
        /// The tables whose entries the planner plans.
        pub(crate) struct Planned {
            $(pub(crate) $field: $table,)*
        }

        impl Planned {
            fn take(object: &mut Ebpf) -> Result<Self, OpenError> {
                Ok(Self { $($field: Table::take(object)?,)* })
            }

            fn put(&mut self, names: &Names, key: &EntryKey, entry: &Entry) -> io::Result<()> {
                match key {
                    $(EntryKey::$key { .. } => self.$field.put(names, key, entry),)*
                }
            }

            fn remove(&mut self, names: &Names, key: &EntryKey) -> io::Result<()> {
                match key {
                    $(EntryKey::$key { .. } => self.$field.remove(names, key),)*
                }
            }

            fn find(&self, names: &Names, key: &EntryKey) -> io::Result<Option<Entry>> {
                match key {
                    $(EntryKey::$key { .. } => self.$field.find(names, key),)*
                }
            }

            fn list(&self, link: &dyn Fn(u32) -> LinkRef) -> io::Result<Entries> {
                let mut entries = Entries::new();
                $(entries.extend(self.$field.list(link)?);)*
                Ok(entries)
            }
        }
    };
}

planned! {
    Pod in pods: pods::Pods;
    Limit in limits: limits::Limits;
    Interface in interfaces: HashTable<Interfaces>;
    Endpoint in endpoints: HashTable<endpoints::Endpoints>;
    Hostport in hostports: HashTable<hostports::Hostports>;
    Network in networks: HashTable<networks::Networks>;
    Egress in egress: HashTable<Egress>;
    TrustedLink in trusted_links: HashTable<trusted_links::TrustedLinks>;
    Uplink in uplinks: HashTable<uplinks::Uplinks>;
    Local in locals: HashTable<Locals>;
    Prefix in prefixes: TrieTable<prefixes::PrefixRows>;
    TunnelPeer in tunnel_peers: HashTable<tunnel_peers::TunnelPeers>;
    RuleSets in rule_sets: HashTable<policies::RuleSetRows>;
    Identity in identities: TrieTable<policies::IdentityRows>;
    PolicyRule in policy_rules: TrieTable<policies::PolicyRuleRows>;
    Settings in settings: settings::Settings;
}

rows! {
    /// Pods behind host links.
    Interfaces = INTERFACES<u32, abi::Interface>[Interface] {
        Entry::Interface { slot, limited } => abi::Interface {
            pod: *slot,
            flags: encoding::limited(*limited),
        },
        row => Entry::Interface {
            slot: row.pod,
            limited: encoding::is_limited(row.flags),
        },
    }

    /// Fixed egress addresses of the networks of a bridge.
    Egress = EGRESS<u32, abi::Egress>[Egress] {
        Entry::Egress { v4, v6 } => abi::Egress::new(address_or_any(*v4), address_or_any(*v6)),
        row => Entry::Egress {
            v4: ip_or_none(row.v4),
            v6: ip_or_none(row.v6),
        },
    }

    /// The node's own addresses.
    Locals = LOCALS<Address, u32>[Local] {
        Entry::Local => 1,
        _ => Entry::Local,
    }
}

impl HashTable<Locals> {
    /// Returns whether an address is one of the node's own.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.0.get(&Wire(encoding::address(address)), ANY).is_ok()
    }
}

/// All maps that the engine reads or writes.
pub(crate) struct Tables {
    pub(crate) planned: Planned,
    pub(crate) flows: Hash<abi::Tuple, abi::Flow>,
    pub(crate) drops: PerCpu<abi::DropCount>,
    pub(crate) swept: List<abi::Swept>,
    epochs: List<u64>,
    /// Last epoch that this agent began. No other process writes the number.
    epoch: Option<u64>,
    pub(crate) names: Names,
}

impl Tables {
    /// Takes the maps out of a loaded object. `names` belong to the node's network namespace, which
    /// is the calling thread's.
    pub(crate) fn take(object: &mut Ebpf, names: Names) -> Result<Self, OpenError> {
        Ok(Self {
            planned: Planned::take(object)?,
            flows: take(object, &maps::FLOWS)?,
            drops: take(object, &maps::DROPS)?,
            swept: take(object, &maps::SWEPT)?,
            epochs: take(object, &maps::EPOCHS)?,
            epoch: None,
            names,
        })
    }

    /// Writes an entry, then begins an epoch, which makes cached verdicts stale.
    pub(crate) fn put(&mut self, key: &EntryKey, entry: &Entry) -> io::Result<()> {
        // The epoch begins after the write, and also if it failed: a part of the entry may have
        // changed.
        let wrote = self.planned.put(&self.names, key, entry);
        self.begin_epoch().and(wrote)
    }

    /// Removes an entry, then begins an epoch. An entry that is not there is success.
    pub(crate) fn remove(&mut self, key: &EntryKey) -> io::Result<()> {
        // The epoch begins after the removal, and also if it failed.
        let removed = self.planned.remove(&self.names, key);
        self.begin_epoch().and(removed)
    }

    /// Reads all entries; `links` are the links that exist, by index.
    pub(crate) fn all(&self, links: &BTreeMap<u32, IfName>) -> io::Result<Entries> {
        self.planned.list(&|index| match links.get(&index) {
            Some(name) => LinkRef::Name(name.clone()),
            None => LinkRef::Gone(index),
        })
    }

    /// Reads the entries under these keys.
    pub(crate) fn some(&self, keys: &BTreeSet<EntryKey>) -> io::Result<Entries> {
        let mut entries = Entries::new();
        for key in keys {
            let entry = self.planned.find(&self.names, key)?;
            entries.extend(entry.map(|entry| (key.clone(), entry)));
        }
        Ok(entries)
    }

    /// Reads the hostports.
    pub(crate) fn hostports(&self) -> io::Result<Entries> {
        self.planned.hostports.list(&LinkRef::Gone)
    }

    /// Begins an epoch of the tables: cached verdicts of earlier epochs are stale.
    fn begin_epoch(&mut self) -> io::Result<()> {
        let read = || {
            let last = self.epochs.get(&maps::EPOCH_OF_TABLES, ANY);
            Ok(last.map_err(|error| io_error(&error))?.0)
        };
        let last: u64 = self.epoch.map_or_else(read, io::Result::Ok)?;
        let next = last.wrapping_add(1);
        written(self.epochs.set(maps::EPOCH_OF_TABLES, Wire(next), ANY))?;
        self.epoch = Some(next);
        Ok(())
    }
}
