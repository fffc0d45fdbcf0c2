//! Bulk TCP with iperf3, one and four streams: throughput, and CPU time of all CPUs.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use e2e::{Iperf, Machine, measure as transfer};

use crate::cpu_time;
use crate::goals::Goal;
use crate::plan::Plan;
use crate::row::{Row, Rows, system};
use crate::topology::{self, PORTS, Topology, Way};

/// Duration of one sample in seconds: the minimum of iperf3.
const SECONDS: u32 = 1;

/// Goals of the table of ratios in `docs/benchmarks.md`.
pub(crate) const GOALS: &[Goal] = &[Goal {
    subject: "pod → pod, 1 stream, CPU",
    other: system::NFT,
    bound: 0.9,
}];

struct Pair {
    system: &'static str,
    client: Machine,
    target: IpAddr,
    _server: Iperf,
}

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    measure_systems(plan, &topology::all(plan.company)?, &Way::ALL)
}

/// Measures these systems on these paths.
pub(crate) fn measure_systems(plan: &Plan, systems: &[Topology], ways: &[Way]) -> Result<Vec<Row>> {
    let mut rows = Rows::default();
    for way in ways.iter().copied() {
        let pairs: Vec<_> = systems
            .iter()
            .map(|it| serve(it, way))
            .collect::<Result<_>>()?;
        for streams in plan.pick(&[1][..], &[1, 4][..]) {
            let name = match streams {
                1 => format!("{}, 1 stream", way.name()),
                many => format!("{}, {many} streams", way.name()),
            };
            plan.interleave(&name, plan.pick(3, 11), &pairs, |pair| {
                let (rate, cost) = pair
                    .send(*streams)
                    .with_context(|| format!("{name} through {}", pair.system))?;
                rows.push(Row::new(&name, pair.system, "Gbit/s").higher(), rate);
                rows.push(
                    Row::new(format!("{name}, CPU"), pair.system, "ns per KB"),
                    cost,
                );
                Ok(())
            })?;
        }
    }
    Ok(rows.0)
}

fn serve(topology: &Topology, way: Way) -> Result<Pair> {
    let path = topology.path(way);
    Ok(Pair {
        system: topology.system,
        client: path.from.clone(),
        target: path.target,
        _server: Iperf::serve(&path.to, PORTS[2])?,
    })
}

impl Pair {
    /// Takes one sample: Gbit/s, and CPU nanoseconds per KB of all CPUs, with everything they did.
    fn send(&self, streams: u32) -> Result<(f64, f64)> {
        let options = format!("-t {SECONDS} -P {streams}");
        let (throughput, spent) =
            cpu_time::during(|| transfer(&self.client, self.target, PORTS[2], &options))?;
        let kilobytes = throughput.bits_per_second * f64::from(SECONDS) / 8e3;
        Ok((
            throughput.bits_per_second / 1e9,
            spent.busy.as_secs_f64() * 1e9 / kilobytes,
        ))
    }
}
