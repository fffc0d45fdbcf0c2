//! Latency of ADD and DEL for a runtime, from the start of the first plugin to the exit of the
//! last.
//!
//! Measures one pod at a time, many at once, and one at a time on a node with many hostports.
//! Namespaces exist before. One at a time, it also measures the [`NetlinkBaseline`], the least that
//! an ADD can take.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use e2e::{Config, Machine, Mapping, Pod};

use crate::goals::Goal;
use crate::netlink_baseline::NetlinkBaseline;
use crate::plan::Plan;
use crate::row::{Row, Rows, system};
use crate::statistics::quantile;
use crate::topology::{Attached, Reference, Tables, Viaduct};

/// Pods of one sample, one at a time.
const PODS: usize = 8;

/// Numbers of existing hostports with which only Viaduct is measured.
const CROWDS: &[u16] = &[10, 1_000, 10_000];

/// Goals of the table of ratios in `docs/benchmarks.md`.
pub(crate) const GOALS: &[Goal] = &[
    Goal {
        subject: "ADD p50, 0 hostports",
        other: system::LEGACY,
        bound: 1.0 / 40.0,
    },
    Goal {
        subject: "DEL p50, 0 hostports",
        other: system::LEGACY,
        bound: 1.0 / 20.0,
    },
    Goal {
        subject: "ADD p99, 100 at once",
        other: system::LEGACY,
        bound: 1.0 / 20.0,
    },
];

/// A system that attaches pods, on a node with hostports of other pods.
struct Node {
    others: u16,
    kind: Kind,
}

enum Kind {
    Reference(Reference),
    Viaduct(Viaduct),
    Baseline(NetlinkBaseline),
}

/// A pod that a [`Node`] has attached.
enum Guest {
    Reference(Attached),
    Viaduct(Pod),
    Baseline(Machine, usize),
}

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Rows::default();
    let mut nodes = nodes(plan, 0)?;
    nodes.push(Node::alone()?);
    one_at_a_time(plan, "one at a time, no hostport", &nodes, &mut rows)?;
    nodes.pop();
    for at_once in plan.pick(&[100][..], &[8, 32, 100][..]) {
        let what = format!("{at_once} at once");
        plan.interleave(&what, plan.pick(1, 5), &nodes, |node| {
            parallel(node, *at_once, &mut rows).with_context(|| node.system())
        })?;
    }
    drop(nodes);
    for others in plan.pick(&[1000][..], &[1000, 3000][..]) {
        let what = format!("one at a time, {others} hostports");
        one_at_a_time(plan, &what, &self::nodes(plan, *others)?, &mut rows)?;
    }
    crowds(plan, &mut rows)?;
    Ok(rows.0)
}

/// Measures Viaduct with increasing numbers of existing hostports, up to the capacity of the map.
fn crowds(plan: &Plan, rows: &mut Rows) -> Result<()> {
    let mut nodes = Vec::new();
    for others in CROWDS {
        nodes.push(Node::viaduct(plan, *others)?);
    }
    one_at_a_time(plan, "one at a time, by hostports", &nodes, rows)
}

fn nodes(plan: &Plan, others: u16) -> Result<Vec<Node>> {
    let mut nodes = Vec::new();
    for tables in [Tables::Legacy, Tables::Nft] {
        nodes.push(Node {
            others,
            kind: Kind::Reference(Reference::start(tables, plan.company, others)?),
        });
    }
    nodes.push(Node::viaduct(plan, others)?);
    Ok(nodes)
}

/// Measures ADD and DEL of one pod after the other.
///
/// The kernel destroys a released namespace in the background, with the RTNL lock held, which would
/// disturb later samples. So all namespaces are kept until the end.
fn one_at_a_time(plan: &Plan, what: &str, nodes: &[Node], rows: &mut Rows) -> Result<()> {
    let mut kept = Vec::new();
    plan.interleave(what, plan.pick(2, 5), nodes, |node| {
        let (mut adds, mut dels) = (Vec::new(), Vec::new());
        for number in 0..PODS {
            let (guest, took) = node.add(node.machine(number)?, number)?;
            adds.push(took);
            dels.extend(node.del(&guest)?);
            guest.machine().unbind()?;
            kept.push(guest.machine().clone());
        }
        for (verb, times) in [("ADD", adds), ("DEL", dels)] {
            if times.is_empty() {
                continue;
            }
            for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
                let row = Row::new(format!("{verb} {name}"), node.system(), "ms");
                rows.push(
                    row.at("hostports", node.others.into()),
                    milliseconds(&times, part),
                );
            }
        }
        Ok(())
    })
}

/// Measures calls that all start at the same time, as after a reboot of the node. Each has its own
/// sample.
fn parallel(node: &Node, at_once: usize, rows: &mut Rows) -> Result<()> {
    let machines: Vec<_> = (0..at_once)
        .map(|number| node.machine(number))
        .collect::<Result<_>>()?;
    let start = Instant::now();
    let added = each(machines.into_iter().enumerate(), |(number, machine)| {
        node.add(machine, number)
    })?;
    let all_added = start.elapsed();
    let start = Instant::now();
    let dels = each(added.iter(), |(guest, _)| node.del(guest))?;
    let all_deleted = start.elapsed();
    let dels: Vec<_> = dels.into_iter().flatten().collect();
    for (guest, _) in &added {
        guest.machine().unbind()?;
    }
    let adds: Vec<_> = added.into_iter().map(|(_, took)| took).collect();
    for (verb, times, all) in [("ADD", adds, all_added), ("DEL", dels, all_deleted)] {
        let mut put = |what: &str, sample| {
            let row = Row::new(format!("{verb} {what}"), node.system(), "ms");
            rows.push(row.at("at once", at_once as u64), sample);
        };
        put("p50", milliseconds(&times, 0.5));
        put("p99", milliseconds(&times, 0.99));
        put("of all", milliseconds(&[all], 0.5));
    }
    Ok(())
}

fn each<T: Send, R: Send>(
    items: impl Iterator<Item = T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = items.map(|item| scope.spawn(move || work(item))).collect();
        threads
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .map(|it| it.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

impl Node {
    fn viaduct(plan: &Plan, others: u16) -> Result<Self> {
        let kind = Kind::Viaduct(Viaduct::start(plan.company, others)?);
        Ok(Self { others, kind })
    }

    fn alone() -> Result<Self> {
        let kind = Kind::Baseline(NetlinkBaseline::start()?);
        Ok(Self { others: 0, kind })
    }

    fn system(&self) -> &'static str {
        match &self.kind {
            Kind::Reference(node) => node.system(),
            Kind::Viaduct(_) => system::VIADUCT,
            Kind::Baseline(_) => system::BASELINE,
        }
    }

    fn machine(&self, number: usize) -> Result<Machine> {
        let sandbox = match &self.kind {
            Kind::Reference(node) => &node.sandbox,
            Kind::Viaduct(node) => &node.sandbox,
            Kind::Baseline(calls) => &calls.node.sandbox,
        };
        sandbox.machine(&format!("guest-{number}"))
    }

    fn add(&self, machine: Machine, number: usize) -> Result<(Guest, Duration)> {
        let ports = [mapping(number)];
        match &self.kind {
            Kind::Reference(node) => {
                let attached = node.add(machine, &ports)?;
                let took = attached.took;
                Ok((Guest::Reference(attached), took))
            }
            Kind::Viaduct(node) => {
                let mut pod = node.sandbox.pod_in(machine);
                let answer = pod.add_with(Config::new("1.1.0").publish(&ports))?;
                Ok((Guest::Viaduct(pod), answer.took))
            }
            Kind::Baseline(calls) => {
                let took = calls.add(&machine, number)?;
                Ok((Guest::Baseline(machine, number), took))
            }
        }
    }

    /// Executes DEL. Returns `None` for the baseline: the kernel answers the deletion of a link
    /// long after the link is gone, so its time means nothing.
    fn del(&self, guest: &Guest) -> Result<Option<Duration>> {
        match (&self.kind, guest) {
            (Kind::Reference(node), Guest::Reference(attached)) => node.del(attached).map(Some),
            (Kind::Viaduct(_), Guest::Viaduct(pod)) => Ok(Some(pod.del()?.took)),
            (Kind::Baseline(calls), Guest::Baseline(_, number)) => {
                calls.del(*number).map(|()| None)
            }
            _ => anyhow::bail!("the pod was attached by another system"),
        }
    }
}

impl Guest {
    fn machine(&self) -> &Machine {
        match self {
            Self::Reference(attached) => &attached.machine,
            Self::Viaduct(pod) => &pod.machine,
            Self::Baseline(machine, _) => machine,
        }
    }
}

fn mapping(number: usize) -> Mapping {
    Mapping::tcp(8000 + u16::try_from(number).unwrap_or_default(), 80)
}

fn milliseconds(times: &[Duration], part: f64) -> f64 {
    let mut sorted: Vec<_> = times.iter().map(|it| it.as_secs_f64() * 1e3).collect();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, part).unwrap_or(f64::NAN)
}
