//! Live flows with the names of their pods, and the usage of the flow table (`GET /v1/flows`).
//!
//! A table with all its flows takes megabytes. So requests at the same time share one snapshot, and
//! each response is rendered piece by piece while its client reads it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use api::{
    DEFAULT_FLOW_LIMIT, EndsView, FlowQuery, FlowTableView, FlowView, PodFlowsView, PodView,
};
use engine::{EngineError, Handle};
use futures_util::{Stream, stream};
use kernel::{FlowReader, Measured, ObserveError};
use model::Record;
use serde::Serialize;
use steps::{FlowEndpoints, FlowFilter, FlowTable, LiveFlow};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::timeout;

use crate::http::failure::Failure;
use crate::http::{answers, names};

/// Time for which requests share a snapshot, while a response uses it.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// Maximum number of snapshots: the latest, and older ones of clients that read slowly.
const MAX_SNAPSHOTS: usize = 2;
/// Number of flows that are checked, and rendered if they match, at a time: some 100 KiB.
const FLOWS_PER_CHUNK: usize = 256;
/// Number of flows from which dropping a snapshot returns free memory to the kernel.
const LARGE: usize = 4096;

type Read = dyn Fn() -> Result<FlowTable, ObserveError> + Send + Sync;

/// Reader of the flow table, which tests replace.
#[derive(Clone)]
pub(crate) struct FlowSource {
    read: Arc<Read>,
    latest: Arc<Mutex<(Option<Instant>, Weak<FlowSnapshot>)>>,
    permits: Arc<Semaphore>,
}

impl FlowSource {
    /// Makes a source of the flow table that is pinned below `bpffs`.
    pub(crate) fn of_datapath(bpffs: &Path) -> Self {
        let reader = FlowReader::new(bpffs);
        Self::new(move || reader.read())
    }

    pub(crate) fn new(
        read: impl Fn() -> Result<FlowTable, ObserveError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            read: Arc::new(read),
            latest: Arc::default(),
            permits: Arc::new(Semaphore::new(MAX_SNAPSHOTS)),
        }
    }

    /// Returns all flows at one time: now, or at most [`SHARED_FOR`] ago where another response
    /// uses that snapshot.
    pub(crate) async fn snapshot(&self, handle: &Handle) -> Result<Arc<FlowSnapshot>, Failure> {
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
        let records = handle.attachments().await?;
        let measured = handle.measure().await?;
        let (used_entries, flows) = self.flows().await?;
        let snapshot = Arc::new(FlowSnapshot {
            owners: (0..)
                .zip(&records)
                .map(|(index, record)| (owner(record), index))
                .collect(),
            flows,
            used_entries,
            entries: handle.status().flow_entries.0,
            records,
            measured,
            _permit: permit,
        });
        *latest = (Some(Instant::now()), Arc::downgrade(&snapshot));
        Ok(snapshot)
    }

    /// Reads the table on a blocking thread, because a large table takes long. Returns the number
    /// of its entries, and its flows.
    async fn flows(&self) -> Result<(usize, Vec<LiveFlow>), Failure> {
        let read = Arc::clone(&self.read);
        let read = move || {
            let table = read()?;
            let mut flows: Vec<LiveFlow> = table.flows().collect();
            flows.shrink_to_fit();
            Ok((table.entries.len(), flows))
        };
        let read = spawn_blocking(read).await;
        let flows = read.map_err(|_| cni::Error::internal("reading the flow table panicked"))?;
        Ok(flows.map_err(EngineError::Observe)?)
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
    pub(crate) flows: Vec<LiveFlow>,
    /// Number of entries in use.
    used_entries: usize,
    /// Capacity of the table in entries.
    entries: u32,
    /// The records, to find the pods of flows.
    records: Vec<Record>,
    /// Indexes of the records by slot and generation.
    owners: BTreeMap<(u32, u32), usize>,
    /// The counters of the datapath.
    measured: Measured,
    _permit: OwnedSemaphorePermit,
}

impl Drop for FlowSnapshot {
    fn drop(&mut self) {
        if self.flows.len() >= LARGE {
            self.flows = Vec::new();
            kernel::release_free_memory();
        }
    }
}

/// Renders the flows of attached pods and of the node that match `query`: an [`api::FlowsView`] in
/// pieces.
pub(crate) fn render(
    query: &FlowQuery,
    snapshot: Arc<FlowSnapshot>,
) -> impl Stream<Item = Result<Vec<u8>, Infallible>> + use<> {
    let rendering = Rendering {
        filter: filter(query, &snapshot.records),
        limit: query.limit.unwrap_or(DEFAULT_FLOW_LIMIT),
        snapshot,
        next: 0,
        matching: 0,
    };
    stream::unfold(Some(rendering), |rendering| async {
        let rendering = rendering?;
        // Other requests go on between two pieces.
        yield_now().await;
        let (piece, rest) = rendering.piece();
        Some((Ok(piece), rest))
    })
}

/// Response that is being rendered.
struct Rendering {
    snapshot: Arc<FlowSnapshot>,
    filter: FlowFilter,
    /// Maximum number of flows in the response.
    limit: usize,
    /// Index of the next flow.
    next: usize,
    /// Number of matching flows so far.
    matching: usize,
}

/// The members of a response behind its flows.
#[derive(Serialize)]
struct Tail {
    matching: usize,
    #[serde(rename = "room")]
    table: FlowTableView,
}

impl Rendering {
    /// Returns the next piece, and the rest of the rendering; `None` behind the last piece.
    fn piece(mut self) -> (Vec<u8>, Option<Self>) {
        let snapshot = Arc::clone(&self.snapshot);
        let mut text = Vec::new();
        if self.next == 0 {
            text.extend(b"{\"flows\":[");
        }
        let end = snapshot.flows.len().min(self.next + FLOWS_PER_CHUNK);
        for flow in &snapshot.flows[self.next..end] {
            let record = snapshot.owner(flow);
            // Flows of a removed pod, or of an earlier generation of its slot, wait for the sweep.
            if (flow.pod != 0 && record.is_none()) || !self.filter.matches(flow) {
                continue;
            }
            if self.matching < self.limit {
                if self.matching > 0 {
                    text.push(b',');
                }
                append(&mut text, &flow_view(flow, record));
            }
            self.matching += 1;
        }
        self.next = end;
        if end < snapshot.flows.len() {
            return (text, Some(self));
        }
        let tail = Tail {
            matching: self.matching,
            table: table_view(&snapshot),
        };
        text.extend(b"],");
        let members = text.len();
        append(&mut text, &tail);
        // The tail's members follow the flows in one object.
        text.remove(members);
        (text, None)
    }
}

fn append(text: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(text, value).expect("views have string keys, and a Vec takes all bytes");
}

impl FlowSnapshot {
    fn owner(&self, flow: &LiveFlow) -> Option<&Record> {
        let index = self.owners.get(&(flow.pod, flow.generation))?;
        self.records.get(*index)
    }
}

fn table_view(snapshot: &FlowSnapshot) -> FlowTableView {
    let mut flows = BTreeMap::<(u32, u32), u64>::new();
    for flow in &snapshot.flows {
        *flows.entry((flow.pod, flow.generation)).or_default() += 1;
    }
    let pod = |record: &Record| {
        let slot = record.attachment.slot;
        let counters = snapshot
            .measured
            .pods
            .get(&slot)
            .copied()
            .unwrap_or_default();
        PodFlowsView {
            container_id: record.attachment.key.container_id.to_string(),
            pod: pod_view(record),
            flows: flows.get(&owner(record)).copied().unwrap_or(0),
            evicted_flows: counters.egress.evicted_flows + counters.ingress.evicted_flows,
        }
    };
    let pods = snapshot.records.iter().map(pod);
    FlowTableView {
        entries: snapshot.entries,
        used_entries: u64::try_from(snapshot.used_entries).unwrap_or(u64::MAX),
        quota: planner::flow_quota(snapshot.entries),
        pods: pods
            .filter(|pod| pod.flows + pod.evicted_flows > 0)
            .collect(),
    }
}

fn pod_view(record: &Record) -> Option<PodView> {
    record.attachment.pod.as_ref().map(names::pod)
}

fn owner(record: &Record) -> (u32, u32) {
    (record.attachment.slot, record.attachment.generation)
}

fn filter(query: &FlowQuery, records: &[Record]) -> FlowFilter {
    let named = |name: &String| {
        records
            .iter()
            .filter(|record| matches_name(record, name))
            .map(owner)
            .collect()
    };
    FlowFilter {
        pods: query.pod.as_ref().map(named),
        peer: query.peer,
        port: query.port,
    }
}

/// Matches a prefix of the container ID, or the pod's name with or without its namespace.
pub(crate) fn matches_name(record: &Record, name: &str) -> bool {
    let attachment = &record.attachment;
    let pod = attachment.pod.as_ref();
    (!name.is_empty() && attachment.key.container_id.to_string().starts_with(name))
        || pod.is_some_and(|pod| {
            pod.name == name || name.split_once('/') == Some((&pod.namespace, &pod.name))
        })
}

fn flow_view(flow: &LiveFlow, record: Option<&Record>) -> FlowView {
    let attachment = record.map(|record| &record.attachment);
    FlowView {
        container_id: attachment.map(|attachment| attachment.key.container_id.to_string()),
        pod: record.and_then(pod_view),
        protocol: names::protocol(flow.protocol),
        kind: flow.kind.name().to_owned(),
        state: flow.state.name().to_owned(),
        seen: ends(&flow.original),
        translated: ends(&flow.translated),
        age_seconds: flow.age,
        idle_seconds: flow.idle,
        sent_packets: flow.sent.packets,
        sent_bytes: flow.sent.bytes,
        answered_packets: flow.replied.packets,
        answered_bytes: flow.replied.bytes,
    }
}

fn ends(ends: &FlowEndpoints) -> EndsView {
    let text = |end: std::net::SocketAddr| match end.port() {
        0 => end.ip().to_string(),
        _ => end.to_string(),
    };
    EndsView {
        source: text(ends.source),
        destination: text(ends.destination),
    }
}
