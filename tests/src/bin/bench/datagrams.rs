//! Rate of small UDP packets that arrive, with one CPU sending at full speed and one receiving.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::on_cpu;

use crate::goals::Goal;
use crate::packet_cost;
use crate::pinned;
use crate::plan::Plan;
use crate::row::{Row, Rows, system};
use crate::topology::{self, PORTS, Way};

const SAMPLE: Duration = Duration::from_millis(100);
const QUIET: Duration = Duration::from_millis(20);

/// Goals of the table of ratios in `docs/benchmarks.md`.
pub(crate) const GOALS: &[Goal] = &[Goal {
    subject: "world → hostport",
    other: system::NFT,
    bound: 1.5,
}];

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let systems = topology::all(plan.company)?;
    let mut rows = Rows::default();
    for way in Way::ALL {
        plan.interleave(way.name(), plan.pick(9, 45), &systems, |topology| {
            let (sender, receiver) = packet_cost::sockets(topology.path(way), PORTS[0])?;
            receiver.set_read_timeout(Some(QUIET))?;
            let rate = delivered(&sender, &receiver)
                .with_context(|| format!("{} through {}", way.name(), topology.system))?;
            let row = Row::new(way.name(), topology.system, "thousand packets per second");
            rows.push(row.higher(), rate / 1e3);
            Ok(())
        })?;
    }
    Ok(rows.0)
}

/// Returns the received packets per second.
fn delivered(sender: &UdpSocket, receiver: &UdpSocket) -> Result<f64> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let count = scope.spawn(|| on_cpu(0, || count(receiver, &stop)));
        let sent = on_cpu(pinned::last_cpu(), || Ok(flood(sender)));
        stop.store(true, Ordering::Relaxed);
        let count = count
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        ensure!(count > 0, "nothing arrives");
        Ok(f64::from(count) / sent?.as_secs_f64())
    })
}

fn flood(sender: &UdpSocket) -> Duration {
    let start = Instant::now();
    while start.elapsed() < SAMPLE {
        for _ in 0..64 {
            // A full queue is expected: the sender runs at full speed.
            let _ = sender.send(&packet_cost::PAYLOAD);
        }
    }
    start.elapsed()
}

/// Counts received packets until `stop` is set and the read times out.
fn count(receiver: &UdpSocket, stop: &AtomicBool) -> Result<u32> {
    let mut buffer = [0; 64];
    let mut count = 0;
    loop {
        match receiver.recv(&mut buffer) {
            Ok(_) => count += 1,
            Err(_) if stop.load(Ordering::Relaxed) => return Ok(count),
            Err(_) => {}
        }
    }
}
