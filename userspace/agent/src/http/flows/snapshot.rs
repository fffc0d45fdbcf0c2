//! Flows at one time: those of the flow table, alone or with those that are read from sockets.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use engine::{EngineError, Handle};
use kernel::{FlowReader, Measured, ObserveError};
use model::Record;
use steps::{FlowTable, LiveFlow, SocketQuery, SocketTable};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::http::answers;
use crate::http::failure::Failure;

/// Time for which requests share a snapshot, while a response uses it.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// Maximum number of snapshots of each kind: the latest, and older ones of clients that read
/// slowly.
const MAX_SNAPSHOTS: usize = 2;
/// Number of flows from which dropping a snapshot returns free memory to the kernel.
const LARGE: usize = 4096;
/// Time that a snapshot waits for the sockets. Reading them is bounded, but the path of a namespace
/// may be on a file system that does not answer.
const SOCKETS_TIMEOUT: Duration = Duration::from_secs(5);

type ReadTable = dyn Fn() -> Result<FlowTable, ObserveError> + Send + Sync;
type ReadSockets = dyn Fn(&SocketQuery) -> Result<SocketTable, ObserveError> + Send + Sync;

/// Reader of the flow table and of sockets, which tests replace.
#[derive(Clone)]
pub(crate) struct FlowSource {
    read_table: Arc<ReadTable>,
    read_sockets: Arc<ReadSockets>,
    latest: Arc<Shared<FlowSnapshot>>,
    latest_table: Arc<Shared<TableFlows>>,
    /// Permit of the only thread that reads sockets.
    sockets_permit: Arc<Semaphore>,
}

impl FlowSource {
    /// Makes a source of the flow table that is pinned below `bpffs`, and of the sockets of the
    /// node and its pods.
    pub(crate) fn of_node(bpffs: &Path) -> Self {
        let reader = FlowReader::new(bpffs);
        Self::new(move || reader.read(), kernel::read_sockets)
    }

    pub(crate) fn new(
        read_table: impl Fn() -> Result<FlowTable, ObserveError> + Send + Sync + 'static,
        read_sockets: impl Fn(&SocketQuery) -> Result<SocketTable, ObserveError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            read_table: Arc::new(read_table),
            read_sockets: Arc::new(read_sockets),
            latest: Arc::default(),
            latest_table: Arc::default(),
            sockets_permit: Arc::new(Semaphore::new(1)),
        }
    }

    /// Returns all flows at one time: now, or at most [`SHARED_FOR`] ago where another response
    /// uses that snapshot.
    pub(crate) async fn snapshot(&self, handle: &Handle) -> Result<Arc<FlowSnapshot>, Failure> {
        let read = async |permit| self.read(handle, permit).await;
        self.latest.get(read).await
    }

    async fn read(
        &self,
        handle: &Handle,
        permit: OwnedSemaphorePermit,
    ) -> Result<FlowSnapshot, Failure> {
        let records = Arc::new(handle.attachments().await?);
        let measured = handle.measure().await?;
        let (sockets, truncated_pods) = self.sockets(&records).await;
        let (used_entries, flows) = self.flows(&records, sockets).await?;
        Ok(FlowSnapshot {
            owners: (0..)
                .zip(&*records)
                .map(|(index, record)| (super::owner(record), index))
                .collect(),
            flows,
            used_entries,
            entries: handle.status().flow_entries.0,
            stack_reasons: handle.status().bypass.rules.iter().cloned().collect(),
            truncated_pods,
            records,
            measured,
            _permit: permit,
        })
    }

    /// Returns the flows of the flow table without their peer pods, and reads no sockets: now, or
    /// at most [`SHARED_FOR`] ago where another response uses them.
    pub(crate) async fn table(&self) -> Result<Arc<TableFlows>, Failure> {
        let read = async |permit| {
            let read = Arc::clone(&self.read_table);
            let flows = in_background(move || Ok(read()?.flows().collect())).await?;
            Ok(TableFlows {
                flows,
                _permit: permit,
            })
        };
        self.latest_table.get(read).await
    }

    /// Reads the sockets on a blocking thread. Returns the number of pods whose sockets are not all
    /// read, too. Without the sockets the flow table is listed alone.
    async fn sockets(&self, records: &[Record]) -> (SocketTable, usize) {
        let query = SocketQuery::of(records.iter().map(|record| &record.attachment));
        let pods = query.namespaces.len();
        // The thread of an earlier snapshot that has not returned still has it.
        let Ok(permit) = Arc::clone(&self.sockets_permit).try_acquire_owned() else {
            return (SocketTable::default(), pods);
        };
        let read = Arc::clone(&self.read_sockets);
        let read = spawn_blocking(move || {
            let _permit = permit;
            read(&query)
        });
        match timeout(SOCKETS_TIMEOUT, read).await {
            Ok(Ok(Ok(sockets))) => {
                let truncated = sockets.truncated_namespaces();
                (sockets, truncated)
            }
            Ok(Ok(Err(error))) => {
                tracing::warn!(%error, "sockets unavailable: listing the flow table alone");
                (SocketTable::default(), pods)
            }
            Ok(Err(_)) | Err(_) => {
                tracing::warn!("sockets not read in time: listing the flow table alone");
                (SocketTable::default(), pods)
            }
        }
    }

    /// Reads the table. Returns the number of its entries; and its flows, and those of the sockets
    /// that it does not have.
    async fn flows(
        &self,
        records: &Arc<Vec<Record>>,
        sockets: SocketTable,
    ) -> Result<(usize, Vec<LiveFlow>), Failure> {
        let (read, records) = (Arc::clone(&self.read_table), Arc::clone(records));
        let read = move || {
            let table = read()?;
            let mut flows: Vec<LiveFlow> = table.flows().collect();
            add_peer_pods(&mut flows, &records);
            let attachments = records.iter().map(|record| &record.attachment);
            let untranslated = sockets.flows(attachments, &table, &flows);
            flows.extend(untranslated);
            flows.shrink_to_fit();
            Ok((table.entries.len(), flows))
        };
        in_background(read).await
    }
}

/// Runs a reader of the flow table on a blocking thread, because a large table takes long.
async fn in_background<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, ObserveError> + Send + 'static,
) -> Result<T, Failure> {
    let read = spawn_blocking(read).await;
    let flows = read.map_err(|_| cni::Error::internal("reading the flow table panicked"))?;
    Ok(flows.map_err(EngineError::Observe)?)
}

/// The latest snapshot of a kind, which requests share for as long as a response uses it.
struct Shared<T> {
    /// When it was read, and the snapshot itself.
    latest: Mutex<(Option<Instant>, Weak<T>)>,
    permits: Arc<Semaphore>,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self {
            latest: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_SNAPSHOTS)),
        }
    }
}

impl<T> Shared<T> {
    /// Returns the latest snapshot, unless it is older than [`SHARED_FOR`] or no response uses it;
    /// then `read` returns another one, which keeps the permit.
    async fn get(
        &self,
        read: impl AsyncFnOnce(OwnedSemaphorePermit) -> Result<T, Failure>,
    ) -> Result<Arc<T>, Failure> {
        // One request reads, and the others wait for its snapshot.
        let mut latest = timeout(answers::WAIT_TIMEOUT, self.latest.lock())
            .await
            .map_err(|_| cni::Error::try_again_later("the flow table is being read"))?;
        let (read_at, snapshot) = &*latest;
        if read_at.is_some_and(|at| at.elapsed() < SHARED_FOR)
            && let Some(snapshot) = snapshot.upgrade()
        {
            return Ok(snapshot);
        }
        let permit = answers::acquire(&self.permits, 1).await?;
        let snapshot = Arc::new(read(permit).await?);
        *latest = (Some(Instant::now()), Arc::downgrade(&snapshot));
        Ok(snapshot)
    }
}

/// Adds the pods that are the peers of flows of the flow table: clients of hostports of other pods.
fn add_peer_pods(flows: &mut [LiveFlow], records: &[Record]) {
    let mut pods = BTreeMap::<IpAddr, (u32, u32)>::new();
    for record in records {
        let addresses = record.attachment.addresses.iter();
        pods.extend(addresses.map(|it| (it.address.address, super::owner(record))));
    }
    for flow in flows {
        flow.peer_pod = pods.get(&flow.peer()).copied();
    }
}

impl fmt::Debug for FlowSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlowSource")
    }
}

/// All flows, and what a response about them needs, read at about the same time.
#[derive(Debug)]
pub(crate) struct FlowSnapshot {
    pub(super) flows: Vec<LiveFlow>,
    /// Number of entries in use.
    pub(super) used_entries: usize,
    /// Capacity of the table in entries.
    pub(super) entries: u32,
    /// Rules of other software that keep packets in the stack.
    pub(super) stack_reasons: Vec<String>,
    /// Number of pods whose sockets are not all read.
    pub(super) truncated_pods: usize,
    /// The records, to find the pods of flows.
    pub(super) records: Arc<Vec<Record>>,
    /// Indexes of the records by slot and generation.
    pub(super) owners: BTreeMap<(u32, u32), usize>,
    /// The counters of the datapath.
    pub(super) measured: Measured,
    _permit: OwnedSemaphorePermit,
}

impl Drop for FlowSnapshot {
    fn drop(&mut self) {
        release(&mut self.flows);
    }
}

/// The flows of the flow table at one time.
#[derive(Debug)]
pub(crate) struct TableFlows {
    /// In the order of their tuples, without their peer pods.
    pub(crate) flows: Vec<LiveFlow>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for TableFlows {
    fn drop(&mut self) {
        release(&mut self.flows);
    }
}

/// Drops flows, and returns the memory of many to the kernel.
fn release(flows: &mut Vec<LiveFlow>) {
    if flows.len() >= LARGE {
        *flows = Vec::new();
        kernel::release_free_memory();
    }
}
