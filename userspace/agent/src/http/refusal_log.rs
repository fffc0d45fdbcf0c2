//! Limits the number of log lines about refused connections: clients decide how many of these there
//! are.

use std::future::pending;
use std::mem;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Time between two log lines.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Decides when refused connections are logged: the first one, then at most every
/// [`REFUSAL_LOG_INTERVAL`] the number of those since.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    /// Time of the last line.
    logged: Option<Instant>,
    /// Number of refusals since then.
    refused: u64,
}

impl RefusalLog {
    /// Counts a refusal. Returns the number of those since the last line, if a line is due.
    pub(crate) fn count(&mut self) -> Option<u64> {
        self.refused += 1;
        let is_due = |logged: Instant| logged.elapsed() >= REFUSAL_LOG_INTERVAL;
        self.logged.is_none_or(is_due).then(|| self.take())
    }

    /// Waits until refusals that are not logged yet are due, and returns their number. Waits for
    /// ever if there are none.
    pub(crate) async fn due(&mut self) -> u64 {
        match self.logged {
            Some(logged) if self.refused > 0 => sleep_until(logged + REFUSAL_LOG_INTERVAL).await,
            _ => pending().await,
        }
        self.take()
    }

    fn take(&mut self) -> u64 {
        self.logged = Some(Instant::now());
        mem::take(&mut self.refused)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_refused_connections_is_logged_once_a_minute_with_its_number() {
        let mut refusals = RefusalLog::default();
        assert_eq!(refusals.count(), Some(1), "the first one");
        for _ in 0..1000 {
            assert_eq!(refusals.count(), None);
        }
        let begun = Instant::now();
        assert_eq!(refusals.due().await, 1000);
        assert!(begun.elapsed() >= REFUSAL_LOG_INTERVAL);
        assert_eq!(refusals.count(), None);
        sleep(REFUSAL_LOG_INTERVAL).await;
        assert_eq!(refusals.count(), Some(2));
        let idle = timeout(10 * REFUSAL_LOG_INTERVAL, refusals.due()).await;
        assert!(idle.is_err(), "there is nothing to log");
    }
}
