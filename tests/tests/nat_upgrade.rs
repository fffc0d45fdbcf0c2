//! Flows continue while the agent is restarted, replaced by another version, or handles other pods.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Connection, ConnectionLoad, ENDLESS, Echo, Mapping, NODE, Pod, Sandbox, Sends,
    Stream, WORLD, is_slow, program,
};
use serde_json::Value;

const HOSTPORTS: [Mapping; 3] = [
    Mapping::tcp(8080, 80),
    Mapping::udp(8080, 80),
    Mapping::tcp(5201, 5201),
];

/// A pod, and servers in it and in the world.
struct Scene {
    pod: Pod,
    _echoes: [Echo; 2],
}

impl Scene {
    fn new(sandbox: &Sandbox) -> Result<Self> {
        let mut pod = sandbox.pod("server")?;
        pod.add_with(Config::new("1.1.0").publish(&HOSTPORTS))?;
        let echoes = [
            Echo::start(&pod.machine, 80)?,
            Echo::start(&sandbox.world, 7000)?,
        ];
        Ok(Self {
            pod,
            _echoes: echoes,
        })
    }

    /// Starts several flows of each kind.
    fn load(&self, sandbox: &Sandbox) -> Result<ConnectionLoad> {
        let mut open = Vec::new();
        for (node, world) in NODE.into_iter().zip(WORLD) {
            for _ in 0..8 {
                let outward = SocketAddr::new(world, 7000);
                open.push(Connection::tcp(&self.pod.machine, outward)?);
                open.push(Connection::udp(&self.pod.machine, outward)?);
                let inward = SocketAddr::new(node, 8080);
                open.push(Connection::tcp(&sandbox.world, inward)?);
                open.push(Connection::udp(&sandbox.world, inward)?);
            }
        }
        Ok(ConnectionLoad::start(open))
    }

    /// Starts a transfer out of the pod and one into it, which run until they are stopped.
    fn transfers(&self, sandbox: &Sandbox) -> Result<[Stream; 2]> {
        let outward = Stream::start(
            (&self.pod.machine, SocketAddr::new(WORLD[1], 7001)),
            (&sandbox.world, 7001),
            Sends::Client,
            ENDLESS,
        )?;
        let inward = Stream::start(
            (&sandbox.world, SocketAddr::new(NODE[0], 5201)),
            (&self.pod.machine, 5201),
            Sends::Client,
            ENDLESS,
        )?;
        Ok([outward, inward])
    }
}

/// Repeats `work` under a load of small and large flows, none of which may break or stall.
fn under_load(
    sandbox: &Sandbox,
    scene: &Scene,
    rounds: usize,
    mut work: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let load = scene.load(sandbox)?;
    let transfers = scene.transfers(sandbox)?;
    for round in 0..rounds {
        work(round)?;
        load.await_round()
            .with_context(|| format!("after round {round}"))?;
        for transfer in &transfers {
            transfer
                .await_progress(1 << 20)
                .with_context(|| format!("after round {round}"))?;
        }
    }
    load.end()?;
    transfers.into_iter().try_for_each(Stream::stop)
}

#[test]
fn restarts_of_the_agent_break_no_flow() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let scene = Scene::new(&sandbox)?;
    under_load(&sandbox, &scene, 4, |round| {
        if round % 2 == 0 {
            agent.kill()?;
        } else {
            agent.terminate()?;
        }
        agent.restart()
    })
}

/// Returns the agent of `cargo xtask dist --next`: the same sources, built as another version.
fn next_agent() -> Result<PathBuf> {
    let path = program("../dist-next/bin/viaductd");
    ensure!(
        path.is_file(),
        "no {}: `cargo xtask dist --next` builds it",
        path.display()
    );
    Ok(path)
}

fn version(agent: &Agent) -> Result<Value> {
    Ok(agent.get("/v1/status")?["version"]["agent"].take())
}

#[test]
fn upgrades_and_downgrades_of_the_agent_break_no_flow() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let scene = Scene::new(&sandbox)?;
    let versions = [program("bin/viaductd"), next_agent()?];
    let first = version(&agent)?;
    under_load(&sandbox, &scene, 4, |round| {
        agent.terminate()?;
        agent.replace(&versions[(round + 1) % 2]);
        agent.restart()?;
        let is_first = version(&agent)? == first;
        ensure!(is_first == (round % 2 == 1), "round {round}");
        // The new agent knows the old agent's pod, and attaches pods of its own.
        scene.pod.check()?.success()?;
        let mut late = sandbox.pod(&format!("late-{round}"))?;
        late.add()?;
        late.del().map(drop)
    })
}

/// How many pods are attached at the same time.
const AT_A_TIME: usize = 4;
/// How many ADDs may time out on a slow machine while connecting to the agent (700 ms).
const MOST_RETRIES: usize = 10;

/// Returns the number of pods that are attached and deleted: where instructions are translated, a
/// thousand take half an hour.
fn churned_pods() -> usize {
    if is_slow() { 100 } else { 1_000 }
}

#[test]
fn a_thousand_pods_that_come_and_go_break_no_flow_of_others() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let scene = Scene::new(&sandbox)?;
    let (next, retries) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // The namespaces are reused; each ADD is for a new container ID.
    let churn = |worker: usize| -> Result<()> {
        let mut pod = sandbox.pod(&format!("churn-{worker}"))?;
        while next.fetch_add(1, Ordering::Relaxed) < churned_pods() {
            retries.fetch_add(pod.add()?.retries, Ordering::Relaxed);
            pod.del()?;
        }
        Ok(())
    };
    under_load(&sandbox, &scene, 1, |_| {
        thread::scope(|scope| {
            let workers = (0..AT_A_TIME)
                .map(|worker| {
                    scope.spawn({
                        let churn = &churn;
                        move || churn(worker)
                    })
                })
                .collect::<Vec<_>>();
            workers
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .into_iter()
                .try_for_each(|end| end.ok().context("a worker panicked")?)
        })
    })?;
    let retries = retries.into_inner();
    ensure!(retries <= MOST_RETRIES, "{retries} times");
    let listed = agent.get("/v1/attachments")?;
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
    Ok(())
}
