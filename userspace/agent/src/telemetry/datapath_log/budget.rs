//! Bounds the lines of the datapath log, and the work of reading records that are not logged. Reads
//! no clock.

use std::time::{Duration, Instant};

/// Lines of each second.
const LINES: u32 = 200;
/// Records of each second that are read and not logged. After them, the reader waits.
const SUPPRESSED: u32 = 5_000;
const SECOND: Duration = Duration::from_secs(1);

/// Records of the current second.
#[derive(Debug)]
pub(super) struct Budget {
    since: Instant,
    records: u32,
}

/// What to do with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Log it.
    Log,
    /// Count it as suppressed.
    Suppress,
    /// Count it as suppressed, and read no more for this time.
    Wait(Duration),
}

impl Budget {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            records: 0,
        }
    }

    /// Decides about the next record.
    pub(super) fn decide(&mut self, now: Instant) -> Decision {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed >= SECOND {
            *self = Self::new(now);
        }
        self.records += 1;
        if self.records <= LINES {
            Decision::Log
        } else if self.records <= LINES + SUPPRESSED {
            Decision::Suppress
        } else {
            Decision::Wait(SECOND.saturating_sub(elapsed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_records_is_logged_then_counted_then_left_in_the_ring() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        let later = start + Duration::from_millis(400);
        for _ in 0..LINES {
            assert_eq!(budget.decide(later), Decision::Log);
        }
        for _ in 0..SUPPRESSED {
            assert_eq!(budget.decide(later), Decision::Suppress);
        }
        let rest = Duration::from_millis(600);
        assert_eq!(budget.decide(later), Decision::Wait(rest));
        assert_eq!(budget.decide(later + rest), Decision::Log);
    }
}
