//! How long CPUs were busy, also where that is a few parts in a hundred.
//!
//! The kernel accounts for time by looking at each tick what runs, 250 times a second on most machines: work that comes
//! in bunches of a tenth of a millisecond is met by chance, or by its own timer. Here a thread on each CPU, after which
//! nobody comes, looks at the clock all the time: when the clock has leapt, somebody else has run meanwhile. So has the
//! kernel at each tick: what that takes on an idle machine is measured first. What the host of a virtual machine takes for
//! others, the kernel is told by the host, and it is left out.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::{accounted, pinned};

/// Two looks at the clock are a few dozen nanoseconds apart.
const LEAP: Duration = Duration::from_micros(1);

/// How long an idle machine is watched.
const IDLE: Duration = Duration::from_secs(3);

/// How long all CPUs together are busy in each second in which nothing is asked of them, in seconds.
pub(crate) fn idle() -> Result<f64> {
    let ((), busy) = watch(|| {
        thread::sleep(IDLE);
        Ok(())
    })?;
    Ok(busy.as_secs_f64() / IDLE.as_secs_f64())
}

/// Runs `body`, and tells how long all CPUs together did anything meanwhile.
pub(crate) fn watch<T>(body: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
    let stop = AtomicBool::new(false);
    let before = accounted::so_far()?.stolen;
    thread::scope(|scope| {
        let stop = &stop;
        let watchers: Vec<_> = (0..=pinned::the_one())
            .map(|cpu| scope.spawn(move || pinned::behind_all(cpu, || Ok(leaps(stop)))))
            .collect();
        let done = body();
        let stolen = accounted::so_far().map(|now| now.stolen.saturating_sub(before));
        stop.store(true, Ordering::Relaxed);
        let mut busy = Duration::ZERO;
        for watcher in watchers {
            let seen = watcher.join();
            busy += seen.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok((done?, busy.saturating_sub(stolen?)))
    })
}

fn leaps(stop: &AtomicBool) -> Duration {
    let mut sum = Duration::ZERO;
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        let since = now.duration_since(last);
        if since > LEAP {
            sum += since;
        }
        last = now;
    }
    sum
}
