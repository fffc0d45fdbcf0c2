//! Copies the flows of an older ABI version, whose entries have another layout.
//!
//! The programs of the older version write to their table until the agent has replaced each of
//! them. So the table is copied when the new one is created, and its youngest flows again when all
//! programs are replaced. Until then it stays pinned, and the next agent copies it if this one
//! dies.

use std::path::{Path, PathBuf};
use std::{fs, io};

use abi::{Flow, Tuple, maps};
use aya::maps::{HashMap, Map, MapData};
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::bpf::batch;
use crate::bpf::map::{Hash, Wire};
use crate::bpf::pinned_maps::MAP_PINS;
use crate::error::{io_error, is};

/// `BPF_NOEXIST`: add an entry, and never overwrite one.
const ABSENT: u64 = 1;

/// A flow table entry of ABI version 1. 88 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct FlowOfVersion1 {
    translated: Tuple,
    flags: u32,
    seen: u32,
    created: u32,
    last_seen: u32,
    uplink: u32,
    pod: u32,
    generation: u32,
    flow_id: u32,
    packets: u64,
    bytes: u64,
}

const _: () = assert!(size_of::<FlowOfVersion1>() == 88);

impl From<FlowOfVersion1> for Flow {
    /// Version 1 has no acknowledgment numbers: the flow's next packet in each direction sets them.
    /// Until then, a FIN or RST does not end the flow before its idle timeout.
    fn from(flow: FlowOfVersion1) -> Self {
        Self {
            translated: flow.translated,
            flags: flow.flags,
            seen: flow.seen,
            created: flow.created,
            last_seen: flow.last_seen,
            uplink: flow.uplink,
            pod: flow.pod,
            generation: flow.generation,
            flow_id: flow.flow_id,
            acknowledged: 0,
            awaited: 0,
            packets: flow.packets,
            bytes: flow.bytes,
        }
    }
}

/// The pinned flow table of an older version.
pub(crate) struct OlderFlows {
    /// Directory of the version's pins.
    version: PathBuf,
    capacity: u32,
    table: Hash<Tuple, FlowOfVersion1>,
    /// Time of the first copy, in seconds of `CLOCK_MONOTONIC`.
    copied: u32,
}

impl OlderFlows {
    /// Opens the flow table in the pin directory of a version; `None` where none is pinned, or one
    /// whose layout is not known.
    pub(crate) fn open(version: &Path) -> io::Result<Option<Self>> {
        let pin = pin(version);
        if !pin.try_exists()? {
            return Ok(None);
        }
        let capacity = opened(&pin)?.info().map_err(|error| io_error(&error))?;
        let Ok(table) = HashMap::try_from(Map::HashMap(opened(&pin)?)) else {
            tracing::warn!(pin = %pin.display(), "flows of an unknown layout end");
            return Ok(None);
        };
        Ok(Some(Self {
            version: version.to_owned(),
            capacity: capacity.max_entries(),
            table,
            copied: 0,
        }))
    }

    /// Returns the table's number of entries.
    pub(crate) const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Copies all flows that `flows` has no entry for; on a second call those that were created
    /// since the first.
    pub(crate) fn copy_to(&mut self, flows: &mut Hash<Tuple, Flow>) -> io::Result<()> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?.tv_sec();
        let copied = copy(&self.table, flows, self.copied)?;
        tracing::info!(entries = copied, "copied the flows of an older version");
        self.copied = u32::try_from(now).unwrap_or(u32::MAX);
        Ok(())
    }

    /// Removes the older version's pins.
    pub(crate) fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(self.version)
    }
}

/// Returns the path of the flow table's pin in the pin directory of a version.
fn pin(version: &Path) -> PathBuf {
    version.join(MAP_PINS).join(maps::FLOWS.name)
}

fn opened(pin: &Path) -> io::Result<MapData> {
    MapData::from_pin(pin).map_err(|error| io_error(&error))
}

/// Copies the entries that were created in the second `since` or later. Returns their number.
fn copy(
    from: &Hash<Tuple, FlowOfVersion1>,
    to: &mut Hash<Tuple, Flow>,
    since: u32,
) -> io::Result<usize> {
    let mut copied = 0;
    for (tuple, Wire(flow)) in batch::list(from)? {
        let flow: Flow = flow.into();
        if flow.created < since {
            continue;
        }
        match to
            .insert(tuple, Wire(flow), ABSENT)
            .map_err(|error| io_error(&error))
        {
            Ok(()) => copied += 1,
            Err(error) if is(&error, Errno::EEXIST) => {}
            // The table is full: the flow's next packet opens it again.
            Err(error) if is(&error, Errno::E2BIG) => return Ok(copied),
            Err(error) => return Err(error),
        }
    }
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use abi::{Address, FlowFlags, Port, Seen};
    use zerocopy::IntoBytes as _;

    use super::*;

    #[test]
    fn a_flow_of_version_1_keeps_everything_and_has_no_acknowledgment_numbers() {
        let translated = Tuple {
            source: Address::v4([192, 0, 2, 1]),
            destination: Address::v4([203, 0, 113, 5]),
            source_port: Port::new(40_000),
            destination_port: Port::new(443),
            protocol: abi::protocol::TCP,
            reserved: [0; 3],
        };
        let current = Flow {
            translated,
            flags: FlowFlags::SNAT | FlowFlags::ORIGINAL,
            seen: Seen::PACKET | Seen::ACK,
            created: 1,
            last_seen: 2,
            uplink: 3,
            pod: 4,
            generation: 5,
            flow_id: 6,
            acknowledged: 0,
            awaited: 0,
            packets: 7,
            bytes: 8,
        };
        // Version 1 has the same fields in the same order, without the two numbers.
        let bytes = current.as_bytes();
        let older = [&bytes[..72], &bytes[80..]].concat();
        let older = FlowOfVersion1::read_from_bytes(&older).unwrap();
        assert_eq!(Flow::from(older), current);
    }
}
