//! Offload beside rules of other software: decides about connections that netfilter has accepted,
//! in a thread of its own (decision 118).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use std::{convert::Infallible, io};

use abi::{OffloadCandidate, Offloaded, protocol};
use kernel::Offloads;
use planner::StackReason;

/// Bytes of the thread's stack.
const STACK: usize = 256 * 1024;
/// Interval between two searches for expired decisions, in milliseconds.
const INTERVAL: u16 = 2_000;
/// Pause after the decisions about a group of candidates. More of them arrive meanwhile.
const PAUSE: Duration = Duration::from_millis(2);

/// Decisions in force about directions of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OffloadCounts {
    /// Directions that bypass netfilter.
    pub(crate) accepted: u64,
    /// Directions that stay on the stack.
    pub(crate) on_stack: BTreeMap<StackReason, u64>,
}

impl OffloadCounts {
    fn of(counts: &BTreeMap<u32, u64>) -> Self {
        let count = |decision: u32| counts.get(&decision).copied().unwrap_or(0);
        Self {
            accepted: count(Offloaded::ACCEPTED),
            on_stack: StackReason::ALL
                .into_iter()
                .map(|reason| (reason, count(reason as u32)))
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }
}

/// Starts the thread. Without it, connections beside rules stay on the stack.
pub(crate) fn start(bpffs: &Path) -> Arc<Mutex<OffloadCounts>> {
    let counts = Arc::default();
    if let Err(error) = start_thread(bpffs, Arc::clone(&counts)) {
        tracing::warn!(
            error = format!("{error:#}"),
            "cannot offload connections: packets beside rules of other software take the stack"
        );
    }
    counts
}

fn start_thread(bpffs: &Path, counts: Arc<Mutex<OffloadCounts>>) -> anyhow::Result<()> {
    let mut offloads = Offloads::open(bpffs)?;
    let decide = move || {
        let Err(error) = run(&mut offloads, &counts);
        tracing::warn!(%error, "offload stopped: packets beside rules of other software take the stack");
    };
    let thread = thread::Builder::new().name("offload".to_owned());
    thread.stack_size(STACK).spawn(decide)?;
    Ok(())
}

/// Decides about candidates until a system call fails.
fn run(offloads: &mut Offloads, counts: &Mutex<OffloadCounts>) -> io::Result<Infallible> {
    let mut last = Instant::now();
    loop {
        let candidates = offloads.wait(INTERVAL)?;
        let now = Offloads::now()?;
        for candidate in &candidates {
            decide(offloads, candidate, now)?;
        }
        if last.elapsed() >= Duration::from_millis(INTERVAL.into()) {
            let found = OffloadCounts::of(&offloads.remove_expired(now)?);
            *counts.lock().unwrap_or_else(PoisonError::into_inner) = found;
            last = Instant::now();
        }
        if !candidates.is_empty() {
            sleep(PAUSE);
        }
    }
}

fn decide(offloads: &mut Offloads, candidate: &OffloadCandidate, now: u32) -> io::Result<()> {
    let connection = offloads.connection(&candidate.tuple)?;
    let decision = planner::decide_offload(&candidate.tuple, connection.as_ref());
    let decision = match (decision, connection) {
        (Ok(seconds), Some(connection)) => {
            let is_checked = candidate.tuple.protocol == protocol::TCP && !connection.is_liberal;
            // The connection may have ended meanwhile.
            if is_checked && offloads.make_liberal(&connection).is_err() {
                Err(StackReason::NotEstablished)
            } else {
                Ok(seconds)
            }
        }
        (decision, _) => decision,
    };
    let (number, seconds) = match decision {
        Ok(seconds) => (Offloaded::ACCEPTED, seconds),
        Err(reason) => (reason as u32, reason.retry_after()),
    };
    let decision = Offloaded {
        rulesets: candidate.rulesets,
        expires: now + seconds,
        decision: number,
    };
    offloads.decide(&candidate.tuple, decision)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offload_counts_have_the_reasons_of_the_table() {
        let table = [
            (Offloaded::ACCEPTED, 4),
            (StackReason::Translated as u32, 2),
            (99, 1),
        ];
        let counts = OffloadCounts::of(&table.into());
        assert_eq!(counts.accepted, 4);
        assert_eq!(counts.on_stack, [(StackReason::Translated, 2)].into());
    }
}
