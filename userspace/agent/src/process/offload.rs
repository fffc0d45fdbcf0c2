//! Offload beside rules of other software: decides about connections that netfilter has accepted,
//! in a thread of its own (decision 118).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use std::{convert::Infallible, io};

use abi::{OffloadCandidate, Offloaded, Tuple, protocol};
use kernel::Offloads;
use planner::{OffloadDecision, StackReason};

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
    /// Those of them that netfilter translates.
    pub(crate) translated: u64,
    /// Directions that stay on the stack.
    pub(crate) on_stack: BTreeMap<StackReason, u64>,
}

impl OffloadCounts {
    /// Counts decisions by number and whether netfilter translates the packets.
    fn of(counts: &BTreeMap<(u32, bool), u64>) -> Self {
        let count = |kind: (u32, bool)| counts.get(&kind).copied().unwrap_or(0);
        let translated = count((Offloaded::ACCEPTED, true));
        Self {
            accepted: count((Offloaded::ACCEPTED, false)) + translated,
            translated,
            on_stack: StackReason::ALL
                .into_iter()
                .map(|reason| (reason, count((reason as u32, false))))
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
    let mut rules = Rules::default();
    loop {
        let candidates = offloads.wait(INTERVAL)?;
        let now = Offloads::now()?;
        for candidate in &candidates {
            let unchanged = rules.unchanged(candidate.rulesets, now);
            decide(offloads, candidate, now, unchanged)?;
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

/// The rules of the last candidate.
#[derive(Default)]
struct Rules {
    /// [`OffloadCandidate::rulesets`].
    rulesets: u64,
    /// When the first candidate had this number, in seconds of `CLOCK_MONOTONIC`.
    since: u32,
}

impl Rules {
    /// Returns the seconds since rules have changed, as far as candidates show.
    fn unchanged(&mut self, rulesets: u64, now: u32) -> u32 {
        if self.rulesets != rulesets {
            self.rulesets = rulesets;
            self.since = now;
        }
        now - self.since
    }
}

/// Decides about the direction of a connection that a candidate is of, `unchanged` seconds after a
/// rule change.
fn decide(
    offloads: &mut Offloads,
    candidate: &OffloadCandidate,
    now: u32,
    unchanged: u32,
) -> io::Result<()> {
    let observed = &candidate.tuple;
    let write = |offloads: &mut Offloads, tuple: &Tuple, number, seconds| {
        let decision = Offloaded {
            rulesets: candidate.rulesets,
            expires: now + seconds,
            decision: number,
            translated: *observed,
        };
        offloads.decide(tuple, decision)
    };
    match judge(offloads, observed, unchanged)? {
        Ok(OffloadDecision { tuple, seconds, .. }) => {
            write(offloads, &tuple, Offloaded::ACCEPTED, seconds)?;
            if tuple == *observed {
                return Ok(());
            }
            // Else packets that stay on the stack would be reported again and again.
            write(offloads, observed, Offloaded::BEHIND_NAT, seconds)
        }
        Err(reason) => write(offloads, observed, reason as u32, reason.retry_after()),
    }
}

/// Judges packets with a tuple behind netfilter, and prepares conntrack for packets that it will
/// not see.
fn judge(
    offloads: &Offloads,
    observed: &Tuple,
    unchanged: u32,
) -> io::Result<Result<OffloadDecision, StackReason>> {
    let connection = offloads.connection(observed)?;
    let judged = planner::decide_offload(observed, connection.as_ref(), unchanged);
    let (Ok(decision), Some(connection)) = (judged, connection) else {
        return Ok(judged);
    };
    if !offloads.is_pod(decision.tuple.source)? && !offloads.is_pod(observed.destination)? {
        return Ok(Err(StackReason::NotOfPod));
    }
    let is_checked = observed.protocol == protocol::TCP && !connection.is_liberal;
    // The connection may have ended meanwhile.
    if is_checked && offloads.make_liberal(&connection).is_err() {
        return Ok(Err(StackReason::NotEstablished));
    }
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offload_counts_have_the_reasons_of_the_table() {
        let table = [
            ((Offloaded::ACCEPTED, false), 4),
            ((Offloaded::ACCEPTED, true), 3),
            ((Offloaded::BEHIND_NAT, false), 3),
            ((StackReason::Marked as u32, false), 2),
            ((99, false), 1),
        ];
        let counts = OffloadCounts::of(&table.into());
        assert_eq!((counts.accepted, counts.translated), (7, 3));
        assert_eq!(counts.on_stack, [(StackReason::Marked, 2)].into());
    }

    #[test]
    fn rules_are_unchanged_since_the_first_candidate_with_their_number() {
        let mut rules = Rules::default();
        let unchanged = [(7, 100), (7, 103), (8, 104), (8, 120)];
        let seconds = unchanged.map(|(number, now)| rules.unchanged(number, now));
        assert_eq!(seconds, [0, 3, 0, 16]);
    }
}
