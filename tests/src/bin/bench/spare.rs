//! How long CPUs were busy, also where that is a few parts in a hundred: nothing watches them meanwhile. A thread that
//! looked at the clock all the time would keep the processors of a virtual machine busy, for which its host takes them away.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::accounted::Span;

/// How long an idle machine is looked at.
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
    let span = Span::begin()?;
    let done = body()?;
    Ok((done, span.spent()?.busy))
}
