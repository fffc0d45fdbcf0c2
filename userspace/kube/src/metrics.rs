//! Metrics of this program. Cloning shares the values.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::cluster::Problem;
use crate::version::BUILD;

/// What was sent to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sent {
    PodCidrs,
    Peers,
    Limits,
    Policies,
}

impl EncodeLabelValue for Sent {
    fn encode(
        &self,
        encoder: &mut prometheus_client::encoding::LabelValueEncoder<'_>,
    ) -> fmt::Result {
        let word = match self {
            Self::PodCidrs => "pod-cidrs",
            Self::Peers => "peers",
            Self::Limits => "limits",
            Self::Policies => "policies",
        };
        EncodeLabelValue::encode(&word, encoder)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Resource {
    resource: &'static str,
}

/// A failed request; code 0 for one without an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failure {
    resource: &'static str,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    what: Sent,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
    commit: &'static str,
    api: &'static str,
}

/// All metrics.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    values: Values,
    registry: Arc<Registry>,
}

#[derive(Clone, Debug, Default)]
struct Values {
    nodes: Gauge,
    peers: Gauge,
    problems: Family<Kind, Gauge>,
    api_reachable: Family<Resource, Gauge>,
    api_failures: Family<Failure, Counter>,
    lists: Family<Resource, Counter>,
    agent_reachable: Gauge,
    synced: Gauge,
    conflist: Gauge,
    policies: Family<Kind, Gauge>,
    policies_synced: Family<Resource, Gauge>,
    requests: Family<Request, Counter>,
    resident: Gauge,
}

impl Metrics {
    /// Registers all metrics; that of the configuration list only if this program keeps one.
    pub(crate) fn new(has_conflist: bool) -> Self {
        let values = Values::default();
        let mut registry = Registry::with_prefix("viaduct_kube");
        values.register(&mut registry);
        if has_conflist {
            registry.register(
                "conflist_written",
                "Whether the CNI configuration list is in place",
                values.conflist.clone(),
            );
        }
        for kind in Problem::KINDS {
            values.problems.get_or_create(&Kind { kind }).set(0);
        }
        Self {
            values,
            registry: Arc::new(registry),
        }
    }

    /// Returns all metrics in the `OpenMetrics` format.
    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        self.values.resident.set(resident_bytes());
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    pub(crate) fn nodes(&self, count: usize) {
        set(&self.values.nodes, count);
    }

    pub(crate) fn peers(&self, count: usize) {
        set(&self.values.peers, count);
    }

    pub(crate) fn problems(&self, problems: &[Problem]) {
        for kind in Problem::KINDS {
            let count = problems.iter().filter(|one| one.kind() == kind).count();
            set(&self.values.problems.get_or_create(&Kind { kind }), count);
        }
    }

    pub(crate) fn list_started(&self, resource: &'static str) {
        self.values
            .lists
            .get_or_create(&Resource { resource })
            .inc();
    }

    pub(crate) fn api_reached(&self, resource: &'static str) {
        let reachable = &self.values.api_reachable;
        reachable.get_or_create(&Resource { resource }).set(1);
    }

    pub(crate) fn api_failed(&self, resource: &'static str, code: Option<u16>) {
        let reachable = &self.values.api_reachable;
        reachable.get_or_create(&Resource { resource }).set(0);
        let code = code.unwrap_or_default();
        let failure = Failure { resource, code };
        self.values.api_failures.get_or_create(&failure).inc();
    }

    /// Removes the state of a watch that has ended, since its objects are not needed any more.
    pub(crate) fn not_watched(&self, resource: &'static str) {
        self.values.api_reachable.remove(&Resource { resource });
    }

    pub(crate) fn policies(&self, valid: usize, invalid: usize) {
        for (kind, count) in [("valid", valid), ("invalid", invalid)] {
            set(&self.values.policies.get_or_create(&Kind { kind }), count);
        }
    }

    pub(crate) fn policies_synced(&self, is_synced: bool) {
        let resource = "networkpolicies";
        let synced = &self.values.policies_synced;
        synced
            .get_or_create(&Resource { resource })
            .set(is_synced.into());
    }

    pub(crate) fn agent_reachable(&self, is_reachable: bool) {
        self.values.agent_reachable.set(is_reachable.into());
    }

    pub(crate) fn synced(&self, is_synced: bool) {
        self.values.synced.set(is_synced.into());
    }

    pub(crate) fn conflist(&self, is_written: bool) {
        self.values.conflist.set(is_written.into());
    }

    pub(crate) fn sent(&self, what: Sent, is_done: bool) {
        let outcome = if is_done { "done" } else { "failed" };
        let request = Request { what, outcome };
        self.values.requests.get_or_create(&request).inc();
    }

    /// Returns what is missing until pods of this node reach those of others; empty if nothing is.
    /// An API server that is away is not among it: the last known state is in effect.
    pub(crate) fn unready(&self) -> Vec<&'static str> {
        let checks = [
            (&self.values.agent_reachable, "agent-unreachable"),
            (&self.values.synced, "nodes-not-sent"),
        ];
        let missing = checks.iter().filter(|(gauge, _)| gauge.get() == 0);
        missing.map(|(_, word)| *word).collect()
    }
}

impl Values {
    fn register(&self, registry: &mut Registry) {
        register_build(registry);
        self.register_nodes(registry);
        registry.register(
            "agent_reachable",
            "Whether the agent serves",
            self.agent_reachable.clone(),
        );
        registry.register(
            "synced",
            "Whether the agent has the last pod CIDRs and peers that it was sent",
            self.synced.clone(),
        );
        registry.register(
            "network_policies",
            "NetworkPolicies of the last complete list and the events after it",
            self.policies.clone(),
        );
        registry.register(
            "network_policies_synced",
            "Whether the agent has the last network policies that it was sent",
            self.policies_synced.clone(),
        );
        registry.register(
            "agent_requests",
            "Changes sent to the agent",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "resident_memory",
            "Resident memory of this process",
            Unit::Bytes,
            self.resident.clone(),
        );
    }

    fn register_nodes(&self, registry: &mut Registry) {
        registry.register(
            "nodes",
            "Nodes of the last complete list and the events after it",
            self.nodes.clone(),
        );
        registry.register(
            "peers",
            "Nodes that are peers of this node",
            self.peers.clone(),
        );
        registry.register(
            "problems",
            "What is wrong with Nodes, by kind",
            self.problems.clone(),
        );
        registry.register(
            "api_reachable",
            "Whether the last request to the API server succeeded",
            self.api_reachable.clone(),
        );
        registry.register(
            "api_failures",
            "Failed requests to the API server, by HTTP status; 0 for no answer",
            self.api_failures.clone(),
        );
        registry.register(
            "lists",
            "Complete lists that were begun",
            self.lists.clone(),
        );
    }
}

fn register_build(registry: &mut Registry) {
    let build: Family<Build, Gauge> = Family::default();
    let labels = Build {
        version: BUILD.version,
        commit: BUILD.commit().unwrap_or("unknown"),
        api: api::VERSION,
    };
    build.get_or_create(&labels).set(1);
    registry.register(
        "build_info",
        "Build of this program; the value is always 1",
        build,
    );
}

fn set(gauge: &Gauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}

/// Returns the resident memory; 0 if it is not known.
fn resident_bytes() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<i64>().ok());
    kibibytes.unwrap_or_default().saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_their_values_and_readiness_names_what_is_missing() {
        let metrics = Metrics::new(true);
        assert_eq!(metrics.unready(), ["agent-unreachable", "nodes-not-sent"]);
        metrics.agent_reachable(true);
        metrics.synced(true);
        metrics.api_failed("nodes", Some(410));
        metrics.sent(Sent::PodCidrs, true);
        metrics.problems(&[Problem::OwnWithoutCidr]);
        assert!(metrics.unready().is_empty());
        let text = metrics.text().unwrap();
        for line in [
            "viaduct_kube_api_failures_total{resource=\"nodes\",code=\"410\"} 1",
            "viaduct_kube_agent_requests_total{what=\"pod-cidrs\",outcome=\"done\"} 1",
            "viaduct_kube_problems{kind=\"own-without-cidr\"} 1",
            "viaduct_kube_problems{kind=\"overlap\"} 0",
            "viaduct_kube_conflist_written 0",
            "# UNIT viaduct_kube_resident_memory_bytes bytes",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[test]
    fn a_program_without_a_configuration_list_has_no_metric_of_one() {
        let text = Metrics::new(false).text().unwrap();
        assert!(!text.contains("conflist"), "{text}");
    }
}
