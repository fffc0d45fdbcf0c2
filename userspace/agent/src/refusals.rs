//! New flows that the datapath refused, as news: a pod that has used up its quota learns nothing from its own packets.

use std::sync::Arc;
use std::time::Duration;

use abi::DropReason;
use api::EventOutcome;
use kernel::Measured;
use tokio::time::{MissedTickBehavior, interval};

use crate::events::News;
use crate::requests::App;

/// Between two looks at the counters.
const LOOK: Duration = Duration::from_secs(5);

/// Why a flow finds no room.
const REASONS: [DropReason; 3] = [
    DropReason::FlowQuota,
    DropReason::FlowTableFull,
    DropReason::NoPort,
];

/// The counts of the last look; none before the first, since the counters are older than the agent.
#[derive(Debug, Default)]
struct Refusals([Option<u64>; REASONS.len()]);

impl Refusals {
    fn news(&mut self, measured: &Measured) -> Vec<News> {
        let mut all = Vec::new();
        for (reason, before) in REASONS.into_iter().zip(&mut self.0) {
            let now = measured.drops.get(&reason).map_or(0, |count| count.packets);
            let more = now.saturating_sub(before.replace(now).unwrap_or(now));
            if more > 0 {
                let message = format!("{more} packets of new flows");
                all.push(News::new(
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

/// Tells of refusals as they are counted. Ends with the runtime.
pub(crate) async fn follow(app: Arc<App>) {
    let mut refusals = Refusals::default();
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        if let Ok(measured) = app.handle.measure().await {
            for news in refusals.news(&measured) {
                app.events.tell(news);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_refused_since_the_last_look_is_news() {
        let measured = |packets: u64| {
            let mut measured = Measured::default();
            let count = measured.drops.entry(DropReason::FlowQuota).or_default();
            count.packets = packets;
            measured
        };
        let mut refusals = Refusals::default();
        assert!(
            refusals.news(&measured(5)).is_empty(),
            "it was before our time"
        );
        assert!(refusals.news(&measured(5)).is_empty());
        let [news] = &refusals.news(&measured(8))[..] else {
            panic!("one reason");
        };
        assert_eq!(
            (news.subject.as_str(), news.message.as_str()),
            ("flow-quota", "3 packets of new flows")
        );
    }
}
