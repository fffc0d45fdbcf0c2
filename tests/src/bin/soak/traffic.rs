//! What goes on all the time beside the random life: traffic of pods that nobody touches, of which nothing may be lost.

use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::{
    Config, Conversation, Drip, ENDLESS, Echo, Machine, Mapping, NODE, Pod, Sandbox, Sends, Stream,
    WORLD,
};
use serde_json::json;

/// What the bystander publishes.
pub(crate) const PORTS: [Mapping; 2] = [Mapping::udp(5353, 53), Mapping::tcp(8080, 80)];

/// Bits per second of the bulk flow: enough to be always there, little enough to leave the CPUs to everything else.
const BULK: u64 = 50_000_000;
/// Before a flow that hears no answer is forgotten.
const REFRESH: Duration = Duration::from_secs(15);
/// Flows that are refreshed at a time, so that they are no burst.
const AT_A_TIME: u16 = 256;
/// Ports of the world that flows lead to.
const FIRST_PORT: u16 = 10_000;

/// The traffic of the bystanders.
pub(crate) struct Traffic {
    /// Publishes [`PORTS`]; talks, and keeps flows open.
    pub(crate) bystander: Pod,
    /// Sends as much as its limit lets it.
    pub(crate) hauler: Pod,
    talks: Vec<Conversation>,
    rounds: u64,
    stream: Stream,
    drips: [Drip; 2],
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
        let mut talks = Vec::new();
        for (node, far) in NODE.into_iter().zip(WORLD) {
            talks.push(Conversation::tcp(inside, SocketAddr::new(far, 7000))?);
            talks.push(Conversation::udp(inside, SocketAddr::new(far, 7000))?);
            talks.push(Conversation::tcp(world, SocketAddr::new(node, 8080))?);
        }
        let any = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
        let out = SocketAddr::new(WORLD[0], 7001);
        let inward = SocketAddr::new(NODE[0], 5353);
        let drips = [
            Drip::start("out", (inside, out), (world, any(7001)))?,
            Drip::start("in", (world, inward), (inside, any(53)))?,
        ];
        let (hauler, stream) = haul(sandbox)?;
        Ok(Self {
            flows: Flows::keep(inside, flows)?,
            bystander,
            hauler,
            talks,
            rounds: 0,
            stream,
            drips,
            _echoes: echoes,
        })
    }

    /// Every connection of the beginning is still there, and everything goes on.
    pub(crate) fn goes_on(&mut self) -> Result<()> {
        self.rounds += 1;
        self.talks.iter().try_for_each(Conversation::go_on)?;
        self.stream.goes_on(1 << 16)?;
        self.drips.iter().try_for_each(Drip::goes_on)?;
        self.bystander.check()?.success()?;
        self.hauler.check()?.success()
    }

    /// How much has passed without a loss.
    pub(crate) fn end(self) -> Result<String> {
        self.flows.end()?;
        self.stream.stop()?;
        let mut datagrams = 0;
        for drip in self.drips {
            datagrams += drip.end()?;
        }
        Ok(format!(
            "{datagrams} datagrams, {} rounds of talk and a stream without a loss",
            self.rounds
        ))
    }
}

fn haul(sandbox: &Sandbox) -> Result<(Pod, Stream)> {
    let mut hauler = sandbox.pod("hauler")?;
    let limit = json!({ "bandwidth": { "egressRate": BULK, "egressBurst": BULK } });
    hauler.add_with(Config::new("1.1.0").with("runtimeConfig", limit))?;
    let stream = Stream::start(
        (&hauler.machine, SocketAddr::new(WORLD[1], 7002)),
        (&sandbox.world, 7002),
        Sends::Client,
        ENDLESS,
    )?;
    Ok((hauler, stream))
}

/// Flows of a machine that are kept open.
struct Flows {
    /// They end when this is gone.
    stop: Sender<()>,
    keeper: JoinHandle<Result<()>>,
}

impl Flows {
    /// As many flows as `count` says, each to a port of its own.
    fn keep(machine: &Machine, count: u16) -> Result<Self> {
        let socket = machine.run(|| UdpSocket::bind("0.0.0.0:0"))?;
        let (stop, stopped) = mpsc::channel();
        let keeper = thread::spawn(move || {
            let wait = |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
            while wait(REFRESH) {
                for number in 0..count {
                    let to = SocketAddr::new(WORLD[0], FIRST_PORT + number);
                    // The world refuses them, and says so; that is no matter here.
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
