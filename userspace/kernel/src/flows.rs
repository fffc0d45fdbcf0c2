//! Reading the whole flow table. It is long, so whoever wants it opens the pinned map by himself and reads on a thread
//! of his own: neither packets nor the engine wait for that.

use std::io;
use std::path::{Path, PathBuf};

use abi::{Flow, Tuple, maps};
use aya::maps::{HashMap, Map, MapData};
use nix::time::{ClockId, clock_gettime};
use planner::FlowTable;

use crate::ObserveError;
use crate::batch;
use crate::error::{Attempt as _, io_error};
use crate::succession;
use crate::tables::{Hash, Wire};

/// Reads the flow table of an agent, running or not.
#[derive(Clone, Debug)]
pub struct FlowReader {
    pin: PathBuf,
}

impl FlowReader {
    /// The table whose pins are below `bpffs`.
    pub fn new(bpffs: &Path) -> Self {
        let version = succession::directory(abi::ABI_VERSION);
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
        let flows: Hash<Wire<Tuple>, Wire<Flow>> =
            HashMap::try_from(Map::HashMap(map)).map_err(|error| io_error(&error))?;
        let entries = batch::list(&flows)?.into_iter();
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        Ok(FlowTable {
            entries: entries.map(|(tuple, flow)| (tuple.0, flow.0)).collect(),
            now: u32::try_from(now.tv_sec()).unwrap_or(u32::MAX),
        })
    }
}
