//! The pinned maps, and whether they have the shapes of the ABI.

use std::fmt;
use std::path::Path;

use abi::maps::{self, MapKind, MapShape};
use aya::maps::{MapInfo, MapType};

/// Name of the maps' directory, below that of the version (`pins::version`).
pub(crate) const MAP_PINS: &str = "maps";

/// Name of the links' directory, below that of the version (`pins::version`).
pub(crate) const LINK_PINS: &str = "links";

/// Type, key size, value size (both in bytes) and number of entries of a map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    kind: MapType,
    key: usize,
    value: usize,
    capacity: u32,
}

impl Shape {
    /// Returns the shape that a map of the ABI must have. Where the agent that creates a map
    /// chooses its capacity, that of `found`.
    pub(crate) fn wanted(map: &MapShape, found: Option<Self>) -> Self {
        let chosen = found.filter(|_| map.is_sized_by_loader);
        Self {
            kind: map_type(map.kind),
            key: map.key,
            value: map.value,
            capacity: chosen.map_or(map.capacity, |found| found.capacity),
        }
    }

    /// Returns the shape of an existing map; `None` for a type that aya does not know.
    pub(crate) fn of(info: &MapInfo) -> Option<Self> {
        Some(Self {
            kind: info.map_type().ok()?,
            key: usize::try_from(info.key_size()).ok()?,
            value: usize::try_from(info.value_size()).ok()?,
            capacity: info.max_entries(),
        })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

const fn map_type(kind: MapKind) -> MapType {
    match kind {
        MapKind::Hash => MapType::Hash,
        MapKind::LruHash => MapType::LruHash,
        MapKind::Array => MapType::Array,
        MapKind::PerCpuArray => MapType::PerCpuArray,
        MapKind::LpmTrie => MapType::LpmTrie,
        MapKind::Queue => MapType::Queue,
        MapKind::RingBuf => MapType::RingBuf,
    }
}

/// Returns whether a pinned map has the shape of the ABI's map of this name.
pub(crate) fn has_current_shape(pin: &Path, name: &str) -> bool {
    let map = maps::ALL.iter().find(|map| map.name == name);
    let found = MapInfo::from_pin(pin).ok().as_ref().and_then(Shape::of);
    map.zip(found)
        .is_some_and(|(map, found)| found == Shape::wanted(map, Some(found)))
}
