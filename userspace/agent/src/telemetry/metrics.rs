//! Metrics in the `OpenMetrics` text format. Requests are counted as they end; all other values are
//! read from status, events and the datapath's counters at each scrape.

use std::time::Duration;

use engine::{Handle, Status};
use kernel::Measured;
use model::{AttachmentKey, Record};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::telemetry::events::EventCounters;
use crate::telemetry::phase_metrics::PhaseMetrics;
use crate::telemetry::traces::{SpanCounts, Traces};
use crate::telemetry::{peer_metrics, policy_metrics, process_metrics};

/// Upper bounds of the latency buckets in seconds: an ADD takes some milliseconds, and runtimes
/// give up after a minute or two.
const SECONDS: [f64; 12] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 60.0,
];

/// Counters that live as long as the agent.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    requests: Family<Request, Counter>,
    seconds: Family<Verb, Histogram>,
    phases: PhaseMetrics,
    spans: SpanCounts,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    verb: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Verb {
    verb: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Pool {
    network: String,
    subnet: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodDirection {
    network: String,
    container: String,
    ifname: String,
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodReason {
    network: String,
    container: String,
    ifname: String,
    reason: &'static str,
}

impl PodDirection {
    fn of(key: &AttachmentKey, direction: &'static str) -> Self {
        Self {
            network: key.network.to_string(),
            container: key.container_id.to_string(),
            ifname: key.ifname.to_string(),
            direction,
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)),
            phases: PhaseMetrics::default(),
            spans: SpanCounts::default(),
        }
    }
}

impl Metrics {
    /// Returns metrics without requests, which count phases and spans of commands from now on.
    pub(crate) fn of_engine(handle: &Handle, traces: &Traces) -> Self {
        let metrics = Self {
            spans: traces.counts(),
            ..Self::default()
        };
        let phases = metrics.phases.clone();
        handle.set_phase_listener(move |command, phase, took| phases.count(command, phase, took));
        metrics
    }

    /// Counts a request and its latency.
    pub(crate) fn count(&self, verb: &'static str, outcome: &'static str, took: Duration) {
        self.requests
            .get_or_create(&Request { verb, outcome })
            .inc();
        let seconds = self.seconds.get_or_create(&Verb { verb });
        seconds.observe(took.as_secs_f64());
    }

    /// Encodes all metrics as text.
    pub(crate) fn text(
        &self,
        status: &Status,
        records: &[Record],
        measured: &Measured,
        events: EventCounters,
        uptime: Duration,
    ) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::with_prefix("viaduct");
        process_metrics::register_build(&mut registry);
        registry.register("events", "Events by action and outcome", events);
        let requests = self.requests.clone();
        registry.register("requests", "Requests by verb and outcome", requests);
        let seconds = self.seconds.clone();
        registry.register("request_seconds", "Latency of requests in seconds", seconds);
        self.phases.register(&mut registry);
        self.spans.register(&mut registry);
        let uptime = signed(uptime.as_secs());
        gauge(
            &mut registry,
            "uptime_seconds",
            "Seconds since the agent started to serve",
            uptime,
        );
        of_status(&mut registry, status);
        of_drops(&mut registry, measured);
        of_pods(&mut registry, records, measured);
        of_pod_drops(&mut registry, records, measured);
        of_limits(&mut registry, records, measured);
        let mut text = String::new();
        encode_registry(&mut text, &registry)?;
        let mut process = Registry::default();
        process_metrics::register_process(&mut process);
        encode(&mut text, &process)?;
        Ok(text)
    }
}

fn of_status(registry: &mut Registry, status: &Status) {
    let attachments = i64::try_from(status.attachments).unwrap_or(i64::MAX);
    gauge(
        registry,
        "attachments",
        "Number of attachments in any state",
        attachments,
    );
    let capacity = i64::from(status.flow_entries.0);
    gauge(
        registry,
        "flow_entries_max",
        "Capacity of the flow table in entries, two per flow",
        capacity,
    );
    let used: Family<Pool, Gauge> = Family::default();
    let total: Family<Pool, Gauge> = Family::default();
    for network in &status.networks {
        for pool in &network.pools {
            let labels = Pool {
                network: network.network.name.to_string(),
                subnet: pool.range.subnet().to_string(),
            };
            used.get_or_create(&labels).set(signed(pool.used));
            total.get_or_create(&labels).set(signed(pool.total));
        }
    }
    registry.register("pool_addresses_used", "Addresses of the pool in use", used);
    registry.register("pool_addresses", "Usable addresses of the pool", total);
    let degraded: Family<Reason, Gauge> = Family::default();
    for one in &status.degraded {
        let reason = one.reason().word().to_owned();
        degraded.get_or_create(&Reason { reason }).inc();
    }
    registry.register("degraded", "Current degradations by reason", degraded);
    peer_metrics::register(registry, &status.peers);
    policy_metrics::register(registry, &status.policies);
    if let Some(report) = &status.last_reconcile {
        let at = signed(report.finished_at);
        gauge(
            registry,
            "reconcile_timestamp_seconds",
            "End of the last reconciliation, in seconds since 1970 (UTC)",
            at,
        );
        let items = i64::try_from(report.items.len()).unwrap_or(i64::MAX);
        gauge(
            registry,
            "reconcile_items",
            "Differences that the last reconciliation found",
            items,
        );
        let failed = report.items.iter().filter(|item| item.has_failed()).count();
        let failed = i64::try_from(failed).unwrap_or(i64::MAX);
        gauge(
            registry,
            "reconcile_items_failed",
            "Differences that the last reconciliation could not repair",
            failed,
        );
    }
}

fn of_drops(registry: &mut Registry, measured: &Measured) {
    gauge(
        registry,
        "flow_entries",
        "Used entries of the flow table, two per flow",
        i64::from(measured.flow_entries),
    );
    let packets: Family<Reason, Counter> = Family::default();
    for (reason, count) in &measured.drops {
        let reason = reason.name().to_owned();
        packets
            .get_or_create(&Reason { reason })
            .inc_by(count.packets);
    }
    registry.register("drops", "Dropped packets by drop reason", packets);
}

fn of_pods(registry: &mut Registry, records: &[Record], measured: &Measured) {
    let packets: Family<PodDirection, Counter> = Family::default();
    let bytes: Family<PodDirection, Counter> = Family::default();
    for record in records {
        let attachment = &record.attachment;
        let Some(counters) = measured.pods.get(&attachment.slot) else {
            continue;
        };
        let both = [("egress", &counters.egress), ("ingress", &counters.ingress)];
        for (direction, counters) in both {
            let labels = PodDirection::of(&attachment.key, direction);
            packets.get_or_create(&labels).inc_by(counters.packets);
            bytes.get_or_create(&labels).inc_by(counters.bytes);
        }
    }
    registry.register(
        "pod_packets",
        "Packets from (egress) and to (ingress) the pod",
        packets,
    );
    registry.register(
        "pod_bytes",
        "Bytes from (egress) and to (ingress) the pod",
        bytes,
    );
}

/// Registers the drops of pods; reasons that never occurred have no series.
fn of_pod_drops(registry: &mut Registry, records: &[Record], measured: &Measured) {
    let packets: Family<PodReason, Counter> = Family::default();
    for record in records {
        let attachment = &record.attachment;
        let drops = measured
            .pod_drops
            .get(&attachment.slot)
            .into_iter()
            .flatten();
        for (reason, count) in drops {
            let labels = PodReason {
                network: attachment.key.network.to_string(),
                container: attachment.key.container_id.to_string(),
                ifname: attachment.key.ifname.to_string(),
                reason: reason.name(),
            };
            packets.get_or_create(&labels).inc_by(*count);
        }
    }
    let help = "Dropped packets from and to the pod by drop reason";
    registry.register("pod_drops", help, packets);
}

/// Names and help texts of the counters of limits.
const LIMIT_COUNTERS: [(&str, &str); 5] = [
    (
        "limit_passed_bytes",
        "Bytes that passed the limit, from the IP header on, as on the wire",
    ),
    (
        "limit_marked",
        "Packets that passed the limit, marked with ECN Congestion Experienced",
    ),
    (
        "limit_paced",
        "Packets that passed the limit, with a departure time",
    ),
    (
        "limit_spared",
        "Packets of low-rate flows that passed beyond the burst",
    ),
    (
        "limit_dropped",
        "Packets beyond the limit that were dropped",
    ),
];

/// Registers limits and their counters; directions without a limit have no series.
fn of_limits(registry: &mut Registry, records: &[Record], measured: &Measured) {
    let rates: Family<PodDirection, Gauge> = Family::default();
    let [bytes, marked, paced, spared, dropped]: [Family<PodDirection, Counter>; 5] =
        Default::default();
    for record in records {
        let attachment = &record.attachment;
        let counters = measured
            .pods
            .get(&attachment.slot)
            .copied()
            .unwrap_or_default();
        let bandwidth = attachment.bandwidth;
        let both = [
            ("egress", bandwidth.egress, counters.shaped_egress),
            ("ingress", bandwidth.ingress, counters.shaped_ingress),
        ];
        for (direction, limit, shaped) in both {
            let Some(limit) = limit else {
                continue;
            };
            let labels = PodDirection::of(&attachment.key, direction);
            rates
                .get_or_create(&labels)
                .set(signed(limit.rate.get() / 8));
            for (family, count) in [
                (&bytes, shaped.passed_bytes),
                (&marked, shaped.marked_packets),
                (&paced, shaped.delayed_packets),
                (&spared, shaped.spared_packets),
                (&dropped, shaped.dropped_packets),
            ] {
                family.get_or_create(&labels).inc_by(count);
            }
        }
    }
    let help =
        "Bandwidth limit of traffic from (egress) or to (ingress) the pod, in bytes per second";
    registry.register("limit_bytes_per_second", help, rates);
    for ((name, help), family) in LIMIT_COUNTERS
        .into_iter()
        .zip([bytes, marked, paced, spared, dropped])
    {
        registry.register(name, help, family);
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: i64) {
    let gauge: Gauge = Gauge::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_text_contains_request_and_event_counters() {
        let metrics = Metrics::default();
        metrics.count("add", "done", Duration::from_millis(3));
        metrics.count("add", "failed", Duration::from_millis(30));
        let measured = Measured {
            flow_entries: 7,
            ..Measured::default()
        };
        let uptime = Duration::from_secs(9);
        let events = crate::telemetry::events::Events::default();
        let outcome = api::EventOutcome::Removed;
        events.emit(crate::telemetry::events::NewEvent::new(
            "gc",
            "default/c1/eth0",
            outcome,
            "",
        ));
        let text = metrics
            .text(
                &Status::default(),
                &[],
                &measured,
                events.counters(),
                uptime,
            )
            .unwrap();
        for line in [
            "viaduct_requests_total{verb=\"add\",outcome=\"done\"} 1",
            "viaduct_request_seconds_bucket{le=\"0.005\",verb=\"add\"} 1",
            "viaduct_events_total{action=\"gc\",outcome=\"removed\"} 1",
            "viaduct_flow_entries 7",
            "viaduct_uptime_seconds 9",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    fn limited() -> Record {
        let limit = model::Limit {
            rate: 1_000_000.try_into().unwrap(),
            burst: None,
        };
        Record {
            attachment: model::Attachment {
                key: AttachmentKey {
                    network: "net".parse().unwrap(),
                    container_id: "c5".parse().unwrap(),
                    ifname: "eth0".parse().unwrap(),
                },
                netns: model::Netns {
                    path: "/run/netns/x".parse().unwrap(),
                    device: 4,
                    inode: 7,
                },
                pod: None,
                bridge: "cbr0".parse().unwrap(),
                mac: model::Mac::local([1, 2, 3, 4, 5]),
                mtu: 1500,
                addresses: Vec::new(),
                routes: Vec::new(),
                port_mappings: Vec::new(),
                standby: std::collections::BTreeSet::new(),
                bandwidth: model::Bandwidth {
                    ingress: None,
                    egress: Some(limit),
                    ..model::Bandwidth::default()
                },
                masquerade: true,
                hairpin: true,
                port: model::PortOptions::default(),
                adopted: None,
                slot: 5,
                generation: 77,
            },
            state: model::State::Attached,
            boot_id: "f00".to_owned(),
            created_at: 0,
        }
    }

    #[test]
    fn metrics_text_contains_limits_and_their_counters_of_limited_directions_only() {
        let counters = kernel::PodCounters {
            shaped_egress: abi::Shaped {
                passed_bytes: 9,
                dropped_packets: 3,
                marked_packets: 2,
                ..abi::Shaped::default()
            },
            ..kernel::PodCounters::default()
        };
        let measured = Measured {
            pods: [(5, counters)].into(),
            pod_drops: [(5, [(abi::DropReason::RateLimit, 3)].into())].into(),
            ..Measured::default()
        };
        let text = Metrics::default()
            .text(
                &Status::default(),
                &[limited()],
                &measured,
                EventCounters::default(),
                Duration::ZERO,
            )
            .unwrap();
        let way = "{network=\"net\",container=\"c5\",ifname=\"eth0\",direction=\"egress\"}";
        for line in [
            format!("viaduct_limit_bytes_per_second{way} 125000"),
            format!("viaduct_limit_passed_bytes_total{way} 9"),
            format!("viaduct_limit_dropped_total{way} 3"),
            format!("viaduct_limit_marked_total{way} 2"),
            format!(
                "viaduct_pod_drops_total{} 3",
                way.replace("direction=\"egress", "reason=\"rate-limit")
            ),
        ] {
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        assert_eq!(
            text.matches("viaduct_pod_drops_total{").count(),
            1,
            "{text}"
        );
        let ingress = way.replace("egress", "ingress");
        assert!(!text.contains(&format!("viaduct_limit_bytes_per_second{ingress}")));
    }
}
