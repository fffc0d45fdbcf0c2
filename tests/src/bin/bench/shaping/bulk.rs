//! iperf3 at a bandwidth limit: throughput as a share of the rate, retransmits, and CPU time.

use anyhow::{Context as _, Result};
use e2e::{Iperf, Machine, Throughput, WORLD, measure_in};

use super::site::{PLACEHOLDER_RATE, Site};
use super::{Direction, MBIT, Way, ways};
use crate::background_load::{self, WARM};
use crate::cpu_time;
use crate::plan::Plan;
use crate::row::{Row, Rows};
use crate::statistics::Summary;
use crate::steal_retry;

const PORT: u16 = 5201;
/// Unit of shares.
const OF_THE_RATE: &str = "of the rate";
/// Payload of datagrams in bytes: with headers, the MTU of most links.
const DATAGRAM: u32 = 1_472;
/// Lowest rate whose CPU time is large enough to be distinguished from that of the idle machine.
const LEAST_COST: u64 = 100 * MBIT;
/// Rounds at [`LEAST_COST`], where the CPU time is a hundredth of two processors and varies by half
/// between transfers.
const ROUNDS_OF_LITTLE: usize = 5;

/// A transfer between a pod and the world of a node.
struct Transfer<'a> {
    site: &'a Site,
    pod: &'a Machine,
    direction: Direction,
}

impl Transfer<'_> {
    fn run(&self, options: &str) -> Result<Throughput> {
        let _server = Iperf::serve(self.site.world(), PORT)?;
        let options = format!("{options} {}", self.direction.option());
        let cgroup = self.site.cgroup();
        measure_in(cgroup.as_deref(), self.pod, WORLD[0], PORT, &options)
    }

    /// Does the same as [`Transfer::run`], and returns the CPU time too.
    fn cost(&self, options: &str, seconds: u32) -> Result<(Throughput, Cost)> {
        let before = self.site.delay_cpu_time();
        let (got, spent) = cpu_time::during(|| self.run(options))?;
        let delay = self.site.delay_cpu_time().saturating_sub(before);
        let cost = Cost {
            system: self.site.system(),
            busy: spent.busy.saturating_sub(delay).as_secs_f64(),
            span: seconds.into(),
            bits_per_second: got.bits_per_second,
        };
        Ok((got, cost))
    }
}

fn transfer(site: &Site, way: Way) -> Result<Transfer<'_>> {
    Ok(Transfer {
        site,
        pod: site.pod(way.rate)?,
        direction: way.direction,
    })
}

/// Measures TCP and UDP on a link without delay.
pub(super) fn near(plan: &Plan, sites: &[Site], rows: &mut Rows) -> Result<()> {
    for way in ways(plan) {
        for flows in plan.pick(&[1][..], &[1, 8]) {
            tcp(plan, sites, rows, way, *flows, "")?;
        }
        datagrams(plan, sites, rows, way)?;
    }
    Ok(())
}

/// Measures TCP on a link with delay.
pub(super) fn far(plan: &Plan, sites: &[Site], rows: &mut Rows) -> Result<()> {
    for way in ways(plan) {
        for flows in plan.pick(&[1][..], &[1, 8]) {
            tcp(plan, sites, rows, way, *flows, ", 20 ms away")?;
        }
    }
    Ok(())
}

fn tcp(
    plan: &Plan,
    sites: &[Site],
    rows: &mut Rows,
    way: Way,
    flows: u32,
    place: &str,
) -> Result<()> {
    let plural = if flows == 1 { "" } else { "s" };
    let name = format!("{way}, {flows} flow{plural}{place}");
    let seconds: u32 = plan.pick(4, 10);
    let options = format!("-C cubic -P {flows} -O {WARM} -t {seconds}");
    let mut costs = Costs::default();
    let costs_little = way.rate == LEAST_COST && flows == 1 && place.is_empty();
    let rounds = if costs_little { ROUNDS_OF_LITTLE } else { 3 };
    plan.interleave(&name, plan.pick(1, rounds), sites, |site| {
        let transfer = transfer(site, way)?;
        let got = costs
            .run(&transfer, way, &options, seconds + WARM)
            .with_context(|| format!("{name} through {}", site.system()))?;
        let share = Row::new(&name, site.system(), OF_THE_RATE).higher();
        rows.push(share.within(0.95, 1.02), part(got, way.rate));
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let again = got.retransmits as f64;
        rows.push(
            Row::new(format!("{name}, retransmits"), site.system(), "segments"),
            again,
        );
        Ok(())
    })?;
    costs.add_rows(&name, rows);
    Ok(())
}

/// CPU time of transfers, beyond that of the idle machine. Idle CPU time is measured before each
/// transfer, and its median counts, because one measurement may be disturbed.
#[derive(Default)]
struct Costs {
    /// CPU seconds per second of the idle machine.
    idle: Vec<f64>,
    samples: Vec<Cost>,
}

struct Cost {
    system: &'static str,
    /// CPU time of all CPUs in seconds.
    busy: f64,
    /// Elapsed time in seconds.
    span: f64,
    bits_per_second: f64,
}

impl Costs {
    /// Runs a transfer of `seconds`, and records its CPU time from [`LEAST_COST`] on.
    fn run(
        &mut self,
        transfer: &Transfer<'_>,
        way: Way,
        options: &str,
        seconds: u32,
    ) -> Result<Throughput> {
        if way.rate < LEAST_COST {
            return steal_retry::measure(|| transfer.run(options));
        }
        let (got, cost) = steal_retry::measure(|| {
            self.idle.push(cpu_time::idle()?);
            transfer.cost(options, seconds)
        })?;
        self.samples.push(cost);
        Ok(got)
    }

    /// Adds a row with the CPU time per Gbit of each transfer.
    fn add_rows(self, name: &str, rows: &mut Rows) {
        let idle = Summary::of(&self.idle).map_or(0.0, |idle| idle.median);
        for cost in self.samples {
            let own = cost.busy - idle * cost.span;
            let row = Row::new(format!("{name}, CPU"), cost.system, "s per Gbit");
            rows.push(row, own / (cost.bits_per_second * cost.span / 1e9));
        }
    }
}

/// Measures the share of UDP that passes at twice the rate.
fn datagrams(plan: &Plan, sites: &[Site], rows: &mut Rows, way: Way) -> Result<()> {
    let name = format!("{way}, datagrams at twice the rate");
    let seconds: u32 = plan.pick(4, 10);
    let offered = 2 * way.rate;
    let options = format!("-u -b {offered} -l {DATAGRAM} -O {WARM} -t {seconds}");
    plan.interleave(&name, plan.pick(1, 3), sites, |site| {
        let transfer = transfer(site, way)?;
        let got = steal_retry::measure(|| transfer.run(&options))
            .with_context(|| format!("{name} through {}", site.system()))?;
        let row = Row::new(&name, site.system(), OF_THE_RATE).higher();
        rows.push(row.within(0.97, 1.01), part(got, way.rate));
        Ok(())
    })
}

/// Measures the first second of a pod with containerd's default burst.
pub(super) fn first_second(plan: &Plan, sites: &[Site], rows: &mut Rows) -> Result<()> {
    let way = Way {
        rate: PLACEHOLDER_RATE,
        direction: Direction::From,
    };
    let name = format!("{way}, a burst of 2^32 - 1 bits, the first second");
    plan.interleave(&name, plan.pick(1, 3), sites, |site| {
        let transfer = Transfer {
            site,
            pod: site.placeholder(),
            direction: way.direction,
        };
        let got = transfer.run("-C cubic -t 1")?;
        let row = Row::new(&name, site.system(), OF_THE_RATE);
        rows.push(row.within(0.0, 1.5), part(got, way.rate));
        Ok(())
    })
}

#[expect(clippy::cast_precision_loss, reason = "rates are round numbers")]
fn part(got: Throughput, rate: u64) -> f64 {
    got.bits_per_second / rate as f64
}

/// Runs `body`, which takes `seconds`, while a bulk flow runs.
pub(super) fn under_load<T>(
    site: &Site,
    way: Way,
    seconds: u32,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let options = format!("-C cubic -t {}", WARM + seconds + 1);
    let transfer = transfer(site, way)?;
    background_load::under_load(|| transfer.run(&options), body)
}
