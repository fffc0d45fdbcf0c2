//! Connections that netfilter has accepted: candidates that the programs report, and the offload
//! table that holds the decisions about them (decision 118).

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use abi::{Address, Endpoint, OffloadCandidate, Offloaded, Settings, SettingsFlags, Tuple, maps};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};
use steps::TrackedConnection;
use zerocopy::FromBytes as _;

use crate::ObserveError;
use crate::bpf::map::{self, Hash, List, Ring, Wire, present, removed, written};
use crate::bpf::{batch, pinned_maps, pins};
use crate::error::Attempt as _;
use crate::firewall::conntrack::Conntrack;

/// Candidates that one call returns at most.
const BATCH: usize = 512;

/// Reads candidates, and writes decisions.
pub struct Offloads {
    candidates: Ring,
    table: Hash<Tuple, Offloaded>,
    endpoints: Hash<Address, Endpoint>,
    settings: List<Settings>,
    conntrack: Option<Conntrack>,
}

impl Offloads {
    /// Opens the maps that are pinned below `bpffs`, and the conntrack table of the namespace of
    /// the calling thread.
    pub fn open(bpffs: &Path) -> Result<Self, ObserveError> {
        let opened = Self::open_all(&pins::version(bpffs).join(pinned_maps::MAP_PINS));
        Ok(opened.attempt(|| "open the offload table".to_owned())?)
    }

    fn open_all(pins: &Path) -> io::Result<Self> {
        Ok(Self {
            candidates: map::open(pins, &maps::CANDIDATES)?,
            table: map::open(pins, &maps::OFFLOADED)?,
            endpoints: map::open(pins, &maps::ENDPOINTS)?,
            settings: map::open(pins, &maps::SETTINGS)?,
            conntrack: Conntrack::open()?,
        })
    }

    /// Waits for candidates, for `milliseconds` at most, and returns them without duplicates.
    pub fn wait(&mut self, milliseconds: u16) -> io::Result<BTreeSet<OffloadCandidate>> {
        let mut ring = [PollFd::new(self.candidates.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ring, PollTimeout::from(milliseconds)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut found = BTreeSet::new();
        while found.len() < BATCH
            && let Some(record) = self.candidates.next()
        {
            found.extend(OffloadCandidate::read_from_bytes(&record).ok());
        }
        Ok(found)
    }

    /// Returns the connection in conntrack whose packets have this tuple behind netfilter's last
    /// hook, in either direction.
    pub fn connection(&self, tuple: &Tuple) -> io::Result<Option<TrackedConnection>> {
        match &self.conntrack {
            // conntrack knows packets by the tuple that they come with.
            Some(conntrack) => conntrack.find(&tuple.reverse()),
            None => Ok(None),
        }
    }

    /// Stops conntrack's check of sequence numbers for a TCP connection: it will not see all
    /// packets.
    pub fn make_liberal(&self, connection: &TrackedConnection) -> io::Result<()> {
        match &self.conntrack {
            Some(conntrack) => conntrack.make_liberal(connection),
            None => Ok(()),
        }
    }

    /// Returns whether UDP flows without a reply may bypass the stack.
    pub fn allows_unreplied(&self) -> io::Result<bool> {
        let settings = present(self.settings.get(&0, 0))?;
        Ok(settings.is_some_and(|Wire(it)| it.flags & SettingsFlags::OFFLOAD_UNREPLIED != 0))
    }

    /// Returns the addresses of the agent's pods.
    pub fn pods(&self) -> io::Result<BTreeSet<Address>> {
        let endpoints = batch::list(&self.endpoints)?;
        Ok(endpoints.into_iter().map(|(Wire(it), _)| it).collect())
    }

    /// Returns whether a pod of the agent has this address.
    pub fn is_pod(&self, address: Address) -> io::Result<bool> {
        Ok(present(self.endpoints.get(&Wire(address), 0))?.is_some())
    }

    /// Writes a decision about packets with this tuple. A full table has no place for it.
    pub fn decide(&mut self, tuple: &Tuple, decision: Offloaded) -> io::Result<()> {
        match written(self.table.insert(Wire(*tuple), Wire(decision), 0)) {
            Err(error) if crate::error::is(&error, Errno::E2BIG) => Ok(()),
            other => other,
        }
    }

    /// Returns the decision about packets with this tuple, also an expired one.
    pub fn decision(&self, tuple: &Tuple) -> io::Result<Option<Offloaded>> {
        Ok(present(self.table.get(&Wire(*tuple), 0))?.map(|Wire(it)| it))
    }

    /// Removes the decision about packets with this tuple.
    pub fn forget(&mut self, tuple: &Tuple) -> io::Result<()> {
        removed(self.table.remove(&Wire(*tuple)))
    }

    /// Removes expired decisions; calls `visit` for each of the others.
    pub fn remove_expired(
        &mut self,
        now: u32,
        mut visit: impl FnMut(&Tuple, &Offloaded),
    ) -> io::Result<()> {
        for (Wire(tuple), Wire(offloaded)) in batch::list(&self.table)? {
            if offloaded.expires <= now {
                self.forget(&tuple)?;
            } else {
                visit(&tuple, &offloaded);
            }
        }
        Ok(())
    }

    /// Returns the time in seconds of `CLOCK_MONOTONIC`.
    pub fn now() -> io::Result<u32> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        u32::try_from(now.tv_sec()).map_err(io::Error::other)
    }
}
