//! Receives the datapath's reports of dropped packets.
//!
//! Programs report only while an agent listens: it moves a deadline in their table, so that the
//! reports of an agent that was killed end by themselves.

use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use abi::{DropRecord, DropSampling, maps};
use model::IfName;
use nix::time::{ClockId, clock_gettime};
use steps::LinkRef;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use zerocopy::FromBytes as _;

use crate::ObserveError;
use crate::bpf::map::{self, List, Ring, Wire, written};
use crate::bpf::{pinned_maps, pins};
use crate::error::Attempt as _;
use crate::netlink::ifindex::Names;

/// Time for which programs report after the last [`DropListener::renew`].
const LEASE: Duration = Duration::from_secs(10);
/// Maximum number of reports that are returned at once.
const BATCH: usize = 256;

/// Opens the pinned ring buffer of dropped packets.
#[derive(Clone, Debug)]
pub struct DropReader {
    /// Directory of the pinned maps.
    pin: PathBuf,
}

/// Receives reports until it is dropped; then programs do not report any more. There must be one at
/// a time.
pub struct DropListener {
    ring: Ring,
    sampling: List<DropSampling>,
    names: Names,
    /// When it began to listen, in milliseconds of `CLOCK_MONOTONIC`.
    since: u64,
}

/// A report of a dropped packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropReport {
    /// The report as the program wrote it.
    pub record: DropRecord,
    /// Name of the interface that the packet was on; `None` if it is gone, or not known.
    pub interface: Option<IfName>,
    /// Time since the drop.
    pub age: Duration,
}

impl DropReader {
    /// Makes a reader of the ring buffer that is pinned below `bpffs`.
    pub fn new(bpffs: &Path) -> Self {
        Self {
            pin: pins::version(bpffs).join(pinned_maps::MAP_PINS),
        }
    }

    /// Begins to listen, with one report of each pod and reason in an interval. Earlier reports are
    /// discarded.
    pub fn listen(&self, interval: Duration) -> Result<DropListener, ObserveError> {
        let listener = self.open(interval);
        Ok(listener.attempt(|| format!("read dropped packets from {}", self.pin.display()))?)
    }

    fn open(&self, interval: Duration) -> io::Result<DropListener> {
        let mut ring: Ring = map::open(&self.pin, &maps::DROP_RECORDS)?;
        while ring.next().is_some() {}
        let mut listener = DropListener {
            ring,
            sampling: map::open(&self.pin, &maps::DROP_SAMPLING)?,
            names: Names::open()?,
            since: milliseconds(now()?),
        };
        listener.renew(interval)?;
        Ok(listener)
    }
}

impl DropListener {
    /// Listens for another 10 seconds, with this interval.
    pub fn renew(&mut self, interval: Duration) -> io::Result<()> {
        let sampling = DropSampling {
            until: milliseconds(now()?.saturating_add(LEASE)),
            since: self.since,
            interval: milliseconds(interval),
        };
        written(self.sampling.set(0, Wire(sampling), 0))
    }

    /// Waits for reports, and returns all that there are, in their order and at most 256. Safe to
    /// cancel; must be called inside of a tokio runtime.
    pub async fn next(&mut self) -> io::Result<Vec<DropReport>> {
        loop {
            let reports = self.read()?;
            if !reports.is_empty() {
                return Ok(reports);
            }
            self.wait().await?;
        }
    }

    fn read(&mut self) -> io::Result<Vec<DropReport>> {
        let now = now()?;
        let mut records = Vec::new();
        while records.len() < BATCH
            && let Some(item) = self.ring.next()
        {
            // The entries are of this size, unless the program is of another version.
            records.extend(DropRecord::read_from_bytes(&item));
        }
        let report = |record: DropRecord| DropReport {
            interface: self.name(record.interface),
            age: now.saturating_sub(Duration::from_nanos(record.at)),
            record,
        };
        Ok(records.into_iter().map(report).collect())
    }

    /// Waits until the ring buffer is readable.
    #[expect(
        unsafe_code,
        reason = "tokio has no safe function to register a borrowed descriptor"
    )]
    async fn wait(&self) -> io::Result<()> {
        // SAFETY: the borrow of the ring buffer outlives the registration, which ends with this
        // call.
        let ring =
            unsafe { AsyncFd::register_with_interest(self.ring.as_fd(), Interest::READABLE)? };
        let _ready = ring.readable().await?;
        Ok(())
    }

    fn name(&self, interface: u32) -> Option<IfName> {
        match self.names.named(interface) {
            LinkRef::Name(name) => Some(name),
            LinkRef::Gone(_) => None,
        }
    }
}

impl Drop for DropListener {
    fn drop(&mut self) {
        // Where this fails, the reports end with the lease.
        if let Err(error) = written(self.sampling.set(0, Wire(DropSampling::default()), 0)) {
            tracing::warn!(%error, "cannot stop reports of dropped packets: they end by themselves in 10 s");
        }
    }
}

/// Returns the time of `CLOCK_MONOTONIC`.
fn now() -> io::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_MONOTONIC)?.into())
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
