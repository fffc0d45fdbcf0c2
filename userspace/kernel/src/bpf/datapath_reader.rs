//! Copies the datapath's tables, for explanations of its verdicts. Writes no map.
//!
//! The agent advances the epoch of the tables after each write, so a copy during which the epoch
//! did not change is consistent.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use abi::maps::{self, MapDef};
use abi::{Address, Bucket, Limit, PolicyRule, PrefixKey};
use aya::maps::MapInfo;
use nix::time::{ClockId, clock_gettime};
use steps::{DatapathTables, LookupTables};

use crate::ObserveError;
use crate::bpf::flows::FlowReader;
use crate::bpf::map::{self, ANY, Hash, Layout, List, Trie};
use crate::bpf::{batch, pinned_maps, pins};
use crate::error::{Attempt as _, io_error};

/// Copies that are made until one is consistent.
const TRIES: usize = 5;

/// Reads the pinned tables; works while no agent is running.
#[derive(Clone, Debug)]
pub struct DatapathReader {
    /// Directory of the pinned maps.
    pin: PathBuf,
    flows: FlowReader,
}

macro_rules! lookups {
    ($($map:ident: $key:tt, $value:tt, $lookup:ident, $rows:ident;)*) => {
        impl DatapathReader {
            /// Copies the table of each lookup in the list of maps.
            fn lookups(&self) -> io::Result<LookupTables> {
                Ok(LookupTables {
                    $($rows: self.hash(&maps::$map)?,)*
                })
            }
        }
    };
}
abi::for_each_lookup!(lookups);

impl DatapathReader {
    /// Makes a reader of the tables that are pinned below `bpffs`.
    pub fn new(bpffs: &Path) -> Self {
        Self {
            pin: pins::version(bpffs).join(pinned_maps::MAP_PINS),
            flows: FlowReader::new(bpffs),
        }
    }

    /// Copies the tables. After five copies during which the agent has written, the last one is
    /// returned, and says so.
    pub fn read(&self) -> Result<DatapathTables, ObserveError> {
        let tables = self.tables();
        Ok(tables.attempt(|| format!("copy the tables in {}", self.pin.display()))?)
    }

    fn tables(&self) -> io::Result<DatapathTables> {
        let mut tries = 0;
        let mut tables = loop {
            tries += 1;
            let before = self.epoch()?;
            let mut tables = self.written_by_agent()?;
            tables.is_consistent = self.epoch()? == before;
            if tables.is_consistent || tries == TRIES {
                break tables;
            }
        };
        self.add_state(&mut tables)?;
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        let seconds = u64::try_from(now.tv_sec()).map_err(io::Error::other)?;
        let nanoseconds = u64::try_from(now.tv_nsec()).map_err(io::Error::other)?;
        tables.now = seconds * 1_000_000_000 + nanoseconds;
        Ok(tables)
    }

    /// Copies the tables that only the agent writes.
    fn written_by_agent(&self) -> io::Result<DatapathTables> {
        Ok(DatapathTables {
            settings: self.first(&maps::SETTINGS)?,
            pods: self.array(&maps::PODS, |pod| pod.generation != 0)?,
            lookups: self.lookups()?,
            locals: self.hash(&maps::LOCALS)?.into_keys().collect(),
            prefixes: self.prefixes(&maps::PREFIXES)?,
            identities: self.prefixes(&maps::IDENTITIES)?,
            policy_rules: self.policy_rules()?,
            limits: self.array(&maps::LIMITS, |limit| limit.price != 0)?,
            shaped_subnets: self.trie(&maps::PEERS)?,
            ..DatapathTables::default()
        })
    }

    /// Copies the tables that programs write, too.
    fn add_state(&self, tables: &mut DatapathTables) -> io::Result<()> {
        let live = self.array(&maps::LIVE, |flows| *flows != 0)?;
        tables.live = live
            .into_iter()
            .map(|(account, flows)| (account, flows.cast_signed()))
            .collect();
        tables.buckets = self.buckets(&tables.limits)?;
        tables.offloaded = self.hash(&maps::OFFLOADED)?;
        tables.policy_flows = self.hash(&maps::POLICY_FLOWS)?;
        tables.events = self.first(&maps::EVENTS)?;
        tables.flow_entries = MapInfo::from_pin(self.pin.join(maps::FLOWS.name))
            .map_err(|error| io_error(&error))?
            .max_entries();
        tables.flows = self.flows.entries()?.entries;
        Ok(())
    }

    fn epoch(&self) -> io::Result<u64> {
        let epochs: List<u64> = map::open(&self.pin, &maps::EPOCHS)?;
        let epoch = epochs.get(&maps::EPOCH_OF_TABLES, ANY);
        Ok(epoch.map_err(|error| io_error(&error))?.0)
    }

    /// Returns the only element of an array.
    fn first<V: Layout>(&self, def: &MapDef<u32, V>) -> io::Result<V> {
        let array: List<V> = map::open(&self.pin, def)?;
        Ok(array.get(&0, ANY).map_err(|error| io_error(&error))?.0)
    }

    /// Returns the elements of an array that are in use.
    fn array<V: Layout>(
        &self,
        def: &MapDef<u32, V>,
        is_used: impl Fn(&V) -> bool,
    ) -> io::Result<BTreeMap<u32, V>> {
        let array: List<V> = map::open(&self.pin, def)?;
        let elements = batch::list(&array)?.into_iter();
        Ok(elements
            .map(|(index, element)| (index, element.0))
            .filter(|(_, element)| is_used(element))
            .collect())
    }

    fn hash<K: Layout + Ord, V: Layout>(&self, def: &MapDef<K, V>) -> io::Result<BTreeMap<K, V>> {
        let hash: Hash<K, V> = map::open(&self.pin, def)?;
        let entries = batch::list(&hash)?.into_iter();
        Ok(entries.map(|(key, value)| (key.0, value.0)).collect())
    }

    /// Returns the entries of a trie, with their prefix lengths in bits.
    fn trie<K: Layout + Ord, V: Layout>(
        &self,
        def: &MapDef<K, V>,
    ) -> io::Result<BTreeMap<(K, u32), V>> {
        let trie: Trie<K, V> = map::open(&self.pin, def)?;
        let entries = batch::list(&trie)?.into_iter();
        Ok(entries
            .map(|(key, value)| ((key.data().0, key.prefix_len()), value.0))
            .collect())
    }

    fn policy_rules(&self) -> io::Result<BTreeSet<(u32, PolicyRule)>> {
        let rules = self.trie(&maps::POLICY_RULES)?.into_keys();
        Ok(rules.map(|(rule, length)| (length, rule)).collect())
    }

    /// Returns the entries of a trie of addresses.
    fn prefixes(&self, def: &MapDef<Address, u32>) -> io::Result<BTreeMap<PrefixKey, u32>> {
        let prefix = |((address, prefix_len), class)| {
            let key = PrefixKey {
                prefix_len,
                address,
            };
            (key, class)
        };
        Ok(self.trie(def)?.into_iter().map(prefix).collect())
    }

    /// Returns the buckets of these limits.
    fn buckets(&self, limits: &BTreeMap<u32, Limit>) -> io::Result<BTreeMap<u32, Bucket>> {
        let array: List<Bucket> = map::open(&self.pin, &maps::BUCKETS)?;
        limits
            .keys()
            .map(|index| {
                let bucket = array.get(index, ANY).map_err(|error| io_error(&error))?;
                Ok((*index, bucket.0))
            })
            .collect()
    }
}
