//! Sends the cells, and compares what receivers accepted with what they may accept.
//!
//! A cell fails if a receiver accepts its frames and may not, if a receiver does not accept them
//! and must, or if nothing tells where they went: neither a socket, nor a drop counter, nor the
//! reason why the kernel of a receiver ignores them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::{Result, ensure};
use e2e::{FrameSender, NODE, on_cpu};
use nix::sched::sched_getcpu;

use super::cell::{Cell, RESOLUTION, Standing};
use super::counters::{Counters, grown};
use super::net::Receiver;
use super::scene::{Origin, Scene};
use super::sockets::{Accepted, Arrivals};
use super::state::State;

/// Cells between two looks at the state of the receivers.
const BATCH: usize = 64;
/// Failures that are listed.
const LISTED: usize = 400;
/// How often cells are sent again to find those that have misled a receiver.
const SEARCHES: usize = 100;

/// What became of the cells.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Number of cells by outcome.
    outcomes: BTreeMap<String, usize>,
    /// One line for each failed cell and receiver.
    failures: Vec<String>,
}

impl Report {
    /// Returns the number of cells with outcomes that begin so.
    pub(crate) fn count(&self, outcome: &str) -> usize {
        self.outcomes
            .iter()
            .filter(|(name, _)| name.starts_with(outcome))
            .map(|(_, count)| count)
            .sum()
    }

    /// Fails if a cell did, and lists all that did.
    pub(crate) fn ensure_clean(&self, title: &str) -> Result<()> {
        let listed = &self.failures[..self.failures.len().min(LISTED)];
        ensure!(
            self.failures.is_empty(),
            "{title}: {} failures\n{}\noutcomes: {self}",
            self.failures.len(),
            listed.join("\n")
        );
        Ok(())
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.outcomes
            .iter()
            .try_for_each(|(outcome, count)| write!(f, "\n  {count:5} {outcome}"))
    }
}

/// Sends all cells from one side, on one CPU: frames of one CPU stay in order.
pub(crate) fn run(scene: &mut Scene, origin: Origin, cells: &[Cell]) -> Result<Report> {
    on_cpu(sched_getcpu()?, || {
        let mut run = Run {
            scene,
            origin,
            barriers: 0,
            searches: 0,
            report: Report::default(),
        };
        for batch in cells.chunks(BATCH) {
            run.batch(batch)?;
        }
        Ok(run.report)
    })
}

/// Returns which receivers have accepted cells that no receiver may accept, since the last call.
pub(crate) fn accepted_lies(scene: &Scene, cells: &[Cell]) -> Result<Vec<String>> {
    let mut accepted = Vec::new();
    for (receiver, sockets) in scene.sockets() {
        let arrivals = sockets.drain()?;
        let lies = cells.iter().filter(|cell| cell.is_lie());
        for cell in lies.filter(|cell| arrivals.accepted.contains_key(&cell.number)) {
            accepted.push(format!("{receiver:?}: {}", cell.name));
        }
    }
    Ok(accepted)
}

struct Run<'a> {
    scene: &'a mut Scene,
    origin: Origin,
    barriers: u32,
    searches: usize,
    report: Report,
}

impl Run<'_> {
    fn barrier(&mut self) -> Result<()> {
        self.barriers += 1;
        self.scene.barrier(self.origin, self.barriers)
    }

    fn sender(&self) -> &FrameSender {
        match self.origin {
            Origin::Pod => &self.scene.from_pod,
            Origin::World => &self.scene.from_world,
        }
    }

    fn batch(&mut self, cells: &[Cell]) -> Result<()> {
        self.drain()?;
        let before = self.scene.states()?;
        let mut reasons = BTreeMap::new();
        // The agent closes connections that are idle for long.
        let mut counters = Counters::connect(&self.scene.sandbox.node)?;
        let mut known = counters.drops()?;
        for cell in cells {
            for frame in &cell.frames {
                self.sender().send(frame)?;
            }
            self.barrier()?;
            let drops = counters.drops()?;
            reasons.insert(cell.number, grown(&known, &drops));
            known = drops;
        }
        // What a frame has made another machine queue is in front of this one.
        self.barrier()?;
        let arrivals = self.drain()?;
        for cell in cells {
            self.judge(cell, &arrivals, &reasons[&cell.number]);
        }
        let after = self.scene.states()?;
        let is_misled = after.iter().any(|(receiver, state)| {
            !state
                .false_beliefs(&before[receiver], &self.scene.net)
                .is_empty()
        });
        if is_misled {
            self.attribute(cells)
        } else {
            Ok(())
        }
    }

    fn drain(&self) -> Result<BTreeMap<Receiver, Arrivals>> {
        // What the sender gets are answers.
        let answered = (self.origin == Origin::World).then_some(Receiver::World);
        self.scene
            .sockets()
            .filter(|(receiver, _)| Some(*receiver) != answered)
            .map(|(receiver, sockets)| Ok((receiver, sockets.drain()?)))
            .collect()
    }

    /// Returns the false beliefs of a receiver. A machine outside may be a router, whose errors are
    /// believed: an error that is forged is seen by the raw socket that gets it as well.
    fn false_beliefs(&self, now: &State, before: &State) -> Vec<String> {
        let mut beliefs = now.false_beliefs(before, &self.scene.net);
        if self.origin == Origin::World {
            beliefs.retain(|belief| !belief.starts_with("has exception"));
        }
        beliefs
    }

    /// Lists the cells that mislead a receiver: sends halves of a batch until they are single
    /// cells.
    fn attribute(&mut self, cells: &[Cell]) -> Result<()> {
        let beliefs = self.beliefs(cells)?;
        self.searches += 1;
        if self.searches > SEARCHES {
            let line = format!("{} and the cells behind it: {beliefs:?}", cells[0].name);
            self.report.failures.push(line);
        } else if let [cell] = cells {
            for belief in beliefs {
                self.fail(cell, &belief);
            }
        } else if !beliefs.is_empty() {
            let (first, second) = cells.split_at(cells.len() / 2);
            let before = self.report.failures.len();
            self.attribute(first)?;
            self.attribute(second)?;
            if self.report.failures.len() == before {
                let ends = [&cells[0].name, &cells[cells.len() - 1].name];
                let line = format!("{ends:?} and those between, together: {beliefs:?}");
                self.report.failures.push(line);
            }
        }
        Ok(())
    }

    /// Returns what receivers believe after these cells, and is false.
    fn beliefs(&mut self, cells: &[Cell]) -> Result<Vec<String>> {
        self.scene.forget()?;
        let before = self.scene.states()?;
        for frame in cells.iter().flat_map(|cell| &cell.frames) {
            self.sender().send(frame)?;
        }
        self.barrier()?;
        self.barrier()?;
        let mut beliefs = Vec::new();
        for (receiver, state) in self.scene.states()? {
            for belief in self.false_beliefs(&state, &before[&receiver]) {
                beliefs.push(format!("{receiver:?} {belief}"));
            }
        }
        Ok(beliefs)
    }

    fn judge(&mut self, cell: &Cell, arrivals: &BTreeMap<Receiver, Arrivals>, reasons: &[String]) {
        let mut outcome = String::new();
        for (receiver, arrived) in arrivals {
            let accepted = arrived.accepted.get(&cell.number);
            for one in accepted.into_iter().flatten() {
                match self.is_allowed(cell, *receiver, one) {
                    Ok(name) => outcome = format!("accepted: {name}"),
                    Err(why) => self.fail(
                        cell,
                        &format!(
                            "{receiver:?} accepted it by {} from {} ({why})",
                            one.by, one.from
                        ),
                    ),
                }
            }
            if accepted.is_none() && self.is_due(cell, *receiver) {
                let note = format!("did not arrive at {receiver:?} {reasons:?}");
                self.fail(cell, &note);
            }
        }
        if outcome.is_empty() {
            outcome = self.account(cell, arrivals, reasons);
        }
        *self.report.outcomes.entry(outcome).or_default() += 1;
    }

    /// Returns where the frames of a cell went that no socket got.
    fn account(
        &mut self,
        cell: &Cell,
        arrivals: &BTreeMap<Receiver, Arrivals>,
        reasons: &[String],
    ) -> String {
        if let Some(reason) = reasons.first() {
            return format!("dropped: {reason}");
        }
        if let Some(why) = cell.ignored {
            return format!("ignored: {why}");
        }
        let Standing::Lie(_) = cell.standing else {
            return "ignored: nothing listens".to_owned();
        };
        let mut places = String::new();
        for (receiver, arrived) in arrivals {
            // The packet socket of the node gets frames before any program does.
            if *receiver != Receiver::Node && arrived.on_link.contains_key(&cell.number) {
                let _ = write!(places, " on the link of {receiver:?}");
            }
        }
        self.fail(cell, &format!("is not accounted for{places}"));
        "lost".to_owned()
    }

    fn fail(&mut self, cell: &Cell, what: &str) {
        let standing = match &cell.standing {
            Standing::Lie(why) | Standing::Tolerated(why, _) => why,
            Standing::Honest(_) => "honest",
            Standing::Published(_) => "published",
        };
        let line = format!("{} [{standing}]: {what}", cell.name);
        self.report.failures.push(line);
    }

    /// Returns the name under which a receiver may accept the cell, or why it may not.
    fn is_allowed(
        &self,
        cell: &Cell,
        receiver: Receiver,
        accepted: &Accepted,
    ) -> Result<&'static str, String> {
        let policy = self.scene.policy;
        let name = match &cell.standing {
            Standing::Lie(why) => return Err((*why).to_owned()),
            Standing::Published(to) if to.contains(&receiver) => "a published port",
            Standing::Honest(to) | Standing::Tolerated(_, to) if !to.contains(&receiver) => {
                return Err("another receiver".to_owned());
            }
            Standing::Published(_) => return Err("another receiver".to_owned()),
            Standing::Tolerated(RESOLUTION, _) => RESOLUTION,
            _ if self.origin == Origin::Pod && !policy.lets(receiver) => {
                return Err(format!("ingress policy {}", policy.name()));
            }
            Standing::Honest(_) => "the sender's own address",
            Standing::Tolerated(name, _) => name,
        };
        match self.source_at(cell, receiver, accepted.from) {
            Some(source) if source != accepted.from => Err(format!("not from {source}")),
            _ => Ok(name),
        }
    }

    /// Returns the source address that a receiver must see.
    fn source_at(&self, cell: &Cell, receiver: Receiver, seen: IpAddr) -> Option<IpAddr> {
        if receiver == Receiver::World && self.origin == Origin::Pod {
            return Some(NODE[usize::from(seen.is_ipv6())]);
        }
        cell.source
    }

    fn is_due(&self, cell: &Cell, receiver: Receiver) -> bool {
        match &cell.standing {
            Standing::Published(to) => to.contains(&receiver),
            Standing::Honest(to) => {
                to.contains(&receiver)
                    && (self.origin == Origin::World || self.scene.policy.lets(receiver))
            }
            Standing::Tolerated(..) | Standing::Lie(_) => false,
        }
    }
}
