//! One CPU for everything: what runs here is not interrupted by other programs, so that the time on the clock is the
//! CPU time that was spent.

use std::panic::resume_unwind;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, gettid};

/// Runs `body` on a thread that has this CPU to itself, but for the kernel's own work.
///
/// Packets that it sends over veth pairs are carried by the same thread, all the way into the receiving socket: the
/// kernel does the work of a received packet on the CPU of its sender.
pub(crate) fn alone_on<T: Send>(cpu: usize, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    on_thread(|| {
        pin(cpu)?;
        come_first()?;
        body()
    })
}

/// Runs `body` on a thread that stays on this CPU and shares it.
pub(crate) fn on<T: Send>(cpu: usize, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    on_thread(|| {
        pin(cpu)?;
        body()
    })
}

/// The CPU that measurements on one CPU use: the last one, since interrupts of devices mostly go to the first.
pub(crate) fn the_one() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get) - 1
}

/// Keeps the calling thread on this CPU.
fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("cannot stay on CPU {cpu}"))
}

fn on_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let joined = scope.spawn(body).join();
        joined.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Lets the calling thread come before all others.
#[expect(
    clippy::disallowed_methods,
    reason = "the system call for this is not offered by any safe function"
)]
fn come_first() -> Result<()> {
    let own = gettid().to_string();
    let output = std::process::Command::new("chrt")
        .args(["--fifo", "--pid", "1"])
        .arg(&own)
        .output()
        .context("cannot run chrt")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "chrt failed: {said}");
    Ok(())
}
