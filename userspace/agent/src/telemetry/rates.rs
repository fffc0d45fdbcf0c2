//! Current rates of bandwidth limits: the difference of two counter samples over their interval.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kernel::{Measured, PodCounters};

/// Minimum interval between two samples: over a shorter one, single packets dominate the rate.
const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum interval: over a longer one, the rate is not a current one.
const MAX_INTERVAL: Duration = Duration::from_secs(10);

/// Bits per second to a pod and from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    pub(crate) ingress: u64,
    pub(crate) egress: u64,
}

/// The previous sample.
#[derive(Debug, Default)]
pub(crate) struct RateSampler(Mutex<Option<Sample>>);

#[derive(Debug)]
struct Sample {
    at: Instant,
    /// Bytes that have passed the limits, by slot: to the pod and from it.
    passed: BTreeMap<u32, [u64; 2]>,
    rates: BTreeMap<u32, Rates>,
}

impl RateSampler {
    /// Returns the rates of all slots since the previous sample, or how long to wait before
    /// sampling again.
    pub(crate) fn rates(
        &self,
        measured: &Measured,
        at: Instant,
    ) -> Result<BTreeMap<u32, Rates>, Duration> {
        let passed: BTreeMap<u32, [u64; 2]> = measured
            .pods
            .iter()
            .map(|(slot, counters)| (*slot, passed(counters)))
            .collect();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let span = |sample: &Sample| at.saturating_duration_since(sample.at);
        let (rates, is_known) = match last.as_ref() {
            // Concurrent callers get the same rates.
            Some(last) if span(last) < MIN_INTERVAL && !last.rates.is_empty() => {
                return Ok(last.rates.clone());
            }
            Some(last) if span(last) < MIN_INTERVAL => {
                return Err(MIN_INTERVAL.saturating_sub(span(last)));
            }
            Some(last) if span(last) <= MAX_INTERVAL => (between(last, &passed, span(last)), true),
            _ => (BTreeMap::new(), false),
        };
        *last = Some(Sample {
            at,
            passed,
            rates: rates.clone(),
        });
        if is_known {
            Ok(rates)
        } else {
            Err(MIN_INTERVAL)
        }
    }
}

fn passed(counters: &PodCounters) -> [u64; 2] {
    let both = [&counters.shaped_ingress, &counters.shaped_egress];
    both.map(|shaped| shaped.passed_bytes)
}

fn between(
    earlier: &Sample,
    passed: &BTreeMap<u32, [u64; 2]>,
    span: Duration,
) -> BTreeMap<u32, Rates> {
    let milliseconds = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = |before: u64, now: u64| {
        // A counter that is smaller than before belongs to another pod.
        let bits = now.saturating_sub(before).saturating_mul(8);
        bits.saturating_mul(1_000) / milliseconds
    };
    passed
        .iter()
        .map(|(slot, [ingress, egress])| {
            let [was_in, was_out] = earlier.passed.get(slot).copied().unwrap_or_default();
            let rates = Rates {
                ingress: rate(was_in, *ingress),
                egress: rate(was_out, *egress),
            };
            (*slot, rates)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(egress: u64) -> Measured {
        let mut measured = Measured::default();
        let mut counters = PodCounters::default();
        counters.shaped_egress.passed_bytes = egress;
        measured.pods.insert(7, counters);
        measured
    }

    #[test]
    fn a_rate_is_the_bytes_between_two_samples_over_their_interval() {
        let sampler = RateSampler::default();
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let egress =
            |rates: Result<BTreeMap<u32, Rates>, Duration>| rates.map(|all| all[&7].egress);
        assert_eq!(sampler.rates(&measured(1_000), at(0)), Err(MIN_INTERVAL));
        let early = sampler.rates(&measured(1_100), at(50));
        assert_eq!(early, Err(Duration::from_millis(150)));
        assert_eq!(egress(sampler.rates(&measured(2_000), at(500))), Ok(16_000));
        // A call within the minimum interval returns the same rates.
        assert_eq!(egress(sampler.rates(&measured(9_000), at(510))), Ok(16_000));
        assert_eq!(egress(sampler.rates(&measured(1_500), at(1_500))), Ok(0));
        assert_eq!(
            sampler.rates(&measured(9_000), at(60_000)),
            Err(MIN_INTERVAL)
        );
    }
}
