//! Events for an engine that does not end its work. Its own reports end with it.

use std::sync::Arc;
use std::time::Duration;

use api::EventOutcome;
use engine::Handle;
use tokio::time::{MissedTickBehavior, interval};

use crate::telemetry::events::{Events, NewEvent};

/// Interval between two looks at the engine.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Emits an event when the engine is stuck, and another when it goes on. Ends with the runtime.
pub(crate) async fn poll(handle: Handle, events: Arc<Events>) {
    let mut reported: Option<String> = None;
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
        let reason = model::DegradedReason::EngineStuck.word();
        events.emit(NewEvent::new("degraded", reason, outcome, message));
    }
}
