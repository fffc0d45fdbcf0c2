//! Reads the whole flow table.
//!
//! The table is large, so each reader opens the pinned map and reads on its own thread. Neither
//! packets nor the engine wait for it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use abi::{Flow, Offloaded, PendingCounters, Settings, SettingsFlags, Tuple, maps};
use nix::time::{ClockId, clock_gettime};
use steps::FlowTable;

use crate::ObserveError;
use crate::bpf::map::{self, ANY, Hash, List, Wire};
use crate::bpf::{batch, pinned_maps, pins};
use crate::error::{Attempt as _, io_error};

/// Reads the pinned flow table; works while no agent is running.
#[derive(Clone, Debug)]
pub struct FlowReader {
    /// Directory of the pinned maps.
    pin: PathBuf,
}

impl FlowReader {
    /// Makes a reader of the flow table that is pinned below `bpffs`.
    pub fn new(bpffs: &Path) -> Self {
        Self {
            pin: pins::version(bpffs).join(pinned_maps::MAP_PINS),
        }
    }

    /// Reads all flows. Flows that are created or removed meanwhile may be missing, or have one of
    /// their two entries.
    pub fn read(&self) -> Result<FlowTable, ObserveError> {
        let table = self.entries().and_then(|table| self.with_paths(table));
        let table = table.attempt(|| format!("read the flow table {}", self.pin.display()))?;
        Ok(table)
    }

    /// Adds what decides how the packets of flows get through the node.
    fn with_paths(&self, mut table: FlowTable) -> io::Result<FlowTable> {
        let only_element: List<Settings> = map::open(&self.pin, &maps::SETTINGS)?;
        let settings = only_element
            .get(&0, ANY)
            .map_err(|error| io_error(&error))?
            .0;
        table.bypasses = settings.flags & SettingsFlags::BYPASS != 0;
        if settings.flags & SettingsFlags::OFFLOAD != 0 {
            let offloaded: Hash<Tuple, Offloaded> = map::open(&self.pin, &maps::OFFLOADED)?;
            let entries = batch::list(&offloaded)?.into_iter();
            table.offloaded = entries
                .map(|(tuple, decision)| (tuple.0, decision.0))
                .collect();
        }
        Ok(table)
    }

    pub(crate) fn entries(&self) -> io::Result<FlowTable> {
        let flows: Hash<Tuple, Flow> = map::open(&self.pin, &maps::FLOWS)?;
        let mut entries = batch::list(&flows)?
            .into_iter()
            .map(|(tuple, flow)| (tuple.0, flow.0))
            .collect();
        self.add_pending(&mut entries)?;
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        Ok(FlowTable {
            entries,
            now: u32::try_from(now.tv_sec()).unwrap_or(u32::MAX),
            ..FlowTable::default()
        })
    }

    /// Adds the pending counters: packets that the flow cache handled and that are not in the
    /// flow's entry yet.
    fn add_pending(&self, entries: &mut BTreeMap<Tuple, Flow>) -> io::Result<()> {
        let pending: List<PendingCounters> = map::open(&self.pin, &maps::PENDING)?;
        let counted = |it: &(u32, Wire<PendingCounters>)| it.1.0.packets != 0;
        for (_, Wire(pending)) in batch::list(&pending)?.into_iter().filter(counted) {
            if let Some(flow) = entries.get_mut(&pending.key) {
                pending.add_to(flow);
            }
        }
        Ok(())
    }
}
