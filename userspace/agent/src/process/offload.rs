//! Offload beside rules of other software: decides about connections that netfilter has accepted,
//! in a thread of its own (decision 118).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use std::{convert::Infallible, io};

use abi::{Address, OffloadCandidate, Offloaded, Tuple, maps, protocol};
use kernel::Offloads;
use planner::{OffloadDecision, OffloadEvidence, OffloadShares, StackReason};
use steps::TrackedConnection;

/// Bytes of the thread's stack.
const STACK: usize = 256 * 1024;
/// Interval between two searches for expired decisions, in milliseconds.
const INTERVAL: u16 = 2_000;
/// Pause after the decisions about a group of candidates. More of them arrive meanwhile.
const PAUSE: Duration = Duration::from_millis(2);
/// Time in which [`QUERIES`] are shared anew.
const WINDOW: Duration = Duration::from_millis(100);
/// Queries of conntrack in a [`WINDOW`], of less than ten microseconds each: a fifth of a CPU.
const QUERIES: u32 = 2_000;
/// Part of the free places in the offload table that an account may have for connections that are
/// not established.
const UNESTABLISHED: u32 = 4;

/// Decisions in force about directions of connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OffloadCounts {
    /// Directions that bypass netfilter.
    pub(crate) accepted: u64,
    /// Those of them that netfilter translates.
    pub(crate) translated: u64,
    /// Those of them whose other direction netfilter has not seen.
    pub(crate) unreplied: u64,
    /// Directions that stay on the stack.
    pub(crate) on_stack: BTreeMap<StackReason, u64>,
}

impl OffloadCounts {
    /// Counts decisions by number and whether netfilter translates the packets.
    fn of(counts: &BTreeMap<(u32, bool), u64>) -> Self {
        let count = |kind: (u32, bool)| counts.get(&kind).copied().unwrap_or(0);
        let kinds = [Offloaded::ACCEPTED, Offloaded::UNREPLIED];
        let [established, unreplied] =
            kinds.map(|number| count((number, false)) + count((number, true)));
        Self {
            accepted: established + unreplied,
            translated: kinds.map(|number| count((number, true))).iter().sum(),
            unreplied,
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
    let offloads = Offloads::open(bpffs)?;
    let decide = move || {
        let Err(error) = run(offloads, &counts);
        tracing::warn!(%error, "offload stopped: packets beside rules of other software take the stack");
    };
    let thread = thread::Builder::new().name("offload".to_owned());
    thread.stack_size(STACK).spawn(decide)?;
    Ok(())
}

/// Decides about candidates until a system call fails.
fn run(offloads: Offloads, counts: &Mutex<OffloadCounts>) -> io::Result<Infallible> {
    let mut decider = Decider::new(offloads);
    // Those of the agent before.
    decider.remove_expired(Offloads::now()?)?;
    let mut last = Instant::now();
    loop {
        let candidates = decider.offloads.wait(INTERVAL)?;
        let now = Offloads::now()?;
        decider.start_window()?;
        for candidate in &candidates {
            decider.decide(candidate, now)?;
        }
        if last.elapsed() >= Duration::from_millis(INTERVAL.into()) {
            let found = decider.remove_expired(now)?;
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

struct Decider {
    offloads: Offloads,
    rules: Rules,
    /// [`Offloads::allows_unreplied`].
    unreplied_allowed: bool,
    /// Addresses of pods, as of the last search for expired decisions.
    pods: BTreeSet<Address>,
    /// When the [`WINDOW`] of `queries` has started.
    window: Instant,
    queries: OffloadShares,
    /// Places in the offload table, counted at the last search for expired decisions.
    places: OffloadShares,
}

impl Decider {
    fn new(offloads: Offloads) -> Self {
        Self {
            offloads,
            rules: Rules::default(),
            unreplied_allowed: false,
            pods: BTreeSet::new(),
            window: Instant::now(),
            queries: OffloadShares::new(QUERIES),
            places: OffloadShares::new(maps::OFFLOADED.capacity),
        }
    }

    /// Prepares for a group of candidates.
    fn start_window(&mut self) -> io::Result<()> {
        if self.window.elapsed() >= WINDOW {
            self.window = Instant::now();
            self.queries = OffloadShares::new(QUERIES);
        }
        self.unreplied_allowed = self.offloads.allows_unreplied()?;
        Ok(())
    }

    /// Removes expired decisions, and counts the others.
    fn remove_expired(&mut self, now: u32) -> io::Result<OffloadCounts> {
        self.pods = self.offloads.pods()?;
        self.places = OffloadShares::new(maps::OFFLOADED.capacity);
        let mut counts = BTreeMap::new();
        let (pods, places) = (&self.pods, &mut self.places);
        self.offloads.remove_expired(now, |tuple, offloaded| {
            places.charge(account(pods, tuple, &offloaded.translated));
            let kind = (offloaded.decision, offloaded.translated != *tuple);
            *counts.entry(kind).or_default() += 1;
        })?;
        Ok(OffloadCounts::of(&counts))
    }

    /// Decides about the direction of a connection that a candidate is of.
    fn decide(&mut self, candidate: &OffloadCandidate, now: u32) -> io::Result<()> {
        let observed = &candidate.tuple;
        let unchanged = self.rules.unchanged(candidate.rulesets, now);
        let account = account(&self.pods, observed, observed);
        if !self.queries.take(account, 1) {
            return Ok(());
        }
        let evidence = OffloadEvidence {
            unchanged,
            repeated: self.offloads.decision(observed)?.is_some(),
            unreplied_allowed: self.unreplied_allowed,
        };
        let entry = |decision, seconds| Offloaded {
            rulesets: candidate.rulesets,
            expires: now + seconds,
            decision,
            translated: *observed,
        };
        match self.judge(observed, evidence)? {
            Ok(OffloadDecision {
                tuple,
                seconds,
                unreplied,
                ..
            }) => {
                let (number, part) = if unreplied {
                    (Offloaded::UNREPLIED, UNESTABLISHED)
                } else {
                    (Offloaded::ACCEPTED, 1)
                };
                self.write(&tuple, entry(number, seconds), part)?;
                if tuple == *observed {
                    return Ok(());
                }
                // Else packets that stay on the stack would be reported again and again.
                self.write(observed, entry(Offloaded::BEHIND_NAT, seconds), part)
            }
            Err(reason) => {
                let seconds = reason.retry_after();
                self.write(observed, entry(reason as u32, seconds), UNESTABLISHED)
            }
        }
    }

    /// Writes a decision, if there is one or the account may have another place.
    fn write(&mut self, tuple: &Tuple, decision: Offloaded, part: u32) -> io::Result<()> {
        let account = account(&self.pods, tuple, &decision.translated);
        let may = self.offloads.decision(tuple)?.is_some() || self.places.take(account, part);
        if !may {
            return Ok(());
        }
        self.offloads.decide(tuple, decision)
    }

    /// Judges packets with a tuple behind netfilter, and prepares conntrack for packets that it
    /// will not see.
    fn judge(
        &mut self,
        observed: &Tuple,
        evidence: OffloadEvidence,
    ) -> io::Result<Result<OffloadDecision, StackReason>> {
        let connection = self.offloads.connection(observed)?;
        let judged = planner::decide_offload(observed, connection.as_ref(), evidence);
        let (Ok(decision), Some(connection)) = (judged, connection) else {
            return Ok(judged);
        };
        let (source, destination) = (decision.tuple.source, observed.destination);
        if !self.offloads.is_pod(source)? && !self.offloads.is_pod(destination)? {
            return Ok(Err(StackReason::NotOfPod));
        }
        let is_checked = observed.protocol == protocol::TCP && !connection.is_liberal;
        // The connection may have ended meanwhile.
        if is_checked && self.offloads.make_liberal(&connection).is_err() {
            return Ok(Err(StackReason::NotEstablished));
        }
        if !decision.unreplied {
            self.forget_new(&decision, &connection)?;
        }
        Ok(judged)
    }

    /// Ends the decision about the other direction of an established connection, if it is from the
    /// time when there was no reply: to rules, the connection is another one now.
    fn forget_new(
        &mut self,
        decision: &OffloadDecision,
        connection: &TrackedConnection,
    ) -> io::Result<()> {
        let other = if decision.tuple == connection.original {
            [connection.reply, connection.original.reverse()]
        } else {
            [connection.original, connection.reply.reverse()]
        };
        let mut is_new = false;
        for tuple in &other {
            let found = self.offloads.decision(tuple)?;
            is_new |= found.is_some_and(|it| is_of_new(it.decision));
        }
        if is_new {
            for tuple in &other {
                self.offloads.forget(tuple)?;
            }
        }
        Ok(())
    }
}

/// Returns whether a decision is about a connection that is not established.
fn is_of_new(decision: u32) -> bool {
    [Offloaded::UNREPLIED, StackReason::NotEstablished as u32].contains(&decision)
}

fn account(pods: &BTreeSet<Address>, tuple: &Tuple, translated: &Tuple) -> Option<Address> {
    planner::offload_account(tuple, translated, |address| pods.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offload_counts_have_the_reasons_of_the_table() {
        let table = [
            ((Offloaded::ACCEPTED, false), 4),
            ((Offloaded::ACCEPTED, true), 3),
            ((Offloaded::UNREPLIED, false), 10),
            ((Offloaded::UNREPLIED, true), 20),
            ((Offloaded::BEHIND_NAT, false), 3),
            ((StackReason::Marked as u32, false), 2),
            ((99, false), 1),
        ];
        let counts = OffloadCounts::of(&table.into());
        assert_eq!((counts.accepted, counts.translated), (37, 23));
        assert_eq!(counts.unreplied, 30);
        assert_eq!(counts.on_stack, [(StackReason::Marked, 2)].into());
    }

    #[test]
    fn decisions_about_new_connections_end_with_the_first_reply() {
        assert!(is_of_new(Offloaded::UNREPLIED));
        assert!(is_of_new(StackReason::NotEstablished as u32));
        for other in [
            Offloaded::ACCEPTED,
            Offloaded::BEHIND_NAT,
            StackReason::Marked as u32,
        ] {
            assert!(!is_of_new(other), "{other}");
        }
    }

    #[test]
    fn rules_are_unchanged_since_the_first_candidate_with_their_number() {
        let mut rules = Rules::default();
        let unchanged = [(7, 100), (7, 103), (8, 104), (8, 120)];
        let seconds = unchanged.map(|(number, now)| rules.unchanged(number, now));
        assert_eq!(seconds, [0, 3, 0, 16]);
    }
}
