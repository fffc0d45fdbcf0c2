//! Reading the whole flow table. It is long, so whoever wants it opens the pinned map by himself and reads on a thread
//! of his own: neither packets nor the engine wait for that.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use abi::{Flow, Noted, Tuple, maps};
use aya::maps::{HashMap, Map, MapData, PerCpuArray};
use nix::time::{ClockId, clock_gettime};
use planner::FlowTable;

use crate::ObserveError;
use crate::batch;
use crate::error::{Attempt as _, io_error};
use crate::pins;
use crate::tables::{Hash, Wire};

/// Reads the flow table of an agent, running or not.
#[derive(Clone, Debug)]
pub struct FlowReader {
    /// The folder of the pinned maps.
    pin: PathBuf,
}

impl FlowReader {
    /// The table whose pins are below `bpffs`.
    pub fn new(bpffs: &Path) -> Self {
        Self {
            pin: pins::version(bpffs).join(pins::MAP_PINS),
        }
    }

    /// Reads all of it. Flows that come or go meanwhile may be there or not, or half.
    pub fn read(&self) -> Result<FlowTable, ObserveError> {
        let table = self.entries();
        let table = table.attempt(|| format!("read the flow table {}", self.pin.display()))?;
        Ok(table)
    }

    fn entries(&self) -> io::Result<FlowTable> {
        let map = self.map(maps::FLOWS)?;
        let flows: Hash<Wire<Tuple>, Wire<Flow>> =
            HashMap::try_from(Map::HashMap(map)).map_err(|error| io_error(&error))?;
        let mut entries = batch::list(&flows)?
            .into_iter()
            .map(|(tuple, flow)| (tuple.0, flow.0))
            .collect();
        self.add_noted(&mut entries)?;
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        Ok(FlowTable {
            entries,
            now: u32::try_from(now.tv_sec()).unwrap_or(u32::MAX),
        })
    }

    fn map(&self, name: &str) -> io::Result<MapData> {
        MapData::from_pin(self.pin.join(name)).map_err(|error| io_error(&error))
    }

    /// Adds what has passed by shortcuts and was not added to the flow's entry yet.
    fn add_noted(&self, entries: &mut BTreeMap<Tuple, Flow>) -> io::Result<()> {
        let map = self.map(maps::NOTED)?;
        let noted: PerCpuArray<MapData, Wire<Noted>> =
            PerCpuArray::try_from(Map::PerCpuArray(map)).map_err(|error| io_error(&error))?;
        for each in noted.iter() {
            let each = each.map_err(|error| io_error(&error))?;
            for Wire(noted) in each.iter().filter(|it| it.0.packets != 0) {
                if let Some(flow) = entries.get_mut(&noted.key) {
                    noted.add_to(flow);
                }
            }
        }
        Ok(())
    }
}
