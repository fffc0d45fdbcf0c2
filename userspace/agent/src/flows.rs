//! Live flows with the names of their pods, and the usage of the flow table (`GET /v1/flows`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use abi::protocol;
use api::{
    DEFAULT_FLOW_LIMIT, EndsView, FlowQuery, FlowTableView, FlowView, FlowsView, PodFlowsView,
    PodView,
};
use engine::EngineError;
use kernel::{Measured, ObserveError};
use model::Record;
use steps::{FlowEndpoints, FlowFilter, FlowTable, LiveFlow};

use crate::failure::Failure;

type Read = dyn Fn() -> Result<FlowTable, ObserveError> + Send + Sync;

/// Reader of the flow table, which tests replace.
#[derive(Clone)]
pub(crate) struct FlowSource(Arc<Read>);

impl FlowSource {
    pub(crate) fn new(
        read: impl Fn() -> Result<FlowTable, ObserveError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(read))
    }

    /// Reads the table on a blocking thread: a large table takes long.
    pub(crate) async fn read(&self) -> Result<FlowTable, Failure> {
        let read = Arc::clone(&self.0);
        let table = tokio::task::spawn_blocking(move || read()).await;
        let table = table.map_err(|_| cni::Error::internal("reading the flow table panicked"))?;
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

/// The input of a response about flows, read at about the same time.
pub(crate) struct FlowSnapshot<'a> {
    pub(crate) table: &'a FlowTable,
    /// Capacity of the table in entries.
    pub(crate) entries: u32,
    /// The records, to find the pods of flows.
    pub(crate) records: &'a [Record],
    /// The counters of the datapath.
    pub(crate) measured: &'a Measured,
}

/// Returns the flows of attached pods and of the node that match `query`.
pub(crate) fn view(query: &FlowQuery, snapshot: &FlowSnapshot<'_>) -> FlowsView {
    let FlowSnapshot { table, records, .. } = *snapshot;
    let owners: Owners<'_> = records
        .iter()
        .map(|record| (owner(record), record))
        .collect();
    let filter = filter(query, records);
    let limit = query.limit.unwrap_or(DEFAULT_FLOW_LIMIT);
    let mut view = FlowsView {
        table: table_view(snapshot),
        ..FlowsView::default()
    };
    for flow in table.flows() {
        let record = owners.get(&(flow.pod, flow.generation));
        // Flows of a removed pod, or of an earlier generation of its slot, wait for the sweep.
        if (flow.pod != 0 && record.is_none()) || !filter.matches(&flow) {
            continue;
        }
        view.matching += 1;
        if view.flows.len() < limit {
            view.flows.push(flow_view(&flow, record.copied()));
        }
    }
    view
}

fn table_view(snapshot: &FlowSnapshot<'_>) -> FlowTableView {
    let mut flows = BTreeMap::<(u32, u32), u64>::new();
    for flow in snapshot.table.flows() {
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
        used_entries: u64::try_from(snapshot.table.entries.len()).unwrap_or(u64::MAX),
        quota: planner::flow_quota(snapshot.entries),
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
fn matches_name(record: &Record, name: &str) -> bool {
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
        protocol: protocol_name(flow.protocol),
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

fn protocol_name(number: u8) -> String {
    match number {
        protocol::TCP => "tcp".to_owned(),
        protocol::UDP => "udp".to_owned(),
        protocol::SCTP => "sctp".to_owned(),
        protocol::ICMP | protocol::ICMPV6 => "icmp".to_owned(),
        other => other.to_string(),
    }
}
