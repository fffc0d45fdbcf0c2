//! Durations of the phases of ADD and DEL.

use std::time::Duration;

use engine::Phase;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of the buckets in seconds: most phases take less than a millisecond.
const SECONDS: [f64; 13] = [
    0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0,
];

/// A histogram of each phase of each command, since the agent's start.
#[derive(Clone, Debug)]
pub(super) struct PhaseMetrics(Family<CommandPhase, Histogram>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CommandPhase {
    command: &'static str,
    phase: &'static str,
}

impl Default for PhaseMetrics {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(SECONDS)))
    }
}

impl PhaseMetrics {
    /// Counts a phase of an ADD (`add`) or DEL (`del`).
    pub(super) fn count(&self, command: &'static str, phase: Phase, took: Duration) {
        let phase = phase.name();
        let seconds = self.0.get_or_create(&CommandPhase { command, phase });
        seconds.observe(took.as_secs_f64());
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let help = "Duration of the phases of ADD and DEL, in seconds";
        registry.register("cni_phase_seconds", help, self.0.clone());
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::telemetry::exposition::Exposition;

    #[test]
    fn each_phase_is_a_histogram_from_a_tenth_of_a_millisecond_in_both_formats() {
        let phases = PhaseMetrics::default();
        phases.count("add", Phase::Plan, Duration::from_micros(90));
        phases.count("add", Phase::Plan, Duration::from_micros(150));
        phases.count("del", Phase::Apply, Duration::from_secs(2));
        let mut registry = Registry::with_prefix("viaduct");
        phases.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for format in [Exposition::OpenMetrics, Exposition::Prometheus] {
            let text = format.of_open_metrics(text.clone());
            let name = "viaduct_cni_phase_seconds";
            let plan = "command=\"add\",phase=\"plan\"";
            let apply = "command=\"del\",phase=\"apply\"";
            for line in [
                format!("# TYPE {name} histogram"),
                format!("{name}_bucket{{le=\"0.0001\",{plan}}} 1"),
                format!("{name}_bucket{{le=\"0.0002\",{plan}}} 2"),
                format!("{name}_bucket{{le=\"+Inf\",{plan}}} 2"),
                format!("{name}_count{{{plan}}} 2"),
                format!("{name}_bucket{{le=\"1.0\",{apply}}} 0"),
                format!("{name}_sum{{{apply}}} 2.0"),
            ] {
                assert!(
                    text.lines().any(|it| it == line),
                    "{line} is not in\n{text}"
                );
            }
        }
    }
}
