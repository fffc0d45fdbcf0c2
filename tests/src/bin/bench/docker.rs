//! Networks of Docker's own bridge driver and of the driver viaduct: how long `docker run` takes
//! for the network, and what packets and connections to a published port cost.
//!
//! Each system has a node of its own with dockerd, its bridge and its rules. dockerd is the
//! machine's, and the newest one below `target/tools`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::company::DockerRelease;

use crate::goals::Goal;
use crate::plan::{self, Plan};
use crate::row::{Row, Rows, system};
use crate::topology::{self, DockerNode, Driver, Way};
use crate::{bulk, connect, packet_cost};

/// Releases, with the end of their rows' names.
const RELEASES: [(DockerRelease, &str); 2] = [
    (DockerRelease::Installed, ", installed dockerd"),
    (DockerRelease::Newest, ", newest dockerd"),
];

/// Time after the removal of a container in which the kernel destroys its namespace, with the lock
/// of netlink held.
const CLEANUP: Duration = Duration::from_millis(200);

/// Name of the row with the time that a container without a network does not take.
const NETWORK_PART: &str = "docker run -p, network part";

/// The network part is at most half of that of Docker's own driver.
pub(crate) const GOALS: &[Goal] = &[
    goal("docker run -p, network part, installed dockerd", 0.5),
    goal("docker run -p, network part, newest dockerd", 0.5),
];

const fn goal(subject: &'static str, bound: f64) -> Goal {
    Goal {
        subject,
        other: system::DOCKER,
        bound,
    }
}

/// Measures how long `docker run` takes.
pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    with_each_release(&Driver::ALL, |nodes| start_up(plan, &nodes))
}

/// Measures published ports and the other paths of containers. What the proxy does not carry is the
/// same without it.
pub(crate) fn measure_ports(plan: &Plan) -> Result<Vec<Row>> {
    let drivers = [Driver::Bridge, Driver::Viaduct];
    with_each_release(&drivers, |nodes| published_ports(plan, nodes))
}

/// Measures with each release of dockerd that is there, on a node for each driver.
fn with_each_release(
    drivers: &[Driver],
    measure: impl Fn(Vec<DockerNode>) -> Result<Vec<Row>>,
) -> Result<Vec<Row>> {
    let releases = RELEASES
        .into_iter()
        .filter(|(release, _)| release.is_here());
    let mut rows = Vec::new();
    for (release, suffix) in releases {
        let nodes = drivers
            .iter()
            .map(|driver| DockerNode::start(*driver, release))
            .collect::<Result<Vec<_>>>()?;
        plan::print_line(&format!("   dockerd {}", nodes[0].version()?));
        rows.extend(measure(nodes)?.into_iter().map(|row| Row {
            name: format!("{}{suffix}", row.name),
            ..row
        }));
    }
    ensure!(!rows.is_empty(), "there is no dockerd: `cargo xtask setup`");
    Ok(rows)
}

/// Measures `docker run` with a published port, and without a network.
fn start_up(plan: &Plan, nodes: &[DockerNode]) -> Result<Vec<Row>> {
    for node in nodes {
        // The first container loads programs and modules.
        timed(node, true)?;
    }
    let mut rows = Rows::default();
    let mut is_reversed = false;
    plan.interleave("docker run", plan.pick(8, 40), nodes, |node| {
        let (with, without) = if is_reversed {
            let without = timed(node, false)?;
            (timed(node, true)?, without)
        } else {
            (timed(node, true)?, timed(node, false)?)
        };
        is_reversed = !is_reversed;
        for (name, sample) in [
            ("docker run -p", with),
            ("docker run --network none", without),
            (NETWORK_PART, with - without),
        ] {
            rows.push(Row::new(name, node.system(), "ms"), sample);
        }
        Ok(())
    })?;
    Ok(rows.0)
}

/// Starts a container and removes it. Returns the milliseconds of the start.
fn timed(node: &DockerNode, on_network: bool) -> Result<f64> {
    let start = Instant::now();
    node.run("web", on_network)
        .with_context(|| format!("docker run with the {}", node.system()))?;
    let took = start.elapsed();
    node.remove("web")?;
    std::thread::sleep(CLEANUP);
    Ok(took.as_secs_f64() * 1e3)
}

fn published_ports(plan: &Plan, nodes: Vec<DockerNode>) -> Result<Vec<Row>> {
    let mut systems = nodes
        .into_iter()
        .map(DockerNode::into_topology)
        .collect::<Result<Vec<_>>>()?;
    let mut rows = bulk::measure_systems(plan, &systems, &[Way::WorldToHostport])?;
    systems.insert(0, topology::bare()?);
    let packets = packet_cost::measure_systems(plan, &systems)?;
    rows.extend(packet_cost::above_bare(&packets));
    rows.extend(packets);
    let name = "connections to the published port";
    rows.extend(connect::measure_named(plan, systems, name)?);
    Ok(rows)
}
