//! Request and response by TCP, one byte each way, client and server on one CPU: how long the one waits for the other.

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
            let turns = pair
                .turns()
                .with_context(|| format!("{} through {}", way.name(), pair.system))?;
            for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
                let row = Row::new(
                    format!("{}, {name}", way.name()),
                    pair.system,
                    "µs per turn",
                );
                rows.push(row, quantile(&turns, part).unwrap_or(f64::NAN));
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
    /// How long each turn took, in microseconds, sorted.
    fn turns(&self) -> Result<Vec<f64>> {
        let cpu = pinned::the_one();
        thread::scope(|scope| {
            let echo = scope.spawn(|| pinned::alone_on(cpu, || answer(&self.server)));
            let asked = pinned::alone_on(cpu, || ask(&self.client));
            let answered = echo
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            answered.and(asked)
        })
    }
}

fn ask(mut stream: &TcpStream) -> Result<Vec<f64>> {
    let mut byte = [0];
    let mut turns = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        let start = Instant::now();
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        turns.push(start.elapsed().as_secs_f64() * 1e6);
    }
    turns.sort_by(f64::total_cmp);
    Ok(turns)
}

fn answer(mut stream: &TcpStream) -> Result<()> {
    let mut byte = [0];
    for _ in 0..TURNS {
        match stream.read_exact(&mut byte) {
            // The client has failed, and says why.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            read => read?,
        }
        stream.write_all(&byte)?;
    }
    Ok(())
}
