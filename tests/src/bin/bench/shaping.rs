//! Limits of pods, beside the reference's bandwidth plugin: what TCP and UDP get of their rate, how long questions wait
//! beside the pod's own bulk flow, what it costs, what a burst that nobody asked for lets through, and how soon another
//! limit holds.

mod bulk;
mod change;
mod crowd;
mod questions;
mod site;

use std::fmt;

use anyhow::Result;

use crate::plan::Plan;
use crate::promise::Promise;
use crate::row::{Row, Rows, system};

/// As issue and table of ratios in `docs/benchmarks.md` have it.
pub(crate) const PROMISES: &[Promise] = &[
    p50("1 Mbit/s from the pod, questions beside it, p50"),
    p99("1 Mbit/s from the pod, questions beside it, p99"),
    p50("1 Mbit/s to the pod, questions beside it, p50"),
    p99("1 Mbit/s to the pod, questions beside it, p99"),
    p50("10 Mbit/s from the pod, questions beside it, p50"),
    p99("10 Mbit/s from the pod, questions beside it, p99"),
    p50("10 Mbit/s to the pod, questions beside it, p50"),
    p99("10 Mbit/s to the pod, questions beside it, p99"),
    p50("100 Mbit/s from the pod, questions beside it, p50"),
    p99("100 Mbit/s from the pod, questions beside it, p99"),
    p50("100 Mbit/s to the pod, questions beside it, p50"),
    p99("100 Mbit/s to the pod, questions beside it, p99"),
    p50("1 Gbit/s from the pod, questions beside it, p50"),
    p99("1 Gbit/s from the pod, questions beside it, p99"),
    p50("1 Gbit/s to the pod, questions beside it, p50"),
    p99("1 Gbit/s to the pod, questions beside it, p99"),
    cost("100 Mbit/s from the pod, 1 flow, CPU"),
    cost("100 Mbit/s to the pod, 1 flow, CPU"),
    cost("1 Gbit/s from the pod, 1 flow, CPU"),
    cost("1 Gbit/s to the pod, 1 flow, CPU"),
];

const fn p50(subject: &'static str) -> Promise {
    at_most(subject, 0.1)
}

const fn p99(subject: &'static str) -> Promise {
    at_most(subject, 0.5)
}

const fn cost(subject: &'static str) -> Promise {
    at_most(subject, 1.0)
}

const fn at_most(subject: &'static str, bound: f64) -> Promise {
    Promise {
        subject,
        other: system::NFT,
        bound,
    }
}

const MBIT: u64 = 1_000_000;

/// Which direction a limit is for, seen from the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    From,
    To,
}

impl Direction {
    const BOTH: [Self; 2] = [Self::From, Self::To];

    /// What lets iperf3, whose client is the pod, send this way.
    fn option(self) -> &'static str {
        match self {
            Self::From => "",
            Self::To => "-R",
        }
    }
}

/// A rate in one direction, as rows call it.
#[derive(Clone, Copy, Debug)]
struct Way {
    rate: u64,
    direction: Direction,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = match self.rate / MBIT {
            large if large >= 1_000 => (large / 1_000, "Gbit/s"),
            small => (small, "Mbit/s"),
        };
        let direction = match self.direction {
            Direction::From => "from",
            Direction::To => "to",
        };
        write!(f, "{number} {unit} {direction} the pod")
    }
}

/// All rates that are measured, in both directions.
fn ways(plan: &Plan) -> Vec<Way> {
    rates(plan)
        .iter()
        .flat_map(|&rate| Direction::BOTH.map(|direction| Way { rate, direction }))
        .collect()
}

fn rates(plan: &Plan) -> &'static [u64] {
    plan.pick(
        &[10 * MBIT, 100 * MBIT],
        &[MBIT, 10 * MBIT, 100 * MBIT, 1_000 * MBIT],
    )
}

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Rows::default();
    let near = site::pair(rates(plan), site::Wire::Near)?;
    questions::measure(plan, &near, &mut rows)?;
    bulk::near(plan, &near, &mut rows)?;
    bulk::first_second(plan, &near, &mut rows)?;
    change::measure(plan, &near, &mut rows)?;
    drop(near);
    bulk::far(plan, &site::pair(rates(plan), site::Wire::Far)?, &mut rows)?;
    crowd::measure(plan, &mut rows)?;
    Ok(rows.0)
}
