//! Runs measurements pinned to one CPU with real-time priority, so that no other program preempts
//! them and elapsed time equals CPU time.

use std::thread;

use anyhow::{Context as _, Result, ensure};
use e2e::on_cpu;
use nix::unistd::gettid;

/// Runs `body` on a thread with real-time priority, pinned to this CPU. Only kernel work interrupts
/// it.
///
/// Packets that it sends over veth pairs are processed up to the receiving socket in the same
/// thread: the kernel does receive processing on the CPU of the sender.
pub(crate) fn run_realtime<T: Send>(
    cpu: usize,
    body: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    on_cpu(cpu, || {
        set_fifo_priority()?;
        body()
    })
}

/// Returns the CPU of measurements on one CPU: the last, because devices mostly interrupt the
/// first.
pub(crate) fn last_cpu() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get) - 1
}

/// Gives the calling thread the policy `SCHED_FIFO`.
#[expect(
    clippy::disallowed_methods,
    reason = "the system call for this is not offered by any safe function"
)]
fn set_fifo_priority() -> Result<()> {
    let own = gettid().to_string();
    let output = std::process::Command::new("chrt")
        .args(["--fifo", "--pid", "1"])
        .arg(&own)
        .output()
        .context("cannot run chrt")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "chrt failed: {error}");
    Ok(())
}
