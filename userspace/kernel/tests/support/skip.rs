//! Skips tests that need a feature that this kernel lacks: they print which one, and are counted.

use std::io::Write as _;

use aya::programs::{SchedClassifier, TcAttachType};

/// Whether this kernel has TCX; prints that the test is skipped where it has not.
pub(crate) fn has_tcx() -> bool {
    is_there(tcx(), "this kernel has no TCX")
}

/// Whether this kernel lacks TCX; prints that the test is skipped where it does not.
pub(crate) fn lacks_tcx() -> bool {
    is_there(!tcx(), "this kernel has TCX, so the fallback is not used")
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

/// Factor for timeouts on this machine.
pub(crate) fn patience() -> u32 {
    let value = std::env::var("VIADUCT_TEST_PATIENCE").unwrap_or_default();
    value.parse().unwrap_or(1).max(1)
}
