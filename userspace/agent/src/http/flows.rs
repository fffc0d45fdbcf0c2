//! Live flows with the names of their pods, and the usage of the flow table (`GET /v1/flows`).
//!
//! A table with all its flows takes megabytes. So requests at the same time share one snapshot, and
//! each response is rendered piece by piece while its client reads it.

mod snapshot;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use api::{
    DEFAULT_FLOW_LIMIT, EndsView, FlowOrder, FlowQuery, FlowTableView, FlowView, PodFlowsView,
    PodView,
};
use futures_util::{Stream, stream};
use model::Record;
use planner::StackReason;
use serde::Serialize;
use steps::{FlowEndpoints, FlowFilter, FlowPath, LiveFlow, Traffic};
use tokio::task::{spawn_blocking, yield_now};

pub(crate) use self::snapshot::{FlowSnapshot, FlowSource};
use crate::http::failure::Failure;
use crate::http::names;

/// Number of flows that are checked, and rendered if they match, at a time: some 100 KiB.
const FLOWS_PER_CHUNK: usize = 256;

/// Renders the flows of attached pods and of the node that match `query`: an [`api::FlowsView`] in
/// pieces.
pub(crate) async fn render(
    query: FlowQuery,
    snapshot: Arc<FlowSnapshot>,
) -> Result<impl Stream<Item = Result<Vec<u8>, Infallible>> + use<>, Failure> {
    let filter = filter(&query, &snapshot.records)?;
    let limit = query.limit.unwrap_or(DEFAULT_FLOW_LIMIT);
    let order = match query.sort {
        // On a blocking thread, because a large table takes long.
        Some(order) => {
            let (snapshot, filter) = (Arc::clone(&snapshot), filter.clone());
            let sorted = spawn_blocking(move || snapshot.sorted(&filter, order, limit)).await;
            Some(sorted.map_err(|_| cni::Error::internal("sorting the flows panicked"))?)
        }
        None => None,
    };
    let rendering = Rendering {
        filter,
        order,
        limit,
        snapshot,
        next: 0,
        matching: 0,
    };
    Ok(stream::unfold(Some(rendering), |rendering| async {
        let rendering = rendering?;
        // Other requests go on between two pieces.
        yield_now().await;
        let (piece, rest) = rendering.piece();
        Some((Ok(piece), rest))
    }))
}

/// Response that is being rendered.
struct Rendering {
    snapshot: Arc<FlowSnapshot>,
    filter: FlowFilter,
    /// Flows of a sorted response; `None` for the order of the table.
    order: Option<Sorted>,
    /// Maximum number of flows in the response.
    limit: usize,
    /// Index of the next flow.
    next: usize,
    /// Number of matching flows so far.
    matching: usize,
}

/// The first flows that match a query, in its order.
struct Sorted {
    /// Indexes of the flows, no more than the response has.
    flows: Vec<usize>,
    /// Number of all matching flows.
    matching: usize,
}

/// The members of a response behind its flows.
#[derive(Serialize)]
struct Tail<'a> {
    matching: usize,
    stack_reasons: &'a [String],
    truncated_pods: usize,
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
        let flows = match &self.order {
            Some(sorted) => sorted.flows.len(),
            None => snapshot.flows.len(),
        };
        let end = flows.min(self.next + FLOWS_PER_CHUNK);
        for position in self.next..end {
            let index = match &self.order {
                Some(sorted) => sorted.flows[position],
                None => position,
            };
            let flow = &snapshot.flows[index];
            if !snapshot.matches(&self.filter, flow) {
                continue;
            }
            if self.matching < self.limit {
                if self.matching > 0 {
                    text.push(b',');
                }
                append(&mut text, &snapshot.view(flow));
            }
            self.matching += 1;
        }
        self.next = end;
        if end < flows {
            return (text, Some(self));
        }
        let tail = Tail {
            matching: self
                .order
                .as_ref()
                .map_or(self.matching, |sorted| sorted.matching),
            stack_reasons: &snapshot.stack_reasons,
            truncated_pods: snapshot.truncated_pods,
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
    /// Returns whether a flow is listed for the filter. Flows of a removed pod, or of an earlier
    /// generation of its slot, wait for the sweep.
    fn matches(&self, filter: &FlowFilter, flow: &LiveFlow) -> bool {
        let pod = (flow.pod, flow.generation);
        (flow.pod == 0 || self.record(pod).is_some()) && filter.matches(flow)
    }

    /// Returns the first `limit` flows that match, in this order.
    fn sorted(&self, filter: &FlowFilter, order: FlowOrder, limit: usize) -> Sorted {
        let key = |index: &usize| {
            let flow = &self.flows[*index];
            let key = match order {
                FlowOrder::Bytes => u64::MAX - amount(flow, |traffic| traffic.bytes),
                FlowOrder::Packets => u64::MAX - amount(flow, |traffic| traffic.packets),
                FlowOrder::Age => flow.age.map_or(u64::MAX, u64::from),
                FlowOrder::Idle => flow.idle.map_or(u64::MAX, u64::from),
            };
            // Equal flows have the order of the table.
            (key, *index)
        };
        let indexes = 0..self.flows.len();
        let mut flows: Vec<usize> = indexes
            .filter(|index| self.matches(filter, &self.flows[*index]))
            .collect();
        let matching = flows.len();
        if limit < matching {
            flows.select_nth_unstable_by_key(limit, key);
            flows.truncate(limit);
        }
        flows.sort_unstable_by_key(key);
        Sorted { flows, matching }
    }

    /// Returns the record of a pod by its slot and generation.
    fn record(&self, pod: (u32, u32)) -> Option<&Record> {
        let index = self.owners.get(&pod)?;
        self.records.get(*index)
    }

    fn view(&self, flow: &LiveFlow) -> FlowView {
        let pod = self.record((flow.pod, flow.generation));
        let peer = flow.peer_pod.and_then(|pod| self.record(pod));
        FlowView {
            container_id: pod.map(container_id),
            pod: pod.and_then(pod_view),
            peer_container_id: peer.map(container_id),
            peer_pod: peer.and_then(pod_view),
            protocol: names::protocol(flow.protocol),
            kind: flow.kind.name().to_owned(),
            state: flow.state.name().to_owned(),
            path: path(flow.path).to_owned(),
            stack_reason: stack_reason(flow.path),
            seen: ends(&flow.original),
            translated: ends(&flow.translated),
            age_seconds: flow.age,
            idle_seconds: flow.idle,
            sent_packets: flow.sent.map(|sent| sent.packets),
            sent_bytes: flow.sent.map(|sent| sent.bytes),
            answered_packets: flow.replied.map(|replied| replied.packets),
            answered_bytes: flow.replied.map(|replied| replied.bytes),
        }
    }
}

/// Returns an amount of both directions together; 0 if it is not known.
fn amount(flow: &LiveFlow, of: impl Fn(Traffic) -> u64) -> u64 {
    let directions = [flow.sent, flow.replied].into_iter();
    directions.flatten().map(of).sum()
}

fn table_view(snapshot: &FlowSnapshot) -> FlowTableView {
    let mut flows = BTreeMap::<(u32, u32), u64>::new();
    let in_table = |flow: &&LiveFlow| flow.kind.is_in_flow_table();
    for flow in snapshot.flows.iter().filter(in_table) {
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
            container_id: container_id(record),
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

fn filter(query: &FlowQuery, records: &[Record]) -> Result<FlowFilter, Failure> {
    let named = |name: &String| {
        records
            .iter()
            .filter(|record| matches_name(record, name))
            .map(owner)
            .collect()
    };
    let protocols = match &query.protocol {
        Some(name) => Some(names::protocols(name).ok_or_else(|| {
            let expected = "tcp, udp, icmp, sctp, or a number from 0 to 255";
            cni::Error::decode(format!("protocol: {name:?} must be {expected}"))
        })?),
        None => None,
    };
    Ok(FlowFilter {
        pods: query.pod.as_ref().map(named),
        peer: query.peer,
        port: query.port,
        protocols,
    })
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

fn container_id(record: &Record) -> String {
    record.attachment.key.container_id.to_string()
}

fn path(path: FlowPath) -> &'static str {
    match path {
        FlowPath::Bypass => "bypass",
        FlowPath::Offloaded => "offloaded",
        FlowPath::Stack(_) => "stack",
    }
}

fn stack_reason(path: FlowPath) -> String {
    let FlowPath::Stack(decision) = path else {
        return String::new();
    };
    let mut reasons = StackReason::ALL.into_iter();
    let reason = reasons.find(|reason| *reason as u32 == decision);
    reason.map_or_else(String::new, |reason| reason.to_string())
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
