//! What all CPUs together did in a span of time, as the kernel accounts for it (`proc_stat(5)`).
//!
//! What the kernel writes down as busy, it has seen at ticks, 250 times a second on most machines: work that comes in
//! bunches of a tenth of a millisecond is met by chance, or by its own timer. When a CPU becomes idle, and when it no
//! longer is, is written down by the clock (`tick_nohz_start_idle`, kernel/time/tick-sched.c). So a CPU was busy for as
//! long as it was not idle, but for what the host of a virtual machine took for others. Nothing watches it meanwhile: a
//! thread that looked at the clock all the time would keep the processors of a virtual machine busy, for which its host
//! takes them away.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// One tick (`USER_HZ` is 100 on every architecture that we run on).
const TICK: Duration = Duration::from_millis(10);

/// How long an idle machine is looked at.
const IDLE: Duration = Duration::from_secs(3);

/// Time of all CPUs together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    /// All that there was.
    pub(crate) all: Duration,
    /// Neither idle nor stolen.
    pub(crate) busy: Duration,
    /// That the host of this virtual machine gave to others while we had something to do.
    pub(crate) stolen: Duration,
}

/// Runs `body`, and tells what was spent meanwhile.
pub(crate) fn during<T>(body: impl FnOnce() -> Result<T>) -> Result<(T, Spent)> {
    let before = columns()?;
    let start = Instant::now();
    let done = body()?;
    let cpus = u32::try_from(thread::available_parallelism()?.get())?;
    let all = start.elapsed() * cpus;
    let now = columns()?;
    let idle = now.idle.saturating_sub(before.idle);
    let stolen = now.stolen.saturating_sub(before.stolen);
    let busy = all.saturating_sub(idle + stolen);
    Ok((done, Spent { all, busy, stolen }))
}

/// How long all CPUs together are busy in each second in which nothing is asked of them, in seconds.
pub(crate) fn idle() -> Result<f64> {
    let ((), spent) = during(|| {
        thread::sleep(IDLE);
        Ok(())
    })?;
    Ok(spent.busy.as_secs_f64() / IDLE.as_secs_f64())
}

/// Since the machine was started.
struct Columns {
    idle: Duration,
    stolen: Duration,
}

fn columns() -> Result<Columns> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("no total")?;
    let ticks: Vec<u32> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    // A CPU that waits for a disk has nothing else to do. (Interrupts, soft interrupts.)
    let [_user, _nice, _system, idle, waiting, _, _, stolen] = ticks[..] else {
        bail!("unknown columns: {line}");
    };
    Ok(Columns {
        idle: TICK * (idle + waiting),
        stolen: TICK * stolen,
    })
}
