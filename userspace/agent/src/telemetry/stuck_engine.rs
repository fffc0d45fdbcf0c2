//! Events for an engine that does not end its work. Its own reports end with it.

use std::sync::Arc;
use std::time::Duration;

use api::EventOutcome;
use engine::Handle;
use model::DegradedReason;
use tokio::time::{MissedTickBehavior, interval};

use crate::telemetry::events::{Events, NewEvent, reports};

/// Interval between two looks at the engine.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Emits an event when the engine is stuck, and another when it goes on, also if an earlier agent's
/// engine was stuck. Ends with the runtime.
pub(crate) async fn poll(handle: Handle, events: Arc<Events>) {
    let mut reported = reports::lasting(&events, DegradedReason::EngineStuck);
    let mut tick = interval(POLL_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let (outcome, message) = match (handle.stuck(), &reported) {
            (Some(stuck), None) => (EventOutcome::Failed, stuck.to_string()),
            (None, Some(message)) => (EventOutcome::Repaired, message.clone()),
            (Some(_), Some(_)) | (None, None) => continue,
        };
        reported = (outcome == EventOutcome::Failed).then(|| message.clone());
        let reason = DegradedReason::EngineStuck.word();
        events.emit(NewEvent::new("degraded", reason, outcome, message));
    }
}
