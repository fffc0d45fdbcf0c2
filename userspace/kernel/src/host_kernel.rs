//! The real kernel, as the engine uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use abi::Counters;
use model::DatapathLogLevel;
use steps::{Step, TrackedConnection};

use crate::bpf::counters;
use crate::bpf::datapath_log::DatapathLog;
use crate::error::Attempt as _;
use crate::host::Host;
use crate::{Kernel, Measured, ObserveError, StepError, execute};

impl Kernel for Host {
    fn execute(&mut self, step: &Step) -> Result<(), StepError> {
        tracing::trace!(?step, "execute");
        let _at = crash::step(step);
        Ok(execute::execute(self, step)?)
    }

    fn finish_migration(&mut self) -> Result<(), ObserveError> {
        let finished = self.pins.finish_migration(&mut self.tables);
        Ok(finished.attempt(|| "finish the migration of an older version's tables".to_owned())?)
    }

    fn datapath_log(&self) -> DatapathLog {
        self.datapath_log
    }

    fn set_datapath_log(&mut self, level: DatapathLogLevel) -> Result<(), ObserveError> {
        let set = self.load_with_log(level).map_err(io::Error::other);
        Ok(set.attempt(|| format!("load the programs with the datapath log at {level}"))?)
    }

    fn measure(&mut self) -> Result<Measured, ObserveError> {
        let measured = counters::measure(&self.tables);
        Ok(measured.attempt(|| "read the counters".to_owned())?)
    }

    fn sent(&mut self, slots: &BTreeSet<u32>) -> Result<BTreeMap<u32, Counters>, ObserveError> {
        if !self.probed.has_tcx() {
            return Ok(BTreeMap::new());
        }
        let sent = counters::sent(&self.tables, slots);
        Ok(sent.attempt(|| "read the counters".to_owned())?)
    }

    fn translated_connections(
        &mut self,
        addresses: &BTreeSet<IpAddr>,
    ) -> Result<Vec<TrackedConnection>, ObserveError> {
        let found = Self::list_translated(addresses);
        Ok(found.attempt(|| "list the connections in conntrack".to_owned())?)
    }

    fn make_flow(&mut self, connection: &TrackedConnection) -> Result<bool, ObserveError> {
        let made = Host::make_flow(self, connection);
        Ok(made.attempt(|| "make a flow of a connection in conntrack".to_owned())?)
    }
}
