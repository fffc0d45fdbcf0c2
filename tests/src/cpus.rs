//! Which CPU a thread runs on. What leaves a namespace by a veth pair is carried by the CPU of its sender, and the datapath
//! keeps much for each CPU: what holds on one of them need not hold on the next.

use std::panic::resume_unwind;
use std::thread;

use anyhow::{Context as _, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

const CALLER: Pid = Pid::from_raw(0);

/// Runs `body` on a thread that stays on this CPU and shares it.
///
/// # Errors
///
/// Those of `body`, and of a CPU that this process may not use.
pub fn on_cpu<T: Send>(cpu: usize, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let run = || {
        let mut set = CpuSet::new();
        set.set(cpu)?;
        sched_setaffinity(CALLER, &set).with_context(|| format!("cannot stay on CPU {cpu}"))?;
        body()
    };
    thread::scope(|scope| {
        let joined = scope.spawn(run).join();
        joined.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Runs `body` on one CPU after the other, on all that this process may use.
///
/// # Errors
///
/// As of [`on_cpu`].
pub fn on_each_cpu(body: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let usable = sched_getaffinity(CALLER)?;
    (0..CpuSet::count())
        .filter(|&cpu| usable.is_set(cpu).unwrap_or(false))
        .try_for_each(|cpu| on_cpu(cpu, &body))
}
