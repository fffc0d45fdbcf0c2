//! Waits until a condition holds, with a deadline. The only module of the harness that sleeps.

use std::io;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::Machine;

/// Time after which a wait fails, on an idle machine of normal speed.
const DEADLINE: Duration = Duration::from_mins(1);

/// Factor of all timeouts: `VIADUCT_TEST_PATIENCE`, by default 1. Slow machines need more.
static PATIENCE: LazyLock<u32> = LazyLock::new(|| {
    let factor = std::env::var("VIADUCT_TEST_PATIENCE").unwrap_or_default();
    factor.parse().unwrap_or(1).max(1)
});

/// Scales a timeout of an idle machine of normal speed to this machine and its present load.
pub fn patient(usual: Duration) -> Duration {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    usual * load_factor(&load, cpus).max(*PATIENCE)
}

/// Returns the number of threads that share a CPU: the runnable threads of `/proc/loadavg`, now or
/// in the mean of the last minute, and the caller, over the CPUs.
fn load_factor(loadavg: &str, cpus: usize) -> u32 {
    let mut fields = loadavg.split(' ');
    let mean = fields.next().and_then(|mean| mean.split('.').next());
    let now = fields.nth(2).and_then(|tasks| tasks.split('/').next());
    let runnable = [mean, now]
        .into_iter()
        .flatten()
        .filter_map(|count| count.parse::<usize>().ok())
        .max()
        .unwrap_or(0);
    u32::try_from(1 + runnable / cpus).unwrap_or(u32::MAX)
}

/// Returns whether `VIADUCT_TEST_PATIENCE` declares this machine slow.
pub fn is_slow() -> bool {
    *PATIENCE > 1
}

/// Sleeps for a millisecond, so that a sender in a loop sends a bounded number of packets.
pub(crate) fn pace() {
    thread::sleep(Duration::from_millis(1));
}

/// Returns the time after which a wait fails on this machine.
pub fn deadline() -> Duration {
    patient(DEADLINE)
}

/// Binds a socket of `machine` by `bind`, as [`bound_here`] does.
pub fn bound<S: Send>(
    machine: &Machine,
    at: SocketAddr,
    bind: impl Fn(SocketAddr) -> io::Result<S> + Sync,
) -> Result<S> {
    let bound = machine.run(|| bound_here(|| bind(at)));
    bound.with_context(|| format!("cannot listen on {at} of {}", machine.name()))
}

/// Binds a socket in the calling thread's network namespace, and retries while the address is in
/// use: a child process that another thread is starting may still hold the socket that was bound
/// before.
pub(crate) fn bound_here<S>(bind: impl Fn() -> io::Result<S>) -> io::Result<S> {
    let start = Instant::now();
    loop {
        match bind() {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && start.elapsed() < deadline() =>
            {
                pace();
            }
            bound => return bound,
        }
    }
}

/// Calls `probe` until it returns a value, for at most [`deadline`]. `what` names the condition in
/// the error.
pub fn until<T>(what: &str, probe: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    until_within(DEADLINE, what, probe)
}

/// Calls `probe` until it returns a value, for at most `usual`, scaled by [`patient`] to the load
/// at that time. An error of `probe` is returned at once.
pub fn until_within<T>(
    usual: Duration,
    what: &str,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    // Polling, because many conditions have no notification. The pause grows with the time waited,
    // so the delay stays in proportion to it.
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(value) = probe()? {
            return Ok(value);
        }
        let elapsed = start.elapsed();
        if elapsed > usual && elapsed > patient(usual) {
            bail!("timeout after {elapsed:?}: {what}");
        }
        thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_factor_is_the_number_of_threads_for_each_cpu() {
        assert_eq!(load_factor("0.42 0.10 0.00 1/345 17382", 2), 1);
        assert_eq!(load_factor("8.98 4.00 1.00 2/345 17382", 2), 5);
        assert_eq!(load_factor("0.10 4.00 1.00 9/345 17382", 2), 5);
        assert_eq!(load_factor("", 2), 1);
    }
}
