//! Cost of the checks of what pods send: of packets of established flows, and of new connections,
//! beside the same agent with pods that are not checked.

use anyhow::Result;

use crate::connect;
use crate::goals::Goal;
use crate::packet_cost;
use crate::plan::Plan;
use crate::row::{Row, system};
use crate::topology;

/// Packets of checked pods cost at most three per cent more.
pub(crate) const GOALS: &[Goal] = &[
    goal("pod → pod"),
    goal("world → hostport"),
    goal("pod → world"),
];

const fn goal(subject: &'static str) -> Goal {
    Goal {
        subject,
        other: system::UNCHECKED,
        bound: 1.03,
    }
}

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let systems = topology::checked_and_unchecked(plan.company)?;
    let mut rows = packet_cost::measure_systems(plan, &systems)?;
    rows.extend(connect::measure_named(plan, systems, connect::TITLE)?);
    Ok(rows)
}
