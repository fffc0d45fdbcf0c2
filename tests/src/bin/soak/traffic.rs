//! Continuous traffic of pods that no event affects. No connection may break, and no datagram may
//! be lost.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::{
    Config, Connection, ENDLESS, Echo, Machine, Mapping, NODE, NumberedDatagrams, Pod, Sandbox,
    Sends, Stream, WORLD,
};
use serde_json::json;

/// Hostports of the bystander.
pub(crate) const PORTS: [Mapping; 2] = [Mapping::udp(5353, 53), Mapping::tcp(8080, 80)];

/// Rate of the bulk flow in bits per second: continuous traffic that leaves CPU time to the events.
const BULK: u64 = 50_000_000;
/// Interval in which flows are refreshed: shorter than the idle timeout of a flow without an
/// answer.
const REFRESH: Duration = Duration::from_secs(15);
/// Flows that are refreshed without a pause, to avoid a burst.
const AT_A_TIME: u16 = 256;
/// The first port of the world that flows use.
const FIRST_PORT: u16 = 10_000;

/// The traffic of the bystanders.
pub(crate) struct Traffic {
    /// The pod with [`PORTS`], connections, datagrams and many flows.
    pub(crate) bystander: Pod,
    /// The pod with the bulk flow, which is limited.
    pub(crate) bulk_sender: Pod,
    connections: Vec<Connection>,
    rounds: u64,
    stream: Stream,
    datagrams: [NumberedDatagrams; 2],
    flows: Flows,
    _echoes: [Echo; 2],
}

impl Traffic {
    pub(crate) fn start(sandbox: &Sandbox, flows: u16) -> Result<Self> {
        let world = &sandbox.world;
        let mut bystander = sandbox.pod("bystander")?;
        bystander.add_with(Config::new("1.1.0").publish(&PORTS))?;
        let inside = &bystander.machine;
        let echoes = [Echo::start(inside, 80)?, Echo::start(world, 7000)?];
        let mut connections = Vec::new();
        for (node, far) in NODE.into_iter().zip(WORLD) {
            connections.push(Connection::tcp(inside, SocketAddr::new(far, 7000))?);
            connections.push(Connection::udp(inside, SocketAddr::new(far, 7000))?);
            connections.push(Connection::tcp(world, SocketAddr::new(node, 8080))?);
        }
        let any = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
        let out = SocketAddr::new(WORLD[0], 7001);
        let inward = SocketAddr::new(NODE[0], 5353);
        let datagrams = [
            NumberedDatagrams::start("out", (inside, out), (world, any(7001)))?,
            NumberedDatagrams::start("in", (world, inward), (inside, any(53)))?,
        ];
        let (bulk_sender, stream) = start_bulk(sandbox)?;
        Ok(Self {
            flows: Flows::keep(inside, flows)?,
            bystander,
            bulk_sender,
            connections,
            rounds: 0,
            stream,
            datagrams,
            _echoes: echoes,
        })
    }

    /// Checks that all connections still work and all streams make progress.
    pub(crate) fn await_progress(&mut self) -> Result<()> {
        self.rounds += 1;
        self.connections.iter().try_for_each(Connection::exchange)?;
        self.stream.await_progress(1 << 16)?;
        self.datagrams
            .iter()
            .try_for_each(NumberedDatagrams::await_progress)?;
        self.bystander.check()?.success()?;
        self.bulk_sender.check()?.success()
    }

    /// Stops all traffic; returns a summary. A loss is an error.
    pub(crate) fn end(self) -> Result<String> {
        self.flows.end()?;
        self.stream.stop()?;
        let mut datagrams = 0;
        for drip in self.datagrams {
            datagrams += drip.end()?;
        }
        Ok(format!(
            "{datagrams} datagrams, {} rounds on all connections and a bulk stream without a loss",
            self.rounds
        ))
    }
}

fn start_bulk(sandbox: &Sandbox) -> Result<(Pod, Stream)> {
    let mut bulk_sender = sandbox.pod("bulk_sender")?;
    let limit = json!({ "bandwidth": { "egressRate": BULK, "egressBurst": BULK } });
    bulk_sender.add_with(Config::new("1.1.0").with("runtimeConfig", limit))?;
    let stream = Stream::start(
        (&bulk_sender.machine, SocketAddr::new(WORLD[1], 7002)),
        (&sandbox.world, 7002),
        Sends::Client,
        ENDLESS,
    )?;
    Ok((bulk_sender, stream))
}

/// Flows of a machine that are refreshed periodically.
struct Flows {
    /// The thread exits when this end of the channel is closed.
    stop: Sender<()>,
    keeper: JoinHandle<Result<()>>,
}

impl Flows {
    /// Keeps `count` flows open, each to another port of the world.
    fn keep(machine: &Machine, count: u16) -> Result<Self> {
        let socket = machine.run(|| UdpSocket::bind("0.0.0.0:0"))?;
        let (stop, stopped) = mpsc::channel();
        let keeper = thread::spawn(move || {
            let wait = |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
            while wait(REFRESH) {
                for number in 0..count {
                    let to = SocketAddr::new(WORLD[0], FIRST_PORT + number);
                    // The ICMP errors of the world's closed ports are ignored.
                    let _refused = socket.send_to(b"x", to);
                    if number % AT_A_TIME == 0 && !wait(Duration::from_millis(1)) {
                        return Ok(());
                    }
                }
            }
            Ok(())
        });
        Ok(Self { stop, keeper })
    }

    fn end(self) -> Result<()> {
        drop(self.stop);
        self.keeper.join().ok().context("the keeper panicked")?
    }
}
