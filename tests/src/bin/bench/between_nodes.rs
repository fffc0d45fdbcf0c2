//! CPU time of one UDP packet between pods of two nodes: by routes and in tunnels, with few and
//! with many peers, beside plain routing and beside the kernel's VXLAN with a bridge and netfilter.

use anyhow::{Context as _, Result};

use crate::goals::Goal;
use crate::packet_cost;
use crate::plan::Plan;
use crate::row::{Row, system};
use crate::topology::{self, Topology, Way};

/// Peers of the larger cluster.
const MANY: u32 = 5_000;

const ROUTES: &str = "by routes";
const TUNNEL: &str = "in a tunnel";
const MANY_ROUTES: &str = "by routes, 5,000 peers";
const MANY_TUNNEL: &str = "in a tunnel, 5,000 peers";

/// Viaduct with one peer, beside which it is measured with many.
const ONE_PEER: &str = "viaduct, one peer";
/// Viaduct without a tunnel, beside which it is measured with one.
const UNTUNNELLED: &str = "viaduct, by routes";

pub(crate) const GOALS: &[Goal] = &[
    goal(ROUTES, system::FORWARDING, 1.05),
    goal(TUNNEL, UNTUNNELLED, 1.5),
    goal(TUNNEL, system::FLANNEL, 0.8),
    goal(MANY_ROUTES, ONE_PEER, 1.05),
    goal(MANY_TUNNEL, ONE_PEER, 1.05),
];

const fn goal(subject: &'static str, other: &'static str, bound: f64) -> Goal {
    Goal {
        subject,
        other,
        bound,
    }
}

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let company = plan.company;
    let viaduct = |name: &'static str, between: &str, peers: u32| {
        topology::viaduct_nodes(company, between, peers).map(|it| it.named(name))
    };
    let systems: Vec<Topology> = vec![
        topology::routing_nodes(company)?,
        topology::flannel_nodes(company)?,
        viaduct(ROUTES, "direct", 0)?,
        viaduct(TUNNEL, "tunnel", 0)?,
        viaduct(MANY_ROUTES, "direct", MANY)?,
        viaduct(MANY_TUNNEL, "tunnel", MANY)?,
    ];
    compared(&packet_cost::measure_systems(plan, &systems)?)
}

/// Returns the rows in which each system is beside those that it is compared with, for each load.
fn compared(measured: &[Row]) -> Result<Vec<Row>> {
    let loads = measured.chunk_by(|row, next| row.name == next.name);
    let rows = loads.map(compared_under).collect::<Result<Vec<_>>>()?;
    Ok(rows.concat())
}

/// As [`compared`], for the rows of one load.
fn compared_under(measured: &[Row]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, systems) in [
        (
            ROUTES,
            &[
                (system::FORWARDING, system::FORWARDING),
                (ROUTES, system::VIADUCT),
            ][..],
        ),
        (
            TUNNEL,
            &[
                (system::FORWARDING, system::FORWARDING),
                (system::FLANNEL, system::FLANNEL),
                (ROUTES, UNTUNNELLED),
                (TUNNEL, system::VIADUCT),
            ],
        ),
        (
            MANY_ROUTES,
            &[(ROUTES, ONE_PEER), (MANY_ROUTES, system::VIADUCT)],
        ),
        (
            MANY_TUNNEL,
            &[(TUNNEL, ONE_PEER), (MANY_TUNNEL, system::VIADUCT)],
        ),
    ] {
        for (from, system) in systems {
            let mut of_load = measured.iter();
            let found = of_load
                .find(|row| row.system == *from)
                .with_context(|| format!("{from} was not measured"))?;
            let load = found.name.strip_prefix(Way::PodToPod.name());
            rows.push(Row {
                name: format!("{name}{}", load.unwrap_or_default()),
                system: (*system).to_owned(),
                ..found.clone()
            });
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_goal_has_both_rows() {
        let row = |system: &str| Row {
            samples: vec![1.0],
            ..Row::new("pod → pod", system, "ns per packet")
        };
        let measured = [
            system::FORWARDING,
            system::FLANNEL,
            ROUTES,
            TUNNEL,
            MANY_ROUTES,
            MANY_TUNNEL,
        ]
        .map(row);
        let rows = compared(&measured).unwrap();
        for goal in GOALS {
            assert!(goal.evaluate(&rows).is_some(), "{goal:?}");
        }
        let other_load = measured.clone().map(|row| Row {
            name: "pod → pod, without replies".to_owned(),
            ..row
        });
        let both = compared(&[measured, other_load].concat()).unwrap();
        assert_eq!(both.len(), 2 * rows.len());
        let last = both.last().map(|row| row.name.as_str());
        assert_eq!(last, Some("in a tunnel, 5,000 peers, without replies"));
    }
}
