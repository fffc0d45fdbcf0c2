//! Request and response by TCP, one byte each way: how long the one waits for the other.
//!
//! One thread asks and answers: the kernel carries a segment up to the other socket within the system call that sends it, so
//! what is measured is the way there and back. Once more with a thread at each end, which the scheduler wakes: what an
//! application waits for, on one CPU. Most of that is switching between threads, which no network can save.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::pinned;
use crate::plan::Plan;
use crate::promise::Promise;
use crate::row::{Row, Rows, system};
use crate::statistics::quantile;
use crate::topology::{self, PORTS, Topology, Way};

/// Turns of one sample.
const TURNS: usize = 3000;

/// As the table of ratios in `docs/benchmarks.md`.
pub(crate) const PROMISES: &[Promise] = &[
    Promise {
        subject: "pod → pod, p50",
        other: system::NFT,
        bound: 0.8,
    },
    Promise {
        subject: "world → hostport, p50",
        other: system::NFT,
        bound: 0.8,
    },
    Promise {
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
    let systems = topology::all()?;
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
        .run(|| TcpStream::connect_timeout(&path.dials(PORTS[1]), patience))?;
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
    /// How long each turn took where one thread is both ends, in microseconds, sorted.
    fn turns(&self) -> Result<Vec<f64>> {
        pinned::alone_on(pinned::the_one(), || {
            sorted(|| {
                ask(&self.client)?;
                answer(&self.server)?;
                hear(&self.client)
            })
        })
    }

    /// As [`Pair::turns`], with a thread at each end.
    fn turns_of_two(&self) -> Result<Vec<f64>> {
        let cpu = pinned::the_one();
        thread::scope(|scope| {
            let echo = scope.spawn(|| pinned::alone_on(cpu, || answer_all(&self.server)));
            let asked = pinned::alone_on(cpu, || {
                sorted(|| {
                    ask(&self.client)?;
                    hear(&self.client)
                })
            });
            let answered = echo
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            answered.and(asked)
        })
    }
}

/// How long each of [`TURNS`] took, in microseconds.
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

fn ask(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.write_all(&[0])
}

fn hear(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.read_exact(&mut [0])
}

fn answer(stream: &TcpStream) -> std::io::Result<()> {
    hear(stream)?;
    ask(stream)
}

fn answer_all(stream: &TcpStream) -> Result<()> {
    for _ in 0..TURNS {
        match answer(stream) {
            // The client has failed, and says why.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            answered => answered?,
        }
    }
    Ok(())
}
