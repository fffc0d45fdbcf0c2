//! Cost of the checks of what pods send: of packets of established flows, and of new connections,
//! beside the same agent with pods that are not checked.

use anyhow::Result;

use crate::goals::Goal;
use crate::plan::Plan;
use crate::row::{Row, system};
use crate::topology::{self, PORTS};
use crate::{connect, packet_cost};

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
    let hostports = u16::try_from(PORTS.len())?;
    let systems: Vec<_> = systems.into_iter().map(|it| (hostports, it)).collect();
    let connections = connect::measure_systems(plan, &systems)?;
    rows.extend(connections.into_iter().map(|row| Row {
        name: format!("connections, {}", row.name),
        ..row
    }));
    Ok(rows)
}
