//! The probes at the start leave nothing behind. A test binary of its own, so that all descriptors
//! and threads of the process are its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::path::PathBuf;

use support::*;

/// What keeps an unmounted namespace alive, and the links of the node.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    threads: usize,
    descriptors: Vec<PathBuf>,
    links: String,
}

fn traces() -> Traces {
    let entries = |of: &str| std::fs::read_dir(of).unwrap().map(Result::unwrap);
    // The descriptor of the directory itself is closed by then.
    let mut descriptors: Vec<PathBuf> = entries("/proc/self/fd")
        .filter_map(|entry| entry.path().read_link().ok())
        .collect();
    descriptors.sort();
    Traces {
        threads: entries("/proc/self/task").count(),
        descriptors,
        links: run("ip -o link show"),
    }
}

#[test]
fn the_probes_leave_no_thread_descriptor_or_link() {
    on_a_node(|node| {
        let before = traces();
        for _ in 0..3 {
            drop(node.host());
        }
        wait_until(|| traces() == before);
    });
}
