//! The pinned maps: names and shapes.

use std::path::Path;

use abi::{Address, PrefixKey, maps};
use aya::maps::{MapInfo, MapType};

/// Type, key size, value size (both in bytes) and number of entries of a map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    kind: MapType,
    key: usize,
    value: usize,
    capacity: u32,
}

impl Shape {
    const fn of<K, V>(kind: MapType, capacity: u32) -> Self {
        Self {
            kind,
            key: size_of::<K>(),
            value: size_of::<V>(),
            capacity,
        }
    }
}

impl Shape {
    pub(crate) fn is_good_for(self, wanted: Self) -> bool {
        let capacity = match wanted.capacity {
            ANY_NUMBER => self.capacity,
            number => number,
        };
        self == Self { capacity, ..wanted }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            kind,
            key,
            value,
            capacity,
        } = self;
        write!(
            f,
            "a {kind:?} of {capacity} entries of {key} bytes to {value}"
        )
    }
}

/// Name of the maps' directory, below that of the version (`pins::version`).
pub(crate) const MAP_PINS: &str = "maps";

/// Name of the links' directory, below that of the version (`pins::version`).
pub(crate) const LINK_PINS: &str = "links";

/// Capacity that matches any other: the agent that created the map chose it.
const ANY_NUMBER: u32 = 0;

/// A map of the ABI, which is pinned by name.
pub(crate) struct PinnedMap {
    /// Name in the BPF object, and of the pin.
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
}

const fn map<K, V>(name: &'static str, kind: MapType, capacity: u32) -> PinnedMap {
    PinnedMap {
        name,
        shape: Shape::of::<K, V>(kind, capacity),
    }
}

/// All maps of the ABI, with their expected shapes.
pub(crate) const MAPS: [PinnedMap; 35] = [
    map::<abi::Tuple, abi::Flow>(maps::FLOWS, MapType::Hash, ANY_NUMBER),
    map::<(), abi::ClockEntry>(maps::TURNS, MapType::Queue, ANY_NUMBER),
    map::<u32, u64>(maps::LIVE, MapType::Array, maps::LIVE_CAPACITY),
    map::<u32, abi::Egress>(maps::EGRESS, MapType::Hash, maps::EGRESS_CAPACITY),
    map::<abi::FragmentKey, abi::Datagram>(
        maps::FRAGMENTS,
        MapType::Hash,
        maps::FRAGMENTS_CAPACITY,
    ),
    map::<u32, abi::DatagramRing>(maps::DATAGRAMS, MapType::Hash, maps::DATAGRAMS_CAPACITY),
    map::<abi::HeldKey, abi::HeldFragment>(maps::HELD, MapType::Hash, maps::HELD_CAPACITY),
    map::<u32, u64>(
        maps::IDENTIFICATIONS,
        MapType::Array,
        maps::IDENTIFICATIONS_CAPACITY,
    ),
    map::<u32, abi::Pod>(maps::PODS, MapType::Array, maps::PODS_CAPACITY),
    map::<u32, abi::Interface>(maps::INTERFACES, MapType::Hash, maps::INTERFACES_CAPACITY),
    map::<Address, abi::Endpoint>(maps::ENDPOINTS, MapType::Hash, maps::ENDPOINTS_CAPACITY),
    map::<abi::HostportKey, abi::Hostport>(
        maps::HOSTPORTS,
        MapType::Hash,
        maps::HOSTPORTS_CAPACITY,
    ),
    map::<u32, abi::Network>(maps::NETWORKS, MapType::Hash, maps::NETWORKS_CAPACITY),
    map::<abi::DialledKey, abi::Dialled>(maps::DIALLED, MapType::LruHash, maps::DIALLED_CAPACITY),
    map::<u32, abi::Uplink>(maps::UPLINKS, MapType::Hash, maps::UPLINKS_CAPACITY),
    map::<Address, u32>(maps::LOCALS, MapType::Hash, maps::LOCALS_CAPACITY),
    map::<PrefixKey, u32>(maps::PREFIXES, MapType::LpmTrie, maps::PREFIXES_CAPACITY),
    map::<u32, abi::Counters>(
        maps::COUNTERS,
        MapType::PerCpuArray,
        maps::COUNTERS_CAPACITY,
    ),
    map::<u32, abi::DropCount>(maps::DROPS, MapType::PerCpuArray, maps::DROP_REASONS),
    map::<u32, abi::PodDrops>(maps::POD_DROPS, MapType::Hash, maps::POD_DROPS_CAPACITY),
    map::<(), ()>(
        maps::DROP_RECORDS,
        MapType::RingBuf,
        maps::DROP_RECORDS_BYTES,
    ),
    map::<u32, abi::DropSampling>(maps::DROP_SAMPLING, MapType::Array, 1),
    map::<u32, abi::Limit>(maps::LIMITS, MapType::Array, maps::LIMITS_CAPACITY),
    map::<(u32, abi::ShapedSubnetKey), u32>(maps::PEERS, MapType::LpmTrie, maps::PEERS_CAPACITY),
    map::<u32, abi::Bucket>(maps::BUCKETS, MapType::Array, maps::LIMITS_CAPACITY),
    map::<u32, abi::Shaped>(maps::SHAPED, MapType::PerCpuArray, maps::LIMITS_CAPACITY),
    map::<u64, u32>(maps::PACED, MapType::LruHash, maps::PACED_CAPACITY),
    map::<u64, u32>(maps::BOUNDED, MapType::LruHash, maps::BOUNDED_CAPACITY),
    map::<u32, abi::Settings>(maps::SETTINGS, MapType::Array, 1),
    map::<u32, abi::Swept>(maps::SWEPT, MapType::Array, 1),
    map::<u32, u64>(
        maps::EPOCHS,
        MapType::Array,
        maps::EPOCHS_OF_FLOWS + maps::SHARDS,
    ),
    map::<u32, abi::Events>(maps::EVENTS, MapType::Array, 1),
    map::<abi::Tuple, abi::Offloaded>(maps::OFFLOADED, MapType::Hash, maps::OFFLOADED_CAPACITY),
    map::<(), ()>(maps::CANDIDATES, MapType::RingBuf, maps::CANDIDATES_SIZE),
    map::<u32, abi::PendingCounters>(maps::PENDING, MapType::Array, ANY_NUMBER),
];

/// Returns whether a pinned map has the shape of the ABI's map of this name.
pub(crate) fn has_current_shape(pin: &Path, name: &str) -> bool {
    let wanted = MAPS.iter().find(|map| map.name == name);
    let found = MapInfo::from_pin(pin).ok().as_ref().and_then(shape);
    wanted
        .zip(found)
        .is_some_and(|(wanted, found)| found.is_good_for(wanted.shape))
}

pub(crate) fn shape(info: &MapInfo) -> Option<Shape> {
    Some(Shape {
        kind: info.map_type().ok()?,
        key: usize::try_from(info.key_size()).ok()?,
        value: usize::try_from(info.value_size()).ok()?,
        capacity: info.max_entries(),
    })
}
