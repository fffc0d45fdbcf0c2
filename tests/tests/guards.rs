//! Guards in front of uplinks (`--xdp-guard`): what can never be right goes no further, and nothing else is in their way.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Capture, Config, Conversation, Echo, Mapping, NODE, Pod, Sandbox, WORLD, udp_is_silent,
    udp_source, until,
};
use serde_json::Value;

const PORT: u16 = 7000;
const HOSTPORT: u16 = 8080;

/// The driver's mode, as `ip link` tells it.
const NATIVE: u64 = 1;

/// A node with a guard, and a pod behind a port of the node.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    pod: Pod,
    _servers: [Echo; 2],
}

impl Scene {
    fn new() -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = Agent::start(&sandbox.node, &["--xdp-guard", "native"])?;
        let mut pod = sandbox.pod("server")?;
        pod.add_with(Config::new("1.1.0").publish(&Mapping::both(HOSTPORT, PORT)))?;
        let servers = [
            Echo::start(&pod.machine, PORT)?,
            Echo::start(&sandbox.world, PORT)?,
        ];
        Ok(Self {
            sandbox,
            agent,
            pod,
            _servers: servers,
        })
    }

    /// Conversations by all protocols and families, from the pod and to it.
    fn conversations(&self) -> Result<Vec<Conversation>> {
        let mut all = Vec::new();
        for family in [0, 1] {
            let outside = SocketAddr::new(WORLD[family], PORT);
            let hostport = SocketAddr::new(NODE[family], HOSTPORT);
            for (from, to) in [
                (&self.pod.machine, outside),
                (&self.sandbox.world, hostport),
            ] {
                all.push(Conversation::tcp(from, to)?);
                all.push(Conversation::udp(from, to)?);
            }
        }
        Ok(all)
    }

    fn guard(&self) -> Result<Option<Value>> {
        guard(&self.sandbox)
    }

    fn drops(&self, reason: &str) -> Result<u64> {
        let counters = self.agent.get("/v1/counters")?;
        Ok(counters["drops"][reason].as_u64().unwrap_or(0))
    }

    /// Gives the world the Ethernet address of the node's bridge, and returns what it had.
    fn impersonate(&self) -> Result<String> {
        let own = mac(&self.sandbox.world.call_json("ip -j link show eth0")?)?;
        let bridge = mac(&self.sandbox.node.call_json("ip -j link show cbr0")?)?;
        self.become_again(&bridge)?;
        Ok(own)
    }

    fn become_again(&self, mac: &str) -> Result<()> {
        let (world, node) = (&self.sandbox.world, &self.sandbox.node);
        world.call(&format!("ip link set eth0 address {mac}"))?;
        // Whoever answers has to know it by its new address.
        for address in WORLD {
            node.call(&format!(
                "ip neighbour replace {address} lladdr {mac} dev up0"
            ))?;
        }
        Ok(())
    }
}

fn mac(shown: &Value) -> Result<String> {
    let mac = shown[0]["address"].as_str();
    Ok(mac.context("a link has an address")?.to_owned())
}

/// The XDP program of the uplink, as `ip link` tells.
fn guard(sandbox: &Sandbox) -> Result<Option<Value>> {
    let shown = sandbox.node.call_json("ip -j -d link show up0")?;
    Ok(shown[0].get("xdp").cloned())
}

#[test]
fn what_can_never_be_right_is_dropped_in_front_of_the_kernel() -> Result<()> {
    let scene = Scene::new()?;
    let posted = scene.guard()?.context("there is no guard")?;
    ensure!(posted["mode"] == NATIVE, "{posted}");
    let uplinks = scene.agent.get("/v1/status")?["uplinks"].clone();
    ensure!(uplinks[0]["guard"] == true, "{uplinks}");
    let all = scene.conversations()?;

    let (world, node) = (&scene.sandbox.world, &scene.sandbox.node);
    let stolen = scene.pod.addresses[0];
    world.call(&format!("ip address add {stolen}/32 dev lo"))?;
    let capture = Capture::start(node)?;
    let before = scene.drops("spoofed-from-outside")?;
    let socket = world.run(|| std::net::UdpSocket::bind((stolen, 0)))?;
    for _ in 0..10 {
        socket.send_to(b"stolen", (NODE[0], 9))?;
    }
    // What comes behind them is honest.
    let (_, honest) = udp_source(world, 0, SocketAddr::new(NODE[0], HOSTPORT))?;
    honest.send(b"honest")?;
    let seen = capture.until("the honest one", |packet| packet.ends_with(b"honest"))?;
    let thieves = seen.iter().filter(|packet| packet.ends_with(b"stolen"));
    ensure!(thieves.count() == 0, "the kernel has seen them");
    ensure!(scene.drops("spoofed-from-outside")? == before + 10);
    all.iter().try_for_each(Conversation::go_on)
}

#[test]
fn nobody_outside_is_taken_for_the_bridge() -> Result<()> {
    let scene = Scene::new()?;
    let all = scene.conversations()?;
    let hostport = SocketAddr::new(NODE[0], HOSTPORT);
    let (_, socket) = udp_source(&scene.sandbox.world, 0, hostport)?;
    let before = scene.drops("spoofed-from-outside")?;
    let own = scene.impersonate()?;
    ensure!(udp_is_silent(&socket)?, "somebody has answered");
    ensure!(scene.drops("spoofed-from-outside")? > before);
    scene.become_again(&own)?;
    all.iter().try_for_each(Conversation::go_on)
}

#[test]
fn a_guard_outlives_its_agent_and_is_relieved_by_the_next_one() -> Result<()> {
    let mut scene = Scene::new()?;
    let all = scene.conversations()?;
    let first = scene.guard()?.context("there is no guard")?;
    scene.agent.kill()?;
    ensure!(scene.guard()? == Some(first.clone()));
    let hostport = SocketAddr::new(NODE[0], HOSTPORT);
    let (_, socket) = udp_source(&scene.sandbox.world, 0, hostport)?;
    let own = scene.impersonate()?;
    ensure!(udp_is_silent(&socket)?, "nobody was on guard");
    scene.become_again(&own)?;
    scene.agent.restart()?;
    let second = scene.guard()?.context("there is no guard")?;
    ensure!(second["prog"]["id"] != first["prog"]["id"], "{second}");
    all.iter().try_for_each(Conversation::go_on)
}

#[test]
fn whoever_asks_for_no_guard_has_none() -> Result<()> {
    let mut scene = Scene::new()?;
    ensure!(scene.guard()?.is_some());
    scene.agent.terminate()?;
    let agent = Agent::start(&scene.sandbox.node, &[])?;
    ensure!(scene.guard()?.is_none(), "it stands there still");
    drop(agent);

    let scene = Scene::new()?;
    scene.pod.del()?;
    scene.agent.ctl("uninstall")?;
    until("the guard is gone", || {
        Ok(scene.guard()?.is_none().then_some(()))
    })
}

/// An ifb's driver knows nothing of XDP.
#[test]
fn a_link_whose_driver_takes_no_guard_is_told_and_pods_come_all_the_same() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.node.call("ip link add plain0 type ifb")?;
    sandbox.node.call("ip link set plain0 up")?;
    sandbox
        .node
        .call("ip address add 198.51.100.1/24 dev plain0")?;
    let agent = Agent::start(&sandbox.node, &["--xdp-guard", "native"])?;
    let status = agent.get("/v1/status")?;
    let degraded = status["degraded"].to_string();
    ensure!(degraded.contains("attach the XDP prefilter to plain0"), "{degraded}");
    ensure!(guard(&sandbox)?.is_some(), "others have one");
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let _echo = Echo::start(&sandbox.world, PORT)?;
    let outside = SocketAddr::new(WORLD[0], PORT);
    Conversation::tcp(&pod.machine, outside)?.go_on()
}
