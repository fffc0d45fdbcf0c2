//! CPU time of all CPUs in a span of time, from the idle and steal times of `/proc/stat`
//! (`proc_stat(5)`).
//!
//! The kernel samples busy time at ticks, 250 times a second on most machines. So it counts work in
//! bursts of a tenth of a millisecond by chance, or always, if a timer starts it. The start and the
//! end of idle time come from the clock (`tick_nohz_start_idle`, kernel/time/tick-sched.c). So busy
//! time is computed as the time that is neither idle nor stolen by the host of a virtual machine.
//!
//! There is no thread that polls the clock during the measurement. It would keep the processors of
//! a virtual machine busy, and the host would take time from them for that.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Unit of `/proc/stat` (`USER_HZ` is 100 on all supported architectures).
const TICK: Duration = Duration::from_millis(10);

/// Duration of the measurement of an idle machine.
const IDLE: Duration = Duration::from_secs(3);

/// Time of all CPUs in a span.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuTime {
    /// The span multiplied by the number of CPUs.
    pub(crate) all: Duration,
    /// Time that was neither idle nor stolen.
    pub(crate) busy: Duration,
    /// Steal time: the host of this virtual machine ran others while this machine had work.
    pub(crate) stolen: Duration,
}

/// Runs `body`; returns its value and the CPU time of the machine meanwhile.
pub(crate) fn during<T>(body: impl FnOnce() -> Result<T>) -> Result<(T, CpuTime)> {
    let before = columns()?;
    let start = Instant::now();
    let done = body()?;
    let cpus = u32::try_from(thread::available_parallelism()?.get())?;
    let all = start.elapsed() * cpus;
    let now = columns()?;
    let idle = now.idle.saturating_sub(before.idle);
    let stolen = now.stolen.saturating_sub(before.stolen);
    let busy = all.saturating_sub(idle + stolen);
    Ok((done, CpuTime { all, busy, stolen }))
}

/// Returns the CPU time per second of the idle machine, of all CPUs, in seconds.
pub(crate) fn idle() -> Result<f64> {
    let ((), spent) = during(|| {
        thread::sleep(IDLE);
        Ok(())
    })?;
    Ok(spent.busy.as_secs_f64() / IDLE.as_secs_f64())
}

/// Times of all CPUs since boot.
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
    // A CPU in I/O wait is idle. The columns 6 and 7 are interrupts and soft interrupts.
    let [_user, _nice, _system, idle, waiting, _, _, stolen] = ticks[..] else {
        bail!("unknown columns: {line}");
    };
    Ok(Columns {
        idle: TICK * (idle + waiting),
        stolen: TICK * stolen,
    })
}
