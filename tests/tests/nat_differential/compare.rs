//! Runs traces on both systems, compares them step by step, and reduces a trace that differs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};

use super::case::Case;
use super::differences::{Difference, explain};
use super::generate;
use super::replay::{Arrival, Replay, Sent};
use super::system::{SCENES, Scene, System, pod_address};
use super::trace::{Base, Trace, Way};

/// Consecutive seeds that have one scene.
const BATCH: u64 = 50;
/// The most unexplained differences that are reported.
const REPORTED: usize = 10;
/// The most runs that reduce one trace.
const ATTEMPTS: usize = 60;

/// Both systems of a scene.
struct Pair {
    scene: &'static Scene,
    systems: [System; 2],
    runs: u16,
}

/// The comparison of one run.
enum Outcome {
    /// Equal except for these differences.
    Same(BTreeSet<(&'static str, &'static str)>),
    /// The steps until the difference, as text.
    Differs(String),
}

/// Counts of a series of traces.
#[derive(Default)]
struct Report {
    traces: u64,
    packets: u64,
    explained: BTreeMap<(&'static str, &'static str), u64>,
    wrong: Vec<String>,
}

/// Runs the traces of `count` seeds from `first` on. An unexplained difference is an error.
pub(crate) fn run(first: u64, count: u64) -> Result<()> {
    let mut pairs = BTreeMap::new();
    let mut report = Report::default();
    for seed in first..first.saturating_add(count) {
        let number = (seed / BATCH) % SCENES.len() as u64;
        let scene = &SCENES[usize::try_from(number)?];
        let pair = match pairs.entry(number) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(Pair::new(scene).with_context(|| scene.name)?)
            }
        };
        pair.trace(seed, &mut report)
            .with_context(|| format!("seed {seed}, {}", scene.name))?;
        if report.wrong.len() == REPORTED {
            break;
        }
    }
    report.print();
    ensure!(
        report.wrong.is_empty(),
        "\n{}\nrepeat a trace: cargo xtask differential --traces 1 --seed SEED",
        report.wrong.join("\n")
    );
    Ok(())
}

impl Report {
    #[expect(
        clippy::print_stdout,
        reason = "how often each difference occurs is a result"
    )]
    fn print(&self) {
        println!("{} traces, {} packets arrived", self.traces, self.packets);
        for ((name, reason), count) in &self.explained {
            println!("{count:>6} traces differ: {name} ({reason})");
        }
    }
}

impl Pair {
    fn new(scene: &'static Scene) -> Result<Self> {
        Ok(Self {
            scene,
            systems: [System::viaduct(scene)?, System::netfilter(scene)?],
            runs: 0,
        })
    }

    fn trace(&mut self, seed: u64, report: &mut Report) -> Result<()> {
        let trace = generate::trace(seed);
        report.traces += 1;
        match self.compare(&trace, report)? {
            Outcome::Same(names) => {
                for name in names {
                    *report.explained.entry(name).or_default() += 1;
                }
            }
            Outcome::Differs(text) => {
                let reduced = self.reduce(trace, text)?;
                report
                    .wrong
                    .push(format!("seed {seed} ({}):\n{reduced}", self.scene.name));
            }
        }
        Ok(())
    }

    /// Removes steps and actions for as long as the trace differs, and returns the shortest run.
    fn reduce(&mut self, mut trace: Trace, mut shown: String) -> Result<String> {
        let mut attempts = 0;
        'again: loop {
            for shorter in shorter(&trace) {
                attempts += 1;
                if attempts > ATTEMPTS {
                    break 'again;
                }
                let mut unused = Report::default();
                if let Outcome::Differs(text) = self.compare(&shorter, &mut unused)? {
                    (trace, shown) = (shorter, text);
                    continue 'again;
                }
            }
            break;
        }
        Ok(shown)
    }

    /// Runs a trace until its end, or until a difference after which the flows differ.
    fn compare(&mut self, trace: &Trace, report: &mut Report) -> Result<Outcome> {
        self.runs = self.runs.checked_add(1).context("too many runs")?;
        let base = Base {
            run: self.runs,
            six: trace.six,
        };
        let mut replays = self
            .systems
            .each_ref()
            .map(|system| Replay::new(system, self.scene, trace, base));
        let mut shown = trace_text(trace);
        let mut explained = BTreeSet::new();
        for (number, step) in trace.steps.iter().enumerate() {
            let [ours, theirs] = &mut replays;
            let ((sent, ours), (_, theirs)) = (ours.step(step)?, theirs.step(step)?);
            report.packets += theirs.len() as u64;
            let (same, only_ours, only_theirs) = split(&ours, &theirs);
            let _ = writeln!(shown, "step {number}:");
            for line in sent {
                let _ = writeln!(shown, "    {line}");
            }
            for arrival in same {
                let _ = writeln!(shown, "  both: {}", arrival.text);
            }
            for arrival in &only_ours {
                let _ = writeln!(
                    shown,
                    "  only by {}: {}",
                    self.systems[0].name, arrival.text
                );
            }
            for arrival in &only_theirs {
                let _ = writeln!(
                    shown,
                    "  only by {}: {}",
                    self.systems[1].name, arrival.text
                );
            }
            if only_ours.is_empty() && only_theirs.is_empty() {
                continue;
            }
            let history = replays[0].history();
            let cases = cases(
                (trace, base, self.scene.snat, number, history),
                only_ours,
                only_theirs,
            );
            let Some(found) = cases.iter().map(explain_all).collect::<Option<Vec<_>>>() else {
                return Ok(Outcome::Differs(shown));
            };
            let found = found.concat();
            explained.extend(found.iter().map(|it| (it.name, it.reason)));
            if found.iter().any(|it| it.ends) {
                break;
            }
        }
        Ok(Outcome::Same(explained))
    }
}

/// Returns the arrivals in both systems, those in ours only, and those in netfilter's only.
fn split<'a>(
    ours: &'a [Arrival],
    theirs: &'a [Arrival],
) -> (Vec<&'a Arrival>, Vec<&'a Arrival>, Vec<&'a Arrival>) {
    let mut unmatched = theirs.iter().collect::<Vec<_>>();
    let (mut same, mut only_ours) = (Vec::new(), Vec::new());
    for arrival in ours {
        match unmatched
            .iter()
            .position(|other| other.text == arrival.text)
        {
            Some(at) => {
                unmatched.remove(at);
                same.push(arrival);
            }
            None => only_ours.push(arrival),
        }
    }
    (same, only_ours, unmatched)
}

/// Groups the differing arrivals by flow and direction, and those of no flow by site and kind.
fn cases<'a>(
    (trace, base, snat, step, history): (&'a Trace, Base, bool, usize, &'a [Sent]),
    ours: Vec<&'a Arrival>,
    theirs: Vec<&'a Arrival>,
) -> Vec<Case<'a>> {
    let mut groups = BTreeMap::<_, [Vec<&Arrival>; 2]>::new();
    let all = ours
        .into_iter()
        .map(|it| (0, it))
        .chain(theirs.into_iter().map(|it| (1, it)));
    for (whose, arrival) in all {
        let kind = arrival.wire.payload.get(..2).unwrap_or_default();
        // The reference's `portmap` changes the address of a client pod.
        let pods = [0, 1].map(|pod| pod_address(pod, trace.six));
        let of_pod = !snat && pods.contains(&arrival.wire.source);
        let key = match arrival.of {
            Some((flow, way)) => (Some((flow, way == Way::Back)), None),
            None => (
                None,
                Some((arrival.site, arrival.wire.protocol, kind, of_pod)),
            ),
        };
        groups.entry(key).or_default()[whose].push(arrival);
    }
    let cases = groups.into_values().map(|[ours, theirs]| Case {
        trace,
        base,
        snat,
        step,
        history,
        ours,
        theirs,
    });
    cases.collect()
}

/// Returns the differences that explain a case: one for all of its packets, or for packets of no
/// flow, which may have nothing in common, one for each.
fn explain_all(case: &Case<'_>) -> Option<Vec<&'static Difference>> {
    match explain(case) {
        Some(difference) => Some(vec![difference]),
        None if case.flow().is_none() => case.single().iter().map(explain).collect(),
        None => None,
    }
}

/// Returns the trace without each of its steps, and without each action of a step.
fn shorter(trace: &Trace) -> Vec<Trace> {
    let mut all = Vec::new();
    for step in (0..trace.steps.len()).rev() {
        let mut without = trace.clone();
        without.steps.remove(step);
        all.push(without);
    }
    for step in 0..trace.steps.len() {
        for action in 0..trace.steps[step].actions.len() {
            let mut without = trace.clone();
            without.steps[step].actions.remove(action);
            if !without.steps[step].actions.is_empty() {
                all.push(without);
            }
        }
    }
    all
}

fn trace_text(trace: &Trace) -> String {
    let mut text = String::new();
    for (number, flow) in trace.flows.iter().enumerate() {
        let _ = writeln!(
            text,
            "  flow {number}: {:?} {:?}, client port {}",
            flow.protocol, flow.path, flow.port
        );
    }
    text
}
