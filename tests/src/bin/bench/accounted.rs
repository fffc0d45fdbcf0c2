//! What the kernel has accounted for since it was started, of all CPUs together (`proc_stat(5)`).

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// One tick (`USER_HZ` is 100 on every architecture that we run on).
const TICK: Duration = Duration::from_millis(10);

/// Time of CPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accounted {
    /// Neither idle nor stolen.
    pub(crate) busy: Duration,
    /// That the host of this virtual machine gave to others while we had something to do.
    pub(crate) stolen: Duration,
}

/// Until now.
pub(crate) fn so_far() -> Result<Accounted> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().context("no total")?;
    let ticks: Vec<u32> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    // (Idle, waiting,) interrupts, soft interrupts.
    let [user, nice, system, _, _, hard, soft, stolen] = ticks[..] else {
        bail!("unknown columns: {line}");
    };
    Ok(Accounted {
        busy: TICK * (user + nice + system + hard + soft),
        stolen: TICK * stolen,
    })
}
