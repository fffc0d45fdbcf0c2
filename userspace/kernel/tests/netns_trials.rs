//! What is tried before programs are loaded leaves nothing behind. Alone in its process, so that all that is there is its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::path::PathBuf;

use support::*;

/// What keeps a namespace that nobody has mounted, and the links of the node.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    threads: usize,
    descriptors: Vec<PathBuf>,
    links: String,
}

fn traces() -> Traces {
    let entries = |of: &str| std::fs::read_dir(of).unwrap().map(Result::unwrap);
    // The descriptor that they are read by is gone by then.
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
fn a_start_leaves_neither_thread_nor_namespace_nor_link() {
    on_a_node(|node| {
        let before = traces();
        for _ in 0..3 {
            drop(node.host());
        }
        wait_until(|| traces() == before);
    });
}
