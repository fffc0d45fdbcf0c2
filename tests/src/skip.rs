//! Reports tests that are skipped because the kernel lacks a feature.

use std::io::Write as _;
use std::thread;

/// Reports that the calling test is skipped, or stops early, because of `lack`. `cargo xtask vm`
/// counts such tests separately.
pub fn skipped(lack: &str) {
    let thread = thread::current();
    let line = format!("skipped: {}: {lack}\n", thread.name().unwrap_or_default());
    // Written directly to standard error, because the test runner hides captured output of passing
    // tests. If the write fails, there is no other output.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
