//! One CPU for everything: what runs here is not interrupted by other programs, so that the time on the clock is the
//! CPU time that was spent.

use std::thread;

use anyhow::{Context as _, Result, ensure};
use e2e::on_cpu;
use nix::unistd::gettid;

/// Runs `body` on a thread that has this CPU to itself, but for the kernel's own work.
///
/// Packets that it sends over veth pairs are carried by the same thread, all the way into the receiving socket: the
/// kernel does the work of a received packet on the CPU of its sender.
pub(crate) fn alone_on<T: Send>(cpu: usize, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    on_cpu(cpu, || {
        come_first()?;
        body()
    })
}

/// The CPU that measurements on one CPU use: the last one, since interrupts of devices mostly go to the first.
pub(crate) fn the_one() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get) - 1
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
