//! Latency of TCP request and response, one byte in each direction.
//!
//! In the first variant, one thread is both client and server: the kernel delivers a segment to the
//! other socket within the system call that sends it, so the result is the cost of the path in both
//! directions. In the second variant, each end has a thread that the scheduler wakes, as in an
//! application, on one CPU. Most of its time is the switch between threads.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::goals::Goal;
use crate::pinned;
use crate::plan::Plan;
use crate::row::{Row, Rows, system};
use crate::statistics::quantile;
use crate::topology::{self, PORTS, Topology, Way};

/// Transactions of one sample.
const TURNS: usize = 3000;

/// Goals of the table of ratios in `docs/benchmarks.md`.
pub(crate) const GOALS: &[Goal] = &[
    Goal {
        subject: "pod → pod, p50",
        other: system::NFT,
        bound: 0.8,
    },
    Goal {
        subject: "world → hostport, p50",
        other: system::NFT,
        bound: 0.8,
    },
    Goal {
        subject: "pod → world, p50",
        other: system::NFT,
        bound: 0.8,
    },
];

struct Pair {
    system: &'static str,
    client: TcpStream,
    server: TcpStream,
}

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let systems = topology::all(plan.company)?;
    let mut rows = Rows::default();
    for way in Way::ALL {
        let pairs: Vec<_> = systems
            .iter()
            .map(|it| connect(it, way))
            .collect::<Result<_>>()?;
        plan.interleave(way.name(), plan.rounds(), &pairs, |pair| {
            let failed = || format!("{} through {}", way.name(), pair.system);
            let alone = pair.turns().with_context(failed)?;
            let woken = pair.turns_of_two().with_context(failed)?;
            for (turns, name, part) in [
                (&alone, "p50", 0.5),
                (&alone, "p99", 0.99),
                (&woken, "with a thread at each end, p50", 0.5),
                (&woken, "with a thread at each end, p99", 0.99),
            ] {
                let name = format!("{}, {name}", way.name());
                let row = Row::new(name, pair.system, "µs per transaction");
                rows.push(row, quantile(turns, part).unwrap_or(f64::NAN));
            }
            Ok(())
        })?;
    }
    Ok(rows.0)
}

fn connect(topology: &Topology, way: Way) -> Result<Pair> {
    let path = topology.path(way);
    let listener = path.to.run(|| TcpListener::bind(path.serves(PORTS[1])))?;
    let patience = Duration::from_secs(3);
    let client = path
        .from
        .run(|| TcpStream::connect_timeout(&path.target(PORTS[1]), patience))?;
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
    }
    Ok(Pair {
        system: topology.system,
        client,
        server,
    })
}

impl Pair {
    /// Returns the sorted latencies in microseconds, with one thread for both ends.
    fn turns(&self) -> Result<Vec<f64>> {
        pinned::run_realtime(pinned::last_cpu(), || {
            sorted(|| {
                send(&self.client)?;
                answer(&self.server)?;
                receive(&self.client)
            })
        })
    }

    /// Returns the sorted latencies in microseconds, with a thread at each end.
    fn turns_of_two(&self) -> Result<Vec<f64>> {
        let cpu = pinned::last_cpu();
        thread::scope(|scope| {
            let echo = scope.spawn(|| pinned::run_realtime(cpu, || answer_all(&self.server)));
            let requested = pinned::run_realtime(cpu, || {
                sorted(|| {
                    send(&self.client)?;
                    receive(&self.client)
                })
            });
            let answered = echo
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            answered.and(requested)
        })
    }
}

/// Executes `turn` [`TURNS`] times; returns the sorted durations in microseconds.
fn sorted(turn: impl Fn() -> std::io::Result<()>) -> Result<Vec<f64>> {
    let mut turns = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        let start = Instant::now();
        turn()?;
        turns.push(start.elapsed().as_secs_f64() * 1e6);
    }
    turns.sort_by(f64::total_cmp);
    Ok(turns)
}

fn send(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.write_all(&[0])
}

fn receive(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.read_exact(&mut [0])
}

fn answer(stream: &TcpStream) -> std::io::Result<()> {
    receive(stream)?;
    send(stream)
}

fn answer_all(stream: &TcpStream) -> Result<()> {
    for _ in 0..TURNS {
        match answer(stream) {
            // The read timed out because the client failed; its own error is reported.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            answered => answered?,
        }
    }
    Ok(())
}
