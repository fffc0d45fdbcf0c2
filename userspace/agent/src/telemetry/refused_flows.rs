//! Events for new flows that the datapath refused: a pod that has used up its flow quota cannot see
//! the reason, its packets are dropped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::DropReason;
use api::EventOutcome;
use kernel::Measured;
use tokio::time::{MissedTickBehavior, interval};

use crate::app::App;
use crate::telemetry::events::NewEvent;

/// Interval between two reads of the counters.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Drop reasons of new flows for which there is no table entry or port.
const REASONS: [DropReason; 3] = [
    DropReason::FlowQuota,
    DropReason::FlowTableFull,
    DropReason::NoPort,
];

/// Counters at the previous read; `None` before the first, because the counters are older than the
/// agent.
#[derive(Debug, Default)]
struct RefusedFlows([Option<u64>; REASONS.len()]);

impl RefusedFlows {
    /// Returns one event for each reason whose counter has increased since the previous call.
    fn increases(&mut self, measured: &Measured) -> Vec<NewEvent> {
        let mut all = Vec::new();
        for (reason, before) in REASONS.into_iter().zip(&mut self.0) {
            let now = measured.drops.get(&reason).map_or(0, |count| count.packets);
            let more = now.saturating_sub(before.replace(now).unwrap_or(now));
            if more > 0 {
                let message = format!("{more} packets of new flows dropped");
                all.push(NewEvent::new(
                    "refuse",
                    reason.name(),
                    EventOutcome::Failed,
                    message,
                ));
            }
        }
        all
    }
}

/// Reads the counters every [`POLL_INTERVAL`]: emits events for refused flows, and adds a sample to
/// the losses of pods. Ends with the runtime.
pub(crate) async fn poll(app: Arc<App>) {
    let mut refused_flows = RefusedFlows::default();
    let mut tick = interval(POLL_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let Ok(measured) = app.handle.measure().await else {
            continue;
        };
        for event in refused_flows.increases(&measured) {
            app.events.emit(event);
        }
        if let Ok(records) = app.handle.attachments().await {
            app.losses.sample(&measured, &records, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_flows_are_reported_as_the_increase_since_the_last_poll() {
        let measured = |packets: u64| {
            let mut measured = Measured::default();
            let count = measured.drops.entry(DropReason::FlowQuota).or_default();
            count.packets = packets;
            measured
        };
        let mut refused_flows = RefusedFlows::default();
        assert!(
            refused_flows.increases(&measured(5)).is_empty(),
            "counted before the agent started"
        );
        assert!(refused_flows.increases(&measured(5)).is_empty());
        let [event] = &refused_flows.increases(&measured(8))[..] else {
            panic!("one reason");
        };
        assert_eq!(
            (event.subject.as_str(), event.message.as_str()),
            ("flow-quota", "3 packets of new flows dropped")
        );
    }
}
