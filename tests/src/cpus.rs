//! CPU affinity of threads. The sender's CPU forwards a packet through a veth pair, and the
//! datapath has per-CPU state, so a result on one CPU need not hold on the next.

use std::panic::resume_unwind;
use std::thread;

use anyhow::{Context as _, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

const CALLER: Pid = Pid::from_raw(0);

/// Runs `body` on a thread that is pinned to this CPU, at normal priority.
///
/// # Errors
///
/// Returns the error of `body`, or that this process may not use the CPU.
pub fn on_cpu<T: Send>(cpu: usize, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let run = || {
        let mut set = CpuSet::new();
        set.set(cpu)?;
        sched_setaffinity(CALLER, &set).with_context(|| format!("cannot pin to CPU {cpu}"))?;
        body()
    };
    thread::scope(|scope| {
        let joined = scope.spawn(run).join();
        joined.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Runs `body` on each CPU that this process may use, one after the other.
///
/// # Errors
///
/// Returns the first error of [`on_cpu`].
pub fn on_each_cpu(body: impl Fn() -> Result<()> + Sync) -> Result<()> {
    let usable = sched_getaffinity(CALLER)?;
    (0..CpuSet::count())
        .filter(|&cpu| usable.is_set(cpu).unwrap_or(false))
        .try_for_each(|cpu| on_cpu(cpu, &body))
}
