//! The datapath's maps as typed tables.
//!
//! Keys and values only: what an entry means is not known here.

use std::io;

use abi::maps;
use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, Map, MapData, MapError, PerCpuArray, PerCpuValues};
use nix::errno::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::{OpenError, io_error};
use crate::netlink::ifindex::Names;

/// Wrapper that implements [`aya::Pod`] for the types of the ABI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Wire<T>(pub(crate) T);

#[expect(
    unsafe_code,
    reason = "aya has no safe way to use own types as keys and values"
)]
// SAFETY: `Pod` requires that the type may be read from and written as bytes. `FromBytes` proves
// that any bytes are a value, `IntoBytes` that no byte of a value is padding; the wrapper is
// transparent.
unsafe impl<T> aya::Pod for Wire<T> where T: FromBytes + IntoBytes + Immutable + Copy + 'static {}

/// Returns the default value of a per-CPU element, for each CPU.
pub(crate) fn zeros<T>() -> io::Result<PerCpuValues<Wire<T>>>
where
    T: FromBytes + IntoBytes + Immutable + Copy + Default + 'static,
{
    let cpus = aya::util::nr_cpus().map_err(|(_, error)| error)?;
    PerCpuValues::try_from(vec![Wire(T::default()); cpus])
}

/// Hash map from `K` to `V`.
pub(crate) type Hash<K, V> = HashMap<MapData, K, V>;

/// All maps that the agent reads or writes.
pub(crate) struct Tables {
    pub(crate) flows: Hash<Wire<abi::Tuple>, Wire<abi::Flow>>,
    pub(crate) pods: Array<MapData, Wire<abi::Pod>>,
    pub(crate) interfaces: Hash<u32, Wire<abi::Interface>>,
    pub(crate) endpoints: Hash<Wire<abi::Address>, Wire<abi::Endpoint>>,
    pub(crate) hostports: Hash<Wire<abi::HostportKey>, Wire<abi::Hostport>>,
    pub(crate) networks: Hash<u32, Wire<abi::Network>>,
    pub(crate) egress: Hash<u32, Wire<abi::Egress>>,
    pub(crate) uplinks: Hash<u32, Wire<abi::Uplink>>,
    pub(crate) locals: Hash<Wire<abi::Address>, u32>,
    pub(crate) prefixes: LpmTrie<MapData, Wire<abi::Address>, u32>,
    pub(crate) counters: PerCpuArray<MapData, Wire<abi::Counters>>,
    pub(crate) drops: PerCpuArray<MapData, Wire<abi::DropCount>>,
    pub(crate) pod_drops: Hash<u32, Wire<abi::PodDrops>>,
    pub(crate) limits: Array<MapData, Wire<abi::Limit>>,
    pub(crate) shaped_subnets: LpmTrie<MapData, Wire<abi::ShapedSubnetKey>, u32>,
    pub(crate) buckets: Array<MapData, Wire<abi::Bucket>>,
    pub(crate) shaped: PerCpuArray<MapData, Wire<abi::Shaped>>,
    pub(crate) settings: Array<MapData, Wire<abi::Settings>>,
    pub(crate) swept: Array<MapData, Wire<abi::Swept>>,
    epochs: Array<MapData, u64>,
    /// Last epoch that this agent began. No other process writes the number.
    epoch: Option<u64>,
    /// Cookie of the node's network namespace (`SO_NETNS_COOKIE`).
    pub(crate) netns_cookie: u64,
    pub(crate) names: Names,
}

impl Tables {
    /// Takes the maps out of a loaded object. `netns_cookie` and `names` belong to the node's
    /// network namespace.
    pub(crate) fn take(
        object: &mut Ebpf,
        netns_cookie: u64,
        names: Names,
    ) -> Result<Self, OpenError> {
        Ok(Self {
            flows: take(object, maps::FLOWS)?,
            pods: take(object, maps::PODS)?,
            interfaces: take(object, maps::INTERFACES)?,
            endpoints: take(object, maps::ENDPOINTS)?,
            hostports: take(object, maps::HOSTPORTS)?,
            networks: take(object, maps::NETWORKS)?,
            egress: take(object, maps::EGRESS)?,
            uplinks: take(object, maps::UPLINKS)?,
            locals: take(object, maps::LOCALS)?,
            prefixes: take(object, maps::PREFIXES)?,
            counters: take(object, maps::COUNTERS)?,
            drops: take(object, maps::DROPS)?,
            pod_drops: take(object, maps::POD_DROPS)?,
            limits: take(object, maps::LIMITS)?,
            shaped_subnets: take(object, maps::PEERS)?,
            buckets: take(object, maps::BUCKETS)?,
            shaped: take(object, maps::SHAPED)?,
            settings: take(object, maps::SETTINGS)?,
            swept: take(object, maps::SWEPT)?,
            epochs: take(object, maps::EPOCHS)?,
            epoch: None,
            netns_cookie,
            names,
        })
    }

    /// Begins an epoch of the tables: cached verdicts of earlier epochs are stale. Must be called
    /// after each write to a map that verdicts depend on.
    pub(crate) fn begin_epoch(&mut self) -> io::Result<()> {
        let last = match self.epoch {
            Some(last) => last,
            None => (self.epochs.get(&maps::EPOCH_OF_TABLES, 0)).map_err(|e| io_error(&e))?,
        };
        let next = last.wrapping_add(1);
        written(self.epochs.set(maps::EPOCH_OF_TABLES, next, 0))?;
        self.epoch = Some(next);
        Ok(())
    }
}

fn take<T>(object: &mut Ebpf, name: &'static str) -> Result<T, OpenError>
where
    T: TryFrom<Map, Error = MapError>,
{
    let missing = OpenError::Missing { what: "map", name };
    let map = object.take_map(name).ok_or(missing)?;
    T::try_from(map).map_err(|error| OpenError::Load {
        what: format!("map {name}"),
        source: error.into(),
    })
}

/// Returns the value, or `None` when there is no such key.
pub(crate) fn present<V>(value: Result<V, MapError>) -> io::Result<Option<V>> {
    match value {
        Ok(value) => Ok(Some(value)),
        Err(error) => match io_error(&error) {
            error if crate::error::is(&error, Errno::ENOENT) => Ok(None),
            error => Err(error),
        },
    }
}

/// Converts the result of a write.
pub(crate) fn written(result: Result<(), MapError>) -> io::Result<()> {
    result.map_err(|error| io_error(&error))
}

/// Converts the result of a removal. A missing key is success.
pub(crate) fn removed(result: Result<(), MapError>) -> io::Result<()> {
    present(result).map(|_| ())
}

/// Returns the trie's key of a prefix.
pub(crate) fn prefix_key(key: abi::PrefixKey) -> Key<Wire<abi::Address>> {
    Key::new(key.prefix_len, Wire(key.address))
}
