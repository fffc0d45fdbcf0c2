//! Live flows with the names of their pods: the answer to a question about the flow table.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use abi::protocol;
use api::{
    DEFAULT_FLOW_LIMIT, EndsView, FlowQuery, FlowView, FlowsView, PodRoomView, PodView, RoomView,
};
use engine::EngineError;
use kernel::{Measured, ObserveError};
use model::Record;
use planner::{Ends, FlowFilter, FlowTable, LiveFlow};

use crate::failure::Failure;

type Read = dyn Fn() -> Result<FlowTable, ObserveError> + Send + Sync;

/// Whence the flow table is read.
#[derive(Clone)]
pub(crate) struct FlowSource(Arc<Read>);

impl FlowSource {
    pub(crate) fn new(
        read: impl Fn() -> Result<FlowTable, ObserveError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(read))
    }

    /// Reads the table on a thread that may take its time.
    pub(crate) async fn read(&self) -> Result<FlowTable, Failure> {
        let read = Arc::clone(&self.0);
        let table = tokio::task::spawn_blocking(move || read()).await;
        let table = table.map_err(|_| cni::Error::internal("reading the flow table died"))?;
        Ok(table.map_err(EngineError::Observe)?)
    }
}

impl fmt::Debug for FlowSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlowSource")
    }
}

/// The pods of the records by slot and generation.
type Owners<'a> = BTreeMap<(u32, u32), &'a Record>;

/// What is known about flows.
pub(crate) struct Known<'a> {
    /// The flow table.
    pub(crate) table: &'a FlowTable,
    /// How many entries it has room for.
    pub(crate) entries: u32,
    /// Whose flows they are.
    pub(crate) records: &'a [Record],
    /// What has passed.
    pub(crate) measured: &'a Measured,
}

/// The flows that are asked for, of pods that are there and of the node.
pub(crate) fn answer(query: &FlowQuery, known: &Known<'_>) -> FlowsView {
    let Known { table, records, .. } = *known;
    let owners: Owners<'_> = records
        .iter()
        .map(|record| (owner(record), record))
        .collect();
    let filter = filter(query, records);
    let limit = query.limit.unwrap_or(DEFAULT_FLOW_LIMIT);
    let mut view = FlowsView {
        room: room(known),
        ..FlowsView::default()
    };
    for flow in table.flows() {
        let record = owners.get(&(flow.pod, flow.generation));
        // Flows of pods that are gone are dead, only not forgotten yet.
        if (flow.pod != 0 && record.is_none()) || !filter.takes(&flow) {
            continue;
        }
        view.matching += 1;
        if view.flows.len() < limit {
            view.flows.push(show(&flow, record.copied()));
        }
    }
    view
}

fn room(known: &Known<'_>) -> RoomView {
    let mut flows = BTreeMap::<(u32, u32), u64>::new();
    for flow in known.table.flows() {
        *flows.entry((flow.pod, flow.generation)).or_default() += 1;
    }
    let pod = |record: &Record| {
        let slot = record.attachment.slot;
        let counters = known.measured.pods.get(&slot).copied().unwrap_or_default();
        PodRoomView {
            container_id: record.attachment.key.container_id.to_string(),
            pod: pod_view(record),
            flows: flows.get(&owner(record)).copied().unwrap_or(0),
            evicted_flows: counters.egress.evicted_flows + counters.ingress.evicted_flows,
        }
    };
    let pods = known.records.iter().map(pod);
    RoomView {
        entries: known.entries,
        used_entries: u64::try_from(known.table.entries.len()).unwrap_or(u64::MAX),
        quota: planner::flow_quota(known.entries),
        pods: pods
            .filter(|pod| pod.flows + pod.evicted_flows > 0)
            .collect(),
    }
}

fn pod_view(record: &Record) -> Option<PodView> {
    let pod = record.attachment.pod.as_ref()?;
    Some(PodView {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
    })
}

fn owner(record: &Record) -> (u32, u32) {
    (record.attachment.slot, record.attachment.generation)
}

fn filter(query: &FlowQuery, records: &[Record]) -> FlowFilter {
    let named = |name: &String| {
        records
            .iter()
            .filter(|record| is_called(record, name))
            .map(owner)
            .collect()
    };
    FlowFilter {
        pods: query.pod.as_ref().map(named),
        peer: query.peer,
        port: query.port,
    }
}

/// By the start of the container's ID, or by the pod's name, with its namespace or without.
fn is_called(record: &Record, name: &str) -> bool {
    let attachment = &record.attachment;
    let pod = attachment.pod.as_ref();
    (!name.is_empty() && attachment.key.container_id.to_string().starts_with(name))
        || pod.is_some_and(|pod| {
            pod.name == name || name.split_once('/') == Some((&pod.namespace, &pod.name))
        })
}

fn show(flow: &LiveFlow, record: Option<&Record>) -> FlowView {
    let attachment = record.map(|record| &record.attachment);
    FlowView {
        container_id: attachment.map(|attachment| attachment.key.container_id.to_string()),
        pod: record.and_then(pod_view),
        protocol: protocol_name(flow.protocol),
        kind: flow.kind.name().to_owned(),
        state: flow.state.name().to_owned(),
        seen: ends(&flow.seen),
        translated: ends(&flow.translated),
        age_seconds: flow.age,
        idle_seconds: flow.idle,
        sent_packets: flow.sent.packets,
        sent_bytes: flow.sent.bytes,
        answered_packets: flow.answered.packets,
        answered_bytes: flow.answered.bytes,
    }
}

fn ends(ends: &Ends) -> EndsView {
    let text = |end: std::net::SocketAddr| match end.port() {
        0 => end.ip().to_string(),
        _ => end.to_string(),
    };
    EndsView {
        source: text(ends.source),
        destination: text(ends.destination),
    }
}

fn protocol_name(number: u8) -> String {
    match number {
        protocol::TCP => "tcp".to_owned(),
        protocol::UDP => "udp".to_owned(),
        protocol::SCTP => "sctp".to_owned(),
        protocol::ICMP | protocol::ICMPV6 => "icmp".to_owned(),
        other => other.to_string(),
    }
}
