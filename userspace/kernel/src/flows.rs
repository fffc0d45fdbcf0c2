//! Reading the whole flow table. It is long, so whoever wants it opens the pinned map by himself and reads on a thread
//! of his own: neither packets nor the engine wait for that.

use std::io;
use std::path::{Path, PathBuf};

use abi::{Flow, Tuple, maps};
use aya::maps::{HashMap, Map, MapData};
use nix::time::{ClockId, clock_gettime};
use planner::FlowTable;

use crate::ObserveError;
use crate::error::{Attempt as _, io_error};
use crate::tables::{Hash, Wire, present};

/// Reads the flow table of an agent, running or not.
#[derive(Clone, Debug)]
pub struct FlowReader {
    pin: PathBuf,
}

impl FlowReader {
    /// The table whose pins are below `bpffs`.
    pub fn new(bpffs: &Path) -> Self {
        let version = format!("v{}", abi::ABI_VERSION);
        Self {
            pin: bpffs.join(version).join("maps").join(maps::FLOWS),
        }
    }

    /// Reads all of it. Flows that come or go meanwhile may be there or not, or half.
    pub fn read(&self) -> Result<FlowTable, ObserveError> {
        let table = self.entries();
        let table = table.attempt(|| format!("read the flow table {}", self.pin.display()))?;
        Ok(table)
    }

    fn entries(&self) -> io::Result<FlowTable> {
        let map = MapData::from_pin(&self.pin).map_err(|error| io_error(&error))?;
        let room = map.info().map_err(|error| io_error(&error))?.max_entries();
        // Each entry once, and as many again where the table changes under our feet: the kernel starts anew behind a
        // key that is gone.
        let most = usize::try_from(room)
            .unwrap_or(usize::MAX)
            .saturating_mul(2);
        let flows: Hash<Wire<Tuple>, Wire<Flow>> =
            HashMap::try_from(Map::HashMap(map)).map_err(|error| io_error(&error))?;
        let mut table = FlowTable::default();
        for key in flows.keys().take(most) {
            let key = key.map_err(|error| io_error(&error))?;
            if let Some(flow) = present(flows.get(&key, 0))? {
                table.entries.insert(key.0, flow.0);
            }
        }
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        table.now = u32::try_from(now.tv_sec()).unwrap_or(u32::MAX);
        Ok(table)
    }
}
