//! Signals that end a command in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result};
use nix::sys::signal::{SigSet, Signal};

/// Blocks the signals that end a program, and sets the returned flag at the first of them. The
/// second one ends the process at once. Threads that are started later inherit the mask.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().context("cannot block signals")?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    thread::spawn(move || {
        while signals.wait().is_ok() {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(1);
            }
        }
    });
    Ok(stop)
}
