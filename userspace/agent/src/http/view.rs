//! Conversions from the agent's types to those of the API. Pure functions without decisions.

use std::collections::{BTreeMap, BTreeSet};

use abi::DropReason;
use api::{
    AddressView, AttachmentView, BypassView, CounterView, DroppingDefaultView, ForwardingView,
    HostportView, Lease, NetworkView, OffloadView, PoolView, Reconcile, ReconcileItem, RouteView,
    ShaperView, UplinkView, Version,
};
use engine::{
    BypassStatus, Degraded, ForwardingStatus, Item, NetworkStatus, Operation, Outcome, PoolStatus,
    Report, ShaperStatus, Status, UplinkStatus,
};
use kernel::{Feature, Measured, PodCounters};
use model::{Assigned, Attachment, InterfaceAddress, PortMapping, Record, State};
use planner::{DefaultState, HoldingRule};
use steps::PodSide;

use crate::clock;
use crate::http::{limits, names, peers};
use crate::process::offload::OffloadCounts;
use crate::process::sandbox;
use crate::telemetry::rates::Rates;
use crate::version::BUILD;

/// Returns the versions of the agent and of its interfaces.
fn version() -> Version {
    Version {
        agent: BUILD.version.to_owned(),
        commit: BUILD.commit().unwrap_or_default().to_owned(),
        abi: BUILD.abi,
        api: api::VERSION.to_owned(),
        cni: cni::Version::ALL
            .map(|version| version.to_string())
            .to_vec(),
    }
}

/// Returns the state of the agent.
pub(crate) fn status(
    status: &Status,
    uptime_seconds: u64,
    features: &[Feature],
    offloaded: &OffloadCounts,
) -> api::Status {
    api::Status {
        version: version(),
        uptime_seconds,
        networks: status.networks.iter().map(network).collect(),
        uplinks: status.uplinks.iter().map(uplink).collect(),
        attachments: count(status.attachments),
        flow_entries: status.flow_entries.0,
        flow_entries_wanted: status.flow_entries.1,
        datapath_log: status.datapath_log.level.to_string(),
        bypass: bypass(&status.bypass, offloaded),
        forwarding: forwarding(&status.forwarding),
        shaper: shaper(status.shaper),
        last_reconcile: status.last_reconcile.as_deref().map(reconcile),
        peers: peers::counts(&status.peers),
        policies: count(status.policies.policies.len()),
        degraded: status.degraded.iter().map(degraded).collect(),
        losses: Vec::new(),
        operations: Vec::new(),
        features: features.iter().map(feature).collect(),
        sandbox: Some(sandbox::view()),
    }
}

/// Returns a running or queued operation.
pub(crate) fn operation(operation: &Operation) -> api::OperationView {
    api::OperationView {
        verb: operation.verb.to_owned(),
        attachment: operation.key.as_ref().map(ToString::to_string),
        running: operation.runs,
        milliseconds: u64::try_from(operation.since.as_millis()).unwrap_or(u64::MAX),
    }
}

fn feature(feature: &Feature) -> api::FeatureView {
    api::FeatureView {
        name: feature.name.to_owned(),
        available: feature.available,
        chosen: feature.chosen.clone(),
        reason: feature.reason.clone(),
    }
}

fn shaper(status: ShaperStatus) -> ShaperView {
    ShaperView {
        mode: status.mode.to_string(),
        chosen: status.chosen.to_string(),
        paces: status.paces,
        heeds_departure: status.heeds_departure,
    }
}

fn forwarding(status: &ForwardingStatus) -> ForwardingView {
    let defaults = status.defaults.iter().map(|default| {
        let (state, reason) = match &default.state {
            DefaultState::Carried => ("carried", ""),
            DefaultState::Left => ("left", ""),
            DefaultState::Drops(reason) => ("drops", reason.as_str()),
        };
        DroppingDefaultView {
            what: default.what.clone(),
            state: state.to_owned(),
            reason: reason.to_owned(),
        }
    });
    ForwardingView {
        mode: status.mode.to_string(),
        defaults: defaults.collect(),
    }
}

fn bypass(status: &BypassStatus, offloaded: &OffloadCounts) -> BypassView {
    BypassView {
        mode: status.mode.to_string(),
        active: status.active,
        offload: OffloadView {
            active: status.offload,
            offloaded: offloaded.accepted,
            translated: offloaded.translated,
            unreplied: offloaded.unreplied,
            on_stack: offloaded
                .on_stack
                .iter()
                .map(|(reason, count)| (reason.to_string(), *count))
                .collect(),
            rules: sentences(&status.holding_rules),
            unreplied_rules: sentences(&status.holding_unreplied),
        },
        rules: status.rules.iter().cloned().collect(),
    }
}

fn sentences(rules: &BTreeSet<HoldingRule>) -> Vec<String> {
    rules.iter().map(ToString::to_string).collect()
}

/// Returns a network with its address pools.
pub(crate) fn network(status: &NetworkStatus) -> NetworkView {
    NetworkView {
        name: status.network.name.to_string(),
        is_default: status.is_default,
        bridge: status.network.bridge.to_string(),
        mtu: status.mtu,
        masquerade: status.network.masquerade,
        access: status.network.options.port.access.to_string(),
        attachments: count(status.attachments),
        pools: status.pools.iter().map(pool).collect(),
    }
}

fn pool(status: &PoolStatus) -> PoolView {
    PoolView {
        subnet: status.range.subnet().to_string(),
        gateway: status
            .range
            .gateway()
            .map_or_else(String::new, |own| own.to_string()),
        used: status.used,
        total: status.total.min(api::MAX_INTEGER),
    }
}

fn uplink(status: &UplinkStatus) -> UplinkView {
    UplinkView {
        name: status.name.to_string(),
        mtu: status.mtu,
        addresses: status.addresses.iter().map(own_address).collect(),
        attached: status.attached,
        xdp_prefilter: status.xdp_prefilter,
    }
}

fn reconcile(report: &Report) -> Reconcile {
    Reconcile {
        finished_at: report.finished_at,
        finished_time: clock::rfc3339(report.finished_at),
        duration_ms: u64::try_from(report.duration.as_millis()).unwrap_or(u64::MAX),
        items: report.items.iter().map(item).collect(),
    }
}

fn item(item: &Item) -> ReconcileItem {
    ReconcileItem {
        subject: item.subject.clone(),
        outcome: match item.outcome {
            Outcome::Repaired => api::Outcome::Repaired,
            Outcome::Removed => api::Outcome::Removed,
            Outcome::LeftAlone => api::Outcome::LeftAlone,
            Outcome::Failed => api::Outcome::Failed,
        },
        message: item.message.clone(),
    }
}

fn degraded(degraded: &Degraded) -> api::Degraded {
    api::Degraded {
        reason: degraded.reason().word().to_owned(),
        message: degraded.to_string(),
        advice: degraded.reason().advice().to_owned(),
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Returns an attachment, with its counters if these could be read.
pub(crate) fn attachment(
    record: &Record,
    measured: Option<&Measured>,
    rates: &BTreeMap<u32, Rates>,
) -> AttachmentView {
    let attachment = &record.attachment;
    AttachmentView {
        network: attachment.key.network.to_string(),
        container_id: attachment.key.container_id.to_string(),
        ifname: attachment.key.ifname.to_string(),
        netns: if attachment.is_moved_by_runtime() {
            String::new()
        } else {
            attachment.netns.path.to_string()
        },
        pod: attachment.pod.as_ref().map(names::pod),
        host_link: attachment.host_link().to_string(),
        adopted: attachment.adopted.is_some(),
        bridge: attachment.bridge.to_string(),
        mac: attachment.mac.to_string(),
        mtu: attachment.mtu,
        addresses: attachment.addresses.iter().map(address).collect(),
        routes: attachment.routes.iter().map(route).collect(),
        hostports: hostports(attachment),
        access: attachment.port.access.to_string(),
        slot: attachment.slot,
        generation: attachment.generation,
        state: state(record.state).to_owned(),
        created_at: record.created_at,
        created_time: clock::rfc3339(record.created_at),
        bandwidth: limits::view(
            attachment,
            measured.and_then(|measured| measured.pods.get(&attachment.slot)),
            rates.get(&attachment.slot).copied().unwrap_or_default(),
        ),
        counters: measured.map(|measured| pod_counters(measured, attachment.slot)),
    }
}

/// Returns a pod's interface without a record, as inspected; IPv4 addresses first (behaviour K24).
pub(crate) fn unrecorded(id: &str, netns: &str, ifname: &str, side: &PodSide) -> AttachmentView {
    let mut addresses: Vec<&InterfaceAddress> = side.addresses.iter().collect();
    addresses.sort_by_key(|own| !own.address.is_ipv4());
    AttachmentView {
        container_id: id.to_owned(),
        ifname: ifname.to_owned(),
        netns: netns.to_owned(),
        mac: side.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu: side.mtu,
        addresses: addresses.into_iter().map(own_address).collect(),
        routes: side.routes.iter().map(route).collect(),
        state: "not on record".to_owned(),
        ..AttachmentView::default()
    }
}

fn own_address(own: &InterfaceAddress) -> AddressView {
    AddressView {
        address: own.to_string(),
        gateway: None,
    }
}

fn address(assigned: &Assigned) -> AddressView {
    AddressView {
        address: assigned.address.to_string(),
        gateway: assigned.gateway.map(|gateway| gateway.to_string()),
    }
}

fn route(route: &model::Route) -> RouteView {
    RouteView {
        destination: route.destination.to_string(),
        gateway: route.gateway.map(|gateway| gateway.to_string()),
    }
}

pub(crate) fn state(state: State) -> &'static str {
    match state {
        State::Pending => "pending",
        State::Linked => "linked",
        State::Attached => "attached",
        State::Removing => "removing",
    }
}

/// Returns the addresses of an attachment.
pub(crate) fn leases(record: &Record) -> impl Iterator<Item = Lease> + '_ {
    let key = &record.attachment.key;
    record.attachment.addresses.iter().map(|assigned| Lease {
        network: key.network.to_string(),
        address: assigned.address.address.to_string(),
        container_id: key.container_id.to_string(),
        ifname: key.ifname.to_string(),
    })
}

fn hostports(attachment: &Attachment) -> Vec<HostportView> {
    attachment
        .port_mappings
        .iter()
        .map(|mapping| hostport(mapping, ""))
        .collect()
}

/// Returns a published port of the attachment `owner`.
pub(crate) fn hostport(mapping: &PortMapping, owner: &str) -> HostportView {
    HostportView {
        host_address: mapping.host_address.map(|address| address.to_string()),
        host_port: mapping.host_port.get(),
        container_port: mapping.container_port.get(),
        protocol: mapping.protocol.to_string(),
        attachment: owner.to_owned(),
    }
}

fn pod_counters(measured: &Measured, slot: u32) -> CounterView {
    let mut view = CounterView::default();
    if let Some(counters) = measured.pods.get(&slot) {
        add(&mut view, counters);
    }
    let drops = measured.pod_drops.get(&slot).into_iter().flatten();
    view.drops = drops
        .map(|(reason, packets)| (reason.name().to_owned(), *packets))
        .collect();
    view
}

fn add(
    view: &mut CounterView,
    PodCounters {
        egress, ingress, ..
    }: &PodCounters,
) {
    view.rx_packets += ingress.packets;
    view.rx_bytes += ingress.bytes;
    view.rx_dropped += ingress.dropped_packets;
    view.tx_packets += egress.packets;
    view.tx_bytes += egress.bytes;
    view.tx_dropped += egress.dropped_packets;
    view.new_flows += egress.new_flows + ingress.new_flows;
    view.evicted_flows += egress.evicted_flows + ingress.evicted_flows;
}

/// Returns the counters summed over all pods, and the drops of the node.
pub(crate) fn node_counters(measured: &Measured) -> CounterView {
    let mut sum = CounterView::default();
    for counters in measured.pods.values() {
        add(&mut sum, counters);
    }
    let drops = measured.drops.iter();
    let by_name =
        |(reason, count): (&DropReason, &abi::DropCount)| (reason.name().to_owned(), count.packets);
    sum.drops = drops.map(by_name).collect();
    sum
}
