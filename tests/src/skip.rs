//! What a kernel cannot do, said by the test that would need it.

use std::io::Write as _;
use std::thread;

/// Says that the calling test is not run, or not to its end, because of `lack`; `cargo xtask vm` counts such tests apart.
pub fn skipped(lack: &str) {
    let thread = thread::current();
    let line = format!("skipped: {}: {lack}\n", thread.name().unwrap_or_default());
    // Past what holds back the words of tests that pass. Without a place to say it there is nobody to tell.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
