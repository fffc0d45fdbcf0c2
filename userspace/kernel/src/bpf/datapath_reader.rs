//! Copies the datapath's tables, for explanations of its verdicts. Writes no map.
//!
//! The agent advances the epoch of the tables after each write, so a copy during which the epoch
//! did not change is consistent.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use abi::{Bucket, Events, Limit, PrefixKey, maps};
use aya::Pod;
use aya::maps::{Array, HashMap, IterableMap, LpmTrie, Map, MapData, MapError, MapInfo};
use nix::time::{ClockId, clock_gettime};
use steps::DatapathTables;

use crate::ObserveError;
use crate::bpf::flows::FlowReader;
use crate::bpf::tables::Wire;
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
        let pods = self.array::<Wire<abi::Pod>>(maps::PODS)?;
        let limits = self.array::<Wire<Limit>>(maps::LIMITS)?;
        Ok(DatapathTables {
            settings: self.first(maps::SETTINGS)?,
            pods: of_array(pods, |pod: &abi::Pod| pod.generation != 0),
            interfaces: self.hash::<u32, _, _, _>(maps::INTERFACES, |it| it)?,
            endpoints: self.hash(maps::ENDPOINTS, |Wire(it): Wire<abi::Address>| it)?,
            hostports: self.hash(maps::HOSTPORTS, |Wire(it): Wire<abi::HostportKey>| it)?,
            networks: self.hash::<u32, _, _, _>(maps::NETWORKS, |it| it)?,
            egress: self.hash::<u32, _, _, _>(maps::EGRESS, |it| it)?,
            uplinks: self.hash::<u32, _, _, _>(maps::UPLINKS, |it| it)?,
            locals: self.locals()?,
            prefixes: self.prefixes()?,
            limits: of_array(limits, |limit: &Limit| limit.price != 0),
            shaped_subnets: self.shaped_subnets()?,
            ..DatapathTables::default()
        })
    }

    /// Copies the tables that programs write, too.
    fn add_state(&self, tables: &mut DatapathTables) -> io::Result<()> {
        let live = self.array::<u64>(maps::LIVE)?;
        tables.live = live
            .into_iter()
            .map(|(account, flows)| (account, flows.cast_signed()))
            .filter(|(_, flows)| *flows != 0)
            .collect();
        tables.buckets = self.buckets(&tables.limits)?;
        tables.offloaded = self.hash(maps::OFFLOADED, |Wire(it): Wire<abi::Tuple>| it)?;
        tables.events = self.first::<Events>(maps::EVENTS)?;
        tables.flow_entries = MapInfo::from_pin(self.pin.join(maps::FLOWS))
            .map_err(|error| io_error(&error))?
            .max_entries();
        tables.flows = self.flows.entries()?.entries;
        Ok(())
    }

    fn epoch(&self) -> io::Result<u64> {
        let epochs: Array<MapData, u64> = self.open(maps::EPOCHS, Map::Array)?;
        let epoch = epochs.get(&maps::EPOCH_OF_TABLES, 0);
        epoch.map_err(|error| io_error(&error))
    }

    fn open<T: TryFrom<Map, Error = MapError>>(
        &self,
        name: &str,
        kind: impl FnOnce(MapData) -> Map,
    ) -> io::Result<T> {
        let map = MapData::from_pin(self.pin.join(name)).map_err(|error| io_error(&error))?;
        T::try_from(kind(map)).map_err(|error| io_error(&error))
    }

    /// Returns the only element of an array.
    fn first<T>(&self, name: &str) -> io::Result<T>
    where
        Wire<T>: Pod,
    {
        let array: Array<MapData, Wire<T>> = self.open(name, Map::Array)?;
        let first = array.get(&0, 0).map_err(|error| io_error(&error))?;
        Ok(first.0)
    }

    fn array<V: Pod>(&self, name: &str) -> io::Result<Vec<(u32, V)>> {
        let array: Array<MapData, V> = self.open(name, Map::Array)?;
        batch::list(&array)
    }

    fn hash<K: Pod, V, To: Ord, Convert: Fn(K) -> To>(
        &self,
        name: &str,
        key: Convert,
    ) -> io::Result<BTreeMap<To, V>>
    where
        Wire<V>: Pod,
    {
        let hash: HashMap<MapData, K, Wire<V>> = self.open(name, Map::HashMap)?;
        listed(&hash, key, |Wire(value)| value)
    }

    fn locals(&self) -> io::Result<std::collections::BTreeSet<abi::Address>> {
        let hash: HashMap<MapData, Wire<abi::Address>, u32> =
            self.open(maps::LOCALS, Map::HashMap)?;
        let entries = batch::list(&hash)?;
        Ok(entries.into_iter().map(|(address, _)| address.0).collect())
    }

    fn prefixes(&self) -> io::Result<BTreeMap<PrefixKey, u32>> {
        let trie: LpmTrie<MapData, Wire<abi::Address>, u32> =
            self.open(maps::PREFIXES, Map::LpmTrie)?;
        listed(
            &trie,
            |key| PrefixKey {
                prefix_len: key.prefix_len(),
                address: key.data().0,
            },
            |class| class,
        )
    }

    fn shaped_subnets(&self) -> io::Result<BTreeMap<(abi::ShapedSubnetKey, u32), u32>> {
        let trie: LpmTrie<MapData, Wire<abi::ShapedSubnetKey>, u32> =
            self.open(maps::PEERS, Map::LpmTrie)?;
        listed(&trie, |key| (key.data().0, key.prefix_len()), |it| it)
    }

    /// Returns the buckets of these limits.
    fn buckets(&self, limits: &BTreeMap<u32, Limit>) -> io::Result<BTreeMap<u32, Bucket>> {
        let array: Array<MapData, Wire<Bucket>> = self.open(maps::BUCKETS, Map::Array)?;
        limits
            .keys()
            .map(|index| {
                let bucket = array.get(index, 0).map_err(|error| io_error(&error))?;
                Ok((*index, bucket.0))
            })
            .collect()
    }
}

/// Returns the elements of an array that are in use.
fn of_array<T>(elements: Vec<(u32, Wire<T>)>, is_used: impl Fn(&T) -> bool) -> BTreeMap<u32, T> {
    elements
        .into_iter()
        .map(|(index, element)| (index, element.0))
        .filter(|(_, element)| is_used(element))
        .collect()
}

fn listed<K: Pod, V: Pod, To: Ord, Value>(
    table: &impl IterableMap<K, V>,
    key: impl Fn(K) -> To,
    value: impl Fn(V) -> Value,
) -> io::Result<BTreeMap<To, Value>> {
    let entries = batch::list(table)?;
    Ok(entries
        .into_iter()
        .map(|(found, of)| (key(found), value(of)))
        .collect())
}
