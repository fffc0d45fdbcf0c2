//! Pods that lose packets: what the datapath has dropped in the last minute, compared with what has
//! passed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use abi::DropReason;
use api::LossView;
use kernel::Measured;
use model::Record;

use crate::http::names;

/// Span of time that is considered.
const WINDOW: Duration = Duration::from_mins(1);
/// Share of its packets, in percent, that a pod may lose without being listed.
const TOLERATED_PERCENT: u64 = 1;

/// The pods that lose packets, as of the last sample.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    window: Window,
    views: Arc<[LossView]>,
}

impl Losses {
    /// Adds a sample of the counters.
    pub(crate) fn sample(&self, measured: &Measured, records: &[Record], at: Instant) {
        let mut state = self.state();
        let found = state.window.add(measured, at);
        let views = records.iter().filter_map(|record| {
            let loss = found.get(&record.attachment.slot)?;
            Some(view(record, loss))
        });
        state.views = views.collect();
    }

    /// Returns the pods that lost more than [`TOLERATED_PERCENT`] of their packets.
    pub(crate) fn views(&self) -> Arc<[LossView]> {
        Arc::clone(&self.state().views)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn view(record: &Record, loss: &Loss) -> LossView {
    let attachment = &record.attachment;
    LossView {
        network: attachment.key.network.to_string(),
        container_id: attachment.key.container_id.to_string(),
        ifname: attachment.key.ifname.to_string(),
        pod: attachment.pod.as_ref().map(names::pod),
        dropped: loss.dropped,
        packets: loss.packets,
        reason: loss.reason.name().to_owned(),
        advice: loss.reason.advice().to_owned(),
    }
}

/// What a pod has lost within the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    dropped: u64,
    /// Packets to and from the pod, with the dropped ones.
    packets: u64,
    /// The most frequent reason.
    reason: DropReason,
}

/// Samples of [`WINDOW`], oldest first.
#[derive(Debug, Default)]
struct Window(VecDeque<Sample>);

#[derive(Debug)]
struct Sample {
    at: Instant,
    pods: BTreeMap<u32, Totals>,
}

/// Counters of one pod since it was attached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Totals {
    passed: u64,
    drops: BTreeMap<DropReason, u64>,
}

impl Window {
    /// Adds a sample, and returns the losses since the beginning of the window, by slot.
    fn add(&mut self, measured: &Measured, at: Instant) -> BTreeMap<u32, Loss> {
        let latest = Sample {
            at,
            pods: totals(measured),
        };
        let is_old = |sample: &Sample| at.saturating_duration_since(sample.at) >= WINDOW;
        while self.0.get(1).is_some_and(is_old) {
            self.0.pop_front();
        }
        let losses = match self.0.front() {
            Some(first) => losses(&first.pods, &latest.pods),
            // The counters are older than the agent.
            None => BTreeMap::new(),
        };
        self.0.push_back(latest);
        losses
    }
}

fn totals(measured: &Measured) -> BTreeMap<u32, Totals> {
    let of = |(slot, counters): (&u32, &kernel::PodCounters)| {
        let mut drops = measured.pod_drops.get(slot).cloned().unwrap_or_default();
        // The pod has got the first copy of the packet.
        drops.remove(&DropReason::Duplicate);
        let passed = counters
            .egress
            .packets
            .wrapping_add(counters.ingress.packets);
        (*slot, Totals { passed, drops })
    };
    measured.pods.iter().map(of).collect()
}

fn losses(first: &BTreeMap<u32, Totals>, latest: &BTreeMap<u32, Totals>) -> BTreeMap<u32, Loss> {
    let none = Totals::default();
    let of = |(slot, now): (&u32, &Totals)| {
        let before = first.get(slot).unwrap_or(&none);
        Some((*slot, loss(before, now)?))
    };
    latest.iter().filter_map(of).collect()
}

/// Returns the loss between two samples, if it is more than what is tolerated.
fn loss(before: &Totals, now: &Totals) -> Option<Loss> {
    // Counters that are smaller than before belong to another pod.
    let is_same = now.passed >= before.passed;
    let since = |before: u64, now: u64| {
        if is_same {
            now.saturating_sub(before)
        } else {
            now
        }
    };
    let by_reason = now.drops.iter().map(|(reason, count)| {
        let earlier = before.drops.get(reason).copied().unwrap_or(0);
        (since(earlier, *count), *reason)
    });
    let (_, reason) = by_reason.clone().max()?;
    let dropped: u64 = by_reason.map(|(count, _)| count).sum();
    let packets = since(before.passed, now.passed).saturating_add(dropped);
    let is_much = dropped.saturating_mul(100) > packets.saturating_mul(TOLERATED_PERCENT);
    is_much.then_some(Loss {
        dropped,
        packets,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SLOT: u32 = 7;

    fn measured(passed: u64, drops: &[(DropReason, u64)]) -> Measured {
        let mut measured = Measured::default();
        let mut counters = kernel::PodCounters::default();
        counters.egress.packets = passed;
        measured.pods.insert(SLOT, counters);
        let drops = drops.iter().copied().collect();
        measured.pod_drops.insert(SLOT, drops);
        measured
    }

    fn seconds(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_pod_with_more_than_1_percent_drops_within_a_minute_is_listed_with_the_main_reason() {
        let (mut window, start) = (Window::default(), Instant::now());
        let old = [(DropReason::RateLimit, 500)];
        assert!(
            window.add(&measured(100, &old), start).is_empty(),
            "older than the agent"
        );
        let some = [(DropReason::RateLimit, 501), (DropReason::Martian, 1)];
        let at = seconds(start, 5);
        assert!(
            window.add(&measured(298, &some), at).is_empty(),
            "1 percent"
        );
        let more = [(DropReason::RateLimit, 501), (DropReason::Martian, 3)];
        let found = window.add(&measured(298, &more), seconds(start, 10));
        let expected = Loss {
            dropped: 4,
            packets: 202,
            reason: DropReason::Martian,
        };
        assert_eq!(found.get(&SLOT), Some(&expected));
        let later = window.add(&measured(298, &more), seconds(start, 75));
        assert!(later.is_empty(), "the drops are older than the window");
    }

    #[test]
    fn a_pod_in_a_used_slot_loses_only_its_own_packets() {
        let (mut window, start) = (Window::default(), Instant::now());
        window.add(&measured(1_000, &[(DropReason::NoPort, 900)]), start);
        let new = measured(1, &[(DropReason::NoPort, 2)]);
        let found = window.add(&new, seconds(start, 5));
        assert_eq!(
            found.get(&SLOT).map(|loss| (loss.dropped, loss.packets)),
            Some((2, 3))
        );
    }

    #[test]
    fn duplicates_of_a_promiscuous_bridge_are_no_loss() {
        let (mut window, start) = (Window::default(), Instant::now());
        window.add(&measured(0, &[]), start);
        let drops = [(DropReason::Duplicate, 50)];
        assert!(
            window
                .add(&measured(50, &drops), seconds(start, 5))
                .is_empty()
        );
    }

    proptest! {
        #[test]
        fn the_window_keeps_the_samples_of_a_minute_and_one_before(
            steps in prop::collection::vec(1..30_u64, 1..100),
        ) {
            let (mut window, mut at) = (Window::default(), Instant::now());
            for step in steps {
                at += Duration::from_secs(step);
                window.add(&measured(0, &[]), at);
                let old = window.0.iter().filter(|sample| at - sample.at > WINDOW).count();
                prop_assert!(old <= 1);
            }
        }
    }
}
