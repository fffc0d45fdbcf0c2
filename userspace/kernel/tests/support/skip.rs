//! Skips tests that need a feature that this kernel lacks: they print which one, and are counted.

use std::io::Write as _;
use std::time::Duration;

use aya::programs::{SchedClassifier, TcAttachType};

/// Whether this kernel has TCX; prints that the test is skipped where it has not.
pub(crate) fn has_tcx() -> bool {
    is_there(tcx(), "this kernel has no TCX")
}

/// Whether this kernel lacks TCX; prints that the test is skipped where it does not.
pub(crate) fn lacks_tcx() -> bool {
    is_there(!tcx(), "this kernel has TCX, so the fallback is not used")
}

/// Prints that the test is skipped because this kernel lacks something.
pub(crate) fn lacks(otherwise: &str) {
    is_there(false, otherwise);
}

/// Queries TCX directly, not by the code under test.
fn tcx() -> bool {
    SchedClassifier::query_tcx("lo", TcAttachType::Ingress).is_ok()
}

/// Writes to standard error: `println!` of a test that passes is not shown.
fn is_there(there: bool, otherwise: &str) -> bool {
    if !there {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        let line = format!("skipped: {name}: {otherwise}\n");
        std::io::stderr()
            .write_all(line.as_bytes())
            .expect("a place for messages");
    }
    there
}

/// Factor by which this machine is slower than usual.
pub(crate) fn patience() -> u32 {
    let value = std::env::var("VIADUCT_TEST_PATIENCE").unwrap_or_default();
    value.parse().unwrap_or(1).max(1)
}

/// Scales a timeout of an idle machine of normal speed to this machine and its present load: by the
/// number of threads that share a CPU, from `/proc/loadavg`.
pub(crate) fn patient(usual: Duration) -> Duration {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut fields = load.split(' ');
    let mean = fields.next().and_then(|mean| mean.split('.').next());
    let now = fields.nth(2).and_then(|tasks| tasks.split('/').next());
    let runnable = [mean, now]
        .into_iter()
        .flatten()
        .filter_map(|count| count.parse::<usize>().ok())
        .max()
        .unwrap_or(0);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let factor = u32::try_from(1 + runnable / cpus).unwrap_or(u32::MAX);
    usual * factor.max(patience())
}
