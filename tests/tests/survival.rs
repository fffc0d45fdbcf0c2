//! Restarts, upgrades and deaths of the agent, many of them, under everything that a node does.

#[path = "survival/layout.rs"]
mod layout;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::residue::assert_no_residue;
use e2e::{
    Config, Connection, ConnectionLoad, ENDLESS, Echo, Machine, Mapping, NODE, NumberedDatagrams,
    Pod, Residue, Sandbox, Sends, Stream, WORLD, program, tcp_echo, tcp_source,
};

const RESTARTS: usize = 50;
const UPGRADES: usize = 10;

const HOSTPORTS: [Mapping; 3] = [
    Mapping::tcp(8080, 80),
    Mapping::udp(8080, 80),
    Mapping::udp(5353, 53),
];

/// Between two of them. A closed connection is remembered for two minutes, and a pod may have
/// 16,384 flows.
const PACE: Duration = Duration::from_millis(40);

/// Short connections, one after the other, none of which may fail.
struct Knocks {
    /// They end when this is gone.
    stop: Sender<()>,
    knocker: JoinHandle<Result<u64>>,
}

impl Knocks {
    fn start(client: &Machine, server: SocketAddr) -> Self {
        let (stop, stopped) = mpsc::channel();
        let client = client.clone();
        let knocker = thread::spawn(move || {
            let mut count = 0;
            while stopped.recv_timeout(PACE) == Err(RecvTimeoutError::Timeout) {
                let knock = || tcp_echo(&tcp_source(&client, 0, server)?.1);
                knock().with_context(|| format!("new connection {count} to {server}"))?;
                count += 1;
            }
            Ok(count)
        });
        Self { stop, knocker }
    }

    fn end(self) -> Result<u64> {
        drop(self.stop);
        self.knocker.join().ok().context("the knocker panicked")?
    }
}

/// Everything that goes through a node at once.
struct Traffic {
    load: ConnectionLoad,
    streams: [Stream; 2],
    drips: [NumberedDatagrams; 2],
    knocks: [Knocks; 2],
    _echoes: [Echo; 2],
}

impl Traffic {
    fn start(sandbox: &Sandbox, pod: &Pod) -> Result<Self> {
        let (inside, world) = (&pod.machine, &sandbox.world);
        let echoes = [Echo::start(inside, 80)?, Echo::start(world, 7000)?];
        let mut open = Vec::new();
        for (node, far) in NODE.into_iter().zip(WORLD) {
            open.push(Connection::tcp(inside, SocketAddr::new(far, 7000))?);
            open.push(Connection::udp(inside, SocketAddr::new(far, 7000))?);
            open.push(Connection::tcp(world, SocketAddr::new(node, 8080))?);
            open.push(Connection::udp(world, SocketAddr::new(node, 8080))?);
        }
        let any = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
        let bulk = |port| {
            Stream::start(
                (inside, SocketAddr::new(WORLD[usize::from(port % 2)], port)),
                (world, port),
                Sends::Client,
                ENDLESS,
            )
        };
        Ok(Self {
            load: ConnectionLoad::start(open),
            streams: [bulk(7010)?, bulk(7011)?],
            drips: [
                NumberedDatagrams::start(
                    "out",
                    (inside, SocketAddr::new(WORLD[0], 7001)),
                    (world, any(7001)),
                )?,
                NumberedDatagrams::start(
                    "in",
                    (world, SocketAddr::new(NODE[0], 5353)),
                    (inside, any(53)),
                )?,
            ],
            knocks: [
                Knocks::start(world, SocketAddr::new(NODE[0], 8080)),
                Knocks::start(inside, SocketAddr::new(WORLD[1], 7000)),
            ],
            _echoes: echoes,
        })
    }

    fn await_progress(&self) -> Result<()> {
        self.load.await_round()?;
        self.streams
            .iter()
            .try_for_each(|stream| stream.await_progress(1 << 18))?;
        self.drips
            .iter()
            .try_for_each(NumberedDatagrams::await_progress)
    }

    /// What has passed without a loss.
    fn end(self) -> Result<String> {
        self.load.end()?;
        self.streams.into_iter().try_for_each(Stream::stop)?;
        let mut datagrams = 0;
        for drip in self.drips {
            datagrams += drip.end()?;
        }
        let mut connections = 0;
        for knocks in self.knocks {
            connections += knocks.end()?;
        }
        Ok(format!(
            "{datagrams} datagrams, {connections} new connections"
        ))
    }
}

#[test]
fn fifty_restarts_and_ten_upgrades_lose_no_datagram_and_reset_no_connection() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("server")?;
    pod.add_with(Config::new("1.1.0").publish(&HOSTPORTS))?;
    let traffic = Traffic::start(&sandbox, &pod)?;
    let versions = [
        program("bin/viaductd"),
        program("../dist-next/bin/viaductd"),
    ];
    let every = (RESTARTS + UPGRADES) / UPGRADES;
    for round in 0..RESTARTS + UPGRADES {
        if round % 2 == 0 {
            agent.kill()?;
        } else {
            agent.terminate()?;
        }
        let before = programs_of(&sandbox, &pod)?;
        let upgrade = round % every == 0;
        if upgrade {
            agent.replace(&versions[(round / every + 1) % 2]);
        }
        agent.restart()?;
        let after = programs_of(&sandbox, &pod)?;
        ensure!((before != after) == upgrade, "{before}, and then {after}");
        traffic
            .await_progress()
            .with_context(|| format!("round {round}"))?;
    }
    pod.check()?.success()?;
    let passed = traffic.end()?;
    eprintln!("{RESTARTS} restarts, {UPGRADES} upgrades: {passed}");
    Ok(())
}

/// The programs that a pod's packets meet on the node, by their numbers.
fn programs_of(sandbox: &Sandbox, pod: &Pod) -> Result<String> {
    let link = pod.host_link();
    let of = |side| {
        sandbox
            .node
            .call(&format!("tc filter show dev {link} {side}"))
    };
    Ok(format!("{}{}", of("ingress")?, of("egress")?))
}

/// Between two deaths of the agent.
const LIFE: Duration = Duration::from_millis(300);
/// How often it dies at most.
const DEATHS: u32 = 12;
/// Pods that are made at the same time.
const PODS: usize = 100;

/// As a runtime does: again and again for as long as the agent dies, and once more behind that.
fn add_at_last(pod: &mut Pod, dies: &AtomicBool) -> bool {
    loop {
        let is_last = !dies.load(Ordering::Relaxed);
        if pod.add().is_ok() {
            return true;
        }
        if is_last {
            return false;
        }
        thread::park_timeout(Duration::from_millis(50));
    }
}

/// behaviours A4, C10.
#[test]
fn of_a_hundred_adds_while_the_agent_dies_every_300_ms_the_successful_work_and_the_failed_leave_nothing()
-> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let before = Residue::of(&sandbox.node, &[])?;
    let mut pods = (0..PODS)
        .map(|number| sandbox.pod(&format!("pod-{number}")))
        .collect::<Result<Vec<_>>>()?;
    let open = AtomicU64::new(PODS as u64);
    let dies = AtomicBool::new(true);
    let (answers, deaths) = thread::scope(|scope| -> Result<(Vec<bool>, u32)> {
        let adds = pods.iter_mut().map(|pod| {
            let (open, dies) = (&open, &dies);
            scope.spawn(move || {
                let added = add_at_last(pod, dies);
                open.fetch_sub(1, Ordering::Relaxed);
                added
            })
        });
        let adds = adds.collect::<Vec<_>>();
        let mut deaths = 0;
        while open.load(Ordering::Relaxed) > 0 && deaths < DEATHS {
            let until = Instant::now() + LIFE;
            while open.load(Ordering::Relaxed) > 0 && Instant::now() < until {
                thread::park_timeout(Duration::from_millis(5));
            }
            agent.kill()?;
            agent.restart()?;
            deaths += 1;
        }
        dies.store(false, Ordering::Relaxed);
        let ends = adds
            .into_iter()
            .map(|add| add.join().ok().context("an ADD panicked"));
        Ok((ends.collect::<Result<_>>()?, deaths))
    })?;
    let good = answers.iter().filter(|good| **good).count();
    eprintln!("{good} of {PODS} ADDs succeeded, the agent died {deaths} times");
    ensure!(good > 0, "no ADD succeeded");

    let echo = Echo::start(&sandbox.world, 7000)?;
    let mut addresses = BTreeSet::new();
    for (pod, _) in pods.iter().zip(&answers).filter(|(_, good)| **good) {
        pod.check()?
            .success()
            .with_context(|| format!("CHECK of {}", pod.id()))?;
        Connection::tcp(&pod.machine, SocketAddr::new(WORLD[0], 7000))?.exchange()?;
        ensure!(
            addresses.insert(pod.addresses.clone()),
            "{:?} twice",
            pod.addresses
        );
    }
    drop(echo);
    // An ADD that was made and whose answer was lost is the runtime's to remove; it does so after
    // each failure.
    for pod in &pods {
        pod.del()?;
    }
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[])?)
}

/// An agent of another ABI version has other directories for its pins, and nothing else is
/// different here.
#[test]
fn pins_of_an_older_version_are_taken_over_without_a_loss_and_those_of_a_newer_one_are_refused()
-> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("server")?;
    pod.add_with(Config::new("1.1.0").publish(&HOSTPORTS))?;
    let traffic = Traffic::start(&sandbox, &pod)?;
    let before = Residue::of(&sandbox.node, &[])?;
    let node = &sandbox.node;
    let found = node.call("find /sys/fs/bpf -mindepth 1 -name v[0-9]*")?;
    let version = found.trim();
    let (bpffs, number) = version.rsplit_once('v').context("a version's directory")?;
    let next = format!("{bpffs}v{}", number.parse::<u32>()? + 1);
    agent.terminate()?;
    node.call(&format!("mv {version} {bpffs}v0"))?;
    agent.restart()?;
    traffic
        .await_progress()
        .context("behind an older version")?;
    assert_no_residue(&before, &Residue::of(node, &[])?)?;
    pod.check()?.success()?;

    agent.terminate()?;
    node.call(&format!("mv {version} {next}"))?;
    let refusal = format!("{:#}", agent.restart().err().context("it started")?);
    ensure!(refusal.contains("by a newer agent"), "{refusal}");
    traffic.await_progress().context("beside a newer version")?;
    node.call(&format!("mv {next} {version}"))?;
    agent.restart()?;
    traffic.await_progress()?;
    traffic.end().map(drop)
}
