//! Bandwidth limits of pods, compared with the reference's bandwidth plugin.
//!
//! Measures the share of the rate that TCP and UDP get, the latency of request and response under
//! the pod's own bulk load, CPU time, the first second with containerd's default burst, and the
//! time until a changed limit takes effect.

mod bulk;
mod latency_under_load;
mod limit_change;
mod many_pods;
mod site;

use std::fmt;

use anyhow::Result;

use crate::goals::Goal;
use crate::plan::Plan;
use crate::row::{Row, Rows, system};

/// Goals of the table of ratios in `docs/benchmarks.md`.
pub(crate) const GOALS: &[Goal] = &[
    p50("1 Mbit/s from the pod, request/response under bulk load, p50"),
    p99("1 Mbit/s from the pod, request/response under bulk load, p99"),
    p50("1 Mbit/s to the pod, request/response under bulk load, p50"),
    p99("1 Mbit/s to the pod, request/response under bulk load, p99"),
    p50("10 Mbit/s from the pod, request/response under bulk load, p50"),
    p99("10 Mbit/s from the pod, request/response under bulk load, p99"),
    p50("10 Mbit/s to the pod, request/response under bulk load, p50"),
    p99("10 Mbit/s to the pod, request/response under bulk load, p99"),
    p50("100 Mbit/s from the pod, request/response under bulk load, p50"),
    p99("100 Mbit/s from the pod, request/response under bulk load, p99"),
    p50("100 Mbit/s to the pod, request/response under bulk load, p50"),
    p99("100 Mbit/s to the pod, request/response under bulk load, p99"),
    p50("1 Gbit/s from the pod, request/response under bulk load, p50"),
    p99("1 Gbit/s from the pod, request/response under bulk load, p99"),
    p50("1 Gbit/s to the pod, request/response under bulk load, p50"),
    p99("1 Gbit/s to the pod, request/response under bulk load, p99"),
    cost("100 Mbit/s from the pod, 1 flow, CPU"),
    cost("100 Mbit/s to the pod, 1 flow, CPU"),
    cost("1 Gbit/s from the pod, 1 flow, CPU"),
    cost("1 Gbit/s to the pod, 1 flow, CPU"),
];

const fn p50(subject: &'static str) -> Goal {
    at_most(subject, 0.1)
}

const fn p99(subject: &'static str) -> Goal {
    at_most(subject, 0.5)
}

const fn cost(subject: &'static str) -> Goal {
    at_most(subject, 1.0)
}

const fn at_most(subject: &'static str, bound: f64) -> Goal {
    Goal {
        subject,
        other: system::NFT,
        bound,
    }
}

const MBIT: u64 = 1_000_000;

/// Direction of a limit, as seen from the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    From,
    To,
}

impl Direction {
    const BOTH: [Self; 2] = [Self::From, Self::To];

    /// Returns the option with which iperf3, whose client is in the pod, sends in this direction.
    fn option(self) -> &'static str {
        match self {
            Self::From => "",
            Self::To => "-R",
        }
    }
}

/// A rate in one direction. Its display form is a part of row names.
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

/// Returns all measured rates in both directions.
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
    let near = site::pair(plan.company, rates(plan), site::Distance::Near)?;
    latency_under_load::measure(plan, &near, &mut rows)?;
    bulk::near(plan, &near, &mut rows)?;
    bulk::first_second(plan, &near, &mut rows)?;
    limit_change::measure(plan, &near, &mut rows)?;
    drop(near);
    bulk::far(
        plan,
        &site::pair(plan.company, rates(plan), site::Distance::Far)?,
        &mut rows,
    )?;
    many_pods::measure(plan, &mut rows)?;
    Ok(rows.0)
}
