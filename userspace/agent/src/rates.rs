//! How much passes limits now: what was counted between two looks, divided by the time between them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kernel::{Measured, PodCounters};

/// Looks that are closer together tell more of single packets than of a rate.
const SHORTEST: Duration = Duration::from_millis(200);
/// What happened longer ago is not now.
const LONGEST: Duration = Duration::from_secs(10);

/// Bits per second to a pod and from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    pub(crate) ingress: u64,
    pub(crate) egress: u64,
}

/// What was seen when somebody last looked.
#[derive(Debug, Default)]
pub(crate) struct Looks(Mutex<Option<Look>>);

#[derive(Debug)]
struct Look {
    at: Instant,
    /// Bytes that have passed, by slot: to the pod and from it.
    passed: BTreeMap<u32, [u64; 2]>,
    rates: BTreeMap<u32, Rates>,
}

impl Looks {
    /// The rates of all slots, or how long to wait and look again.
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
        let span = |look: &Look| at.saturating_duration_since(look.at);
        let (rates, is_known) = match last.as_ref() {
            // Two that look at once see the same.
            Some(look) if span(look) < SHORTEST && !look.rates.is_empty() => {
                return Ok(look.rates.clone());
            }
            Some(look) if span(look) < SHORTEST => return Err(SHORTEST.saturating_sub(span(look))),
            Some(look) if span(look) <= LONGEST => (between(look, &passed, span(look)), true),
            _ => (BTreeMap::new(), false),
        };
        *last = Some(Look {
            at,
            passed,
            rates: rates.clone(),
        });
        if is_known { Ok(rates) } else { Err(SHORTEST) }
    }
}

fn passed(counters: &PodCounters) -> [u64; 2] {
    let both = [&counters.shaped_ingress, &counters.shaped_egress];
    both.map(|shaped| shaped.passed_bytes)
}

fn between(look: &Look, passed: &BTreeMap<u32, [u64; 2]>, span: Duration) -> BTreeMap<u32, Rates> {
    let milliseconds = u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = |before: u64, now: u64| {
        // Counters that have become smaller are another pod's.
        let bits = now.saturating_sub(before).saturating_mul(8);
        bits.saturating_mul(1_000) / milliseconds
    };
    passed
        .iter()
        .map(|(slot, [ingress, egress])| {
            let [was_in, was_out] = look.passed.get(slot).copied().unwrap_or_default();
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
    fn a_rate_is_what_has_passed_between_two_looks() {
        let looks = Looks::default();
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let egress =
            |rates: Result<BTreeMap<u32, Rates>, Duration>| rates.map(|all| all[&7].egress);
        assert_eq!(looks.rates(&measured(1_000), at(0)), Err(SHORTEST));
        let early = looks.rates(&measured(1_100), at(50));
        assert_eq!(early, Err(Duration::from_millis(150)));
        assert_eq!(egress(looks.rates(&measured(2_000), at(500))), Ok(16_000));
        // Whoever asks at once again is told the same.
        assert_eq!(egress(looks.rates(&measured(9_000), at(510))), Ok(16_000));
        assert_eq!(egress(looks.rates(&measured(1_500), at(1_500))), Ok(0));
        assert_eq!(looks.rates(&measured(9_000), at(60_000)), Err(SHORTEST));
    }
}
