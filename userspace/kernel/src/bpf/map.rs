//! Handles of the maps of the ABI, typed by their definitions.
//!
//! Keys and values only: what an entry means is not known here.

use std::io;
use std::path::Path;

use abi::maps::{MapDef, MapKind};
use aya::Ebpf;
use aya::maps::{
    Array, HashMap, LpmTrie, Map, MapData, MapError, PerCpuArray, PerCpuValues, RingBuf,
};
use nix::errno::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::{OpenError, io_error};

/// `BPF_ANY`: add the entry or overwrite it.
pub(crate) const ANY: u64 = 0;

/// A type whose bytes are a key or a value of a map.
pub(crate) trait Layout: FromBytes + IntoBytes + Immutable + Copy + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + Copy + 'static> Layout for T {}

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
unsafe impl<T: Layout> aya::Pod for Wire<T> {}

/// Returns the default value of a per-CPU element, for each CPU.
pub(crate) fn zeros<T: Layout + Default>() -> io::Result<PerCpuValues<Wire<T>>> {
    let cpus = aya::util::nr_cpus().map_err(|(_, error)| error)?;
    PerCpuValues::try_from(vec![Wire(T::default()); cpus])
}

/// Hash from `K` to `V`.
pub(crate) type Hash<K, V> = HashMap<MapData, Wire<K>, Wire<V>>;
/// Array of `V`.
pub(crate) type List<V> = Array<MapData, Wire<V>>;
/// Array with a `V` for each CPU.
pub(crate) type PerCpu<V> = PerCpuArray<MapData, Wire<V>>;
/// Trie from prefixes of `K` to `V`.
pub(crate) type Trie<K, V> = LpmTrie<MapData, Wire<K>, Wire<V>>;
/// Ring buffer of records.
pub(crate) type Ring = RingBuf<MapData>;

/// A handle that may be made of a map from `K` to `V`. That the map is of its kind is checked when
/// it is made.
pub(crate) trait Handle<K, V>: TryFrom<Map, Error = MapError> {}

impl<K: Layout, V: Layout> Handle<K, V> for Hash<K, V> {}
impl<V: Layout> Handle<u32, V> for List<V> {}
impl<V: Layout> Handle<u32, V> for PerCpu<V> {}
impl<K: Layout, V: Layout> Handle<K, V> for Trie<K, V> {}
impl Handle<(), ()> for Ring {}

/// Takes a map out of a loaded object.
pub(crate) fn take<K, V, T: Handle<K, V>>(
    object: &mut Ebpf,
    def: &MapDef<K, V>,
) -> Result<T, OpenError> {
    let name = def.name;
    let missing = OpenError::Missing { what: "map", name };
    let map = object.take_map(name).ok_or(missing)?;
    T::try_from(map).map_err(|error| OpenError::Load {
        what: format!("map {name}"),
        source: error.into(),
    })
}

/// Opens a map that is pinned in the directory `maps`.
pub(crate) fn open<K, V, T: Handle<K, V>>(maps: &Path, def: &MapDef<K, V>) -> io::Result<T> {
    let data = MapData::from_pin(maps.join(def.name)).map_err(|error| io_error(&error))?;
    let map = match def.kind {
        MapKind::Hash => Map::HashMap(data),
        MapKind::LruHash => Map::LruHashMap(data),
        MapKind::Array => Map::Array(data),
        MapKind::PerCpuArray => Map::PerCpuArray(data),
        MapKind::LpmTrie => Map::LpmTrie(data),
        MapKind::Queue => Map::Queue(data),
        MapKind::RingBuf => Map::RingBuf(data),
    };
    T::try_from(map).map_err(|error| io_error(&error))
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
