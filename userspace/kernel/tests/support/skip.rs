//! Tests that not every kernel can pass: they say which feature is missing, and are counted apart.

use std::io::Write as _;

use aya::programs::{SchedClassifier, TcAttachType};

/// Whether this kernel has TCX; a test that needs it says so where it has not.
pub(crate) fn has_tcx() -> bool {
    is_there(tcx(), "this kernel has no TCX")
}

/// Whether this kernel does without TCX; a test of what is done then says so where it does not.
pub(crate) fn lacks_tcx() -> bool {
    is_there(!tcx(), "this kernel has TCX, so nothing else is used")
}

/// Asked as a tool would ask, and not by what is tested.
fn tcx() -> bool {
    SchedClassifier::query_tcx("lo", TcAttachType::Ingress).is_ok()
}

/// Not by `println!`: what passes is not shown.
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

/// How many times as long things may take on this machine.
pub(crate) fn patience() -> u32 {
    let told = std::env::var("VIADUCT_TEST_PATIENCE").unwrap_or_default();
    told.parse().unwrap_or(1).max(1)
}
