//! Metrics of network policies.

use model::NetworkPolicies;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Registers `network_policies`, the number of policies in effect.
pub(super) fn register(registry: &mut Registry, policies: &NetworkPolicies) {
    let gauge: Gauge = Gauge::default();
    gauge.set(i64::try_from(policies.policies.len()).unwrap_or(i64::MAX));
    registry.register("network_policies", "Network policies in effect", gauge);
}
