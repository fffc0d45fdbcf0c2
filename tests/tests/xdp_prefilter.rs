//! The XDP prefilter on uplinks (`--xdp-guard`): drops malformed and spoofed frames, passes all
//! others.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Capture, Config, Connection, Echo, Mapping, NODE, Pod, Sandbox, WORLD,
    udp_gets_no_answer, udp_source, until,
};
use serde_json::Value;

const PORT: u16 = 7000;
const HOSTPORT: u16 = 8080;

/// Driver mode, as `ip link` prints it.
const NATIVE: u64 = 1;

/// A node with an XDP prefilter, and a pod with a hostport.
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

    /// Opens connections of both protocols and families, from the pod and to its hostport.
    fn connections(&self) -> Result<Vec<Connection>> {
        let mut all = Vec::new();
        for family in [0, 1] {
            let outside = SocketAddr::new(WORLD[family], PORT);
            let hostport = SocketAddr::new(NODE[family], HOSTPORT);
            for (from, to) in [
                (&self.pod.machine, outside),
                (&self.sandbox.world, hostport),
            ] {
                all.push(Connection::tcp(from, to)?);
                all.push(Connection::udp(from, to)?);
            }
        }
        Ok(all)
    }

    fn prefilter(&self) -> Result<Option<Value>> {
        prefilter(&self.sandbox)
    }

    fn drops(&self, reason: &str) -> Result<u64> {
        let counters = self.agent.get("/v1/counters")?;
        Ok(counters["drops"][reason].as_u64().unwrap_or(0))
    }

    /// Gives the world the MAC address of the node's bridge, and returns its previous one.
    fn impersonate(&self) -> Result<String> {
        let own = mac(&self.sandbox.world.call_json("ip -j link show eth0")?)?;
        let bridge = mac(&self.sandbox.node.call_json("ip -j link show cbr0")?)?;
        self.set_world_mac(&bridge)?;
        Ok(own)
    }

    fn set_world_mac(&self, mac: &str) -> Result<()> {
        let (world, node) = (&self.sandbox.world, &self.sandbox.node);
        world.call(&format!("ip link set eth0 address {mac}"))?;
        // Replies of the node must go to the new address.
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

/// Returns the XDP program of the uplink, as `ip link` prints it.
fn prefilter(sandbox: &Sandbox) -> Result<Option<Value>> {
    let shown = sandbox.node.call_json("ip -j -d link show up0")?;
    Ok(shown[0].get("xdp").cloned())
}

#[test]
fn the_xdp_prefilter_drops_spoofed_sources_before_the_stack() -> Result<()> {
    let scene = Scene::new()?;
    let attached = scene
        .prefilter()?
        .context("the uplink has no XDP program")?;
    ensure!(attached["mode"] == NATIVE, "{attached}");
    let uplinks = scene.agent.get("/v1/status")?["uplinks"].clone();
    ensure!(uplinks[0]["guard"] == true, "{uplinks}");
    let all = scene.connections()?;

    let (world, node) = (&scene.sandbox.world, &scene.sandbox.node);
    let stolen = scene.pod.addresses[0];
    world.call(&format!("ip address add {stolen}/32 dev lo"))?;
    let capture = Capture::start(node)?;
    let before = scene.drops("spoofed-from-outside")?;
    let socket = world.run(|| std::net::UdpSocket::bind((stolen, 0)))?;
    for _ in 0..10 {
        socket.send_to(b"stolen", (NODE[0], 9))?;
    }
    // A packet with its own source address follows.
    let (_, honest) = udp_source(world, 0, SocketAddr::new(NODE[0], HOSTPORT))?;
    honest.send(b"honest")?;
    let seen = capture.until("the honest packet", |packet| packet.ends_with(b"honest"))?;
    let spoofed = seen.iter().filter(|packet| packet.ends_with(b"stolen"));
    ensure!(spoofed.count() == 0, "spoofed packets reached the stack");
    ensure!(scene.drops("spoofed-from-outside")? == before + 10);
    all.iter().try_for_each(Connection::exchange)
}

#[test]
fn the_xdp_prefilter_drops_outside_frames_with_the_bridges_mac_address() -> Result<()> {
    let scene = Scene::new()?;
    let all = scene.connections()?;
    let hostport = SocketAddr::new(NODE[0], HOSTPORT);
    let (_, socket) = udp_source(&scene.sandbox.world, 0, hostport)?;
    let before = scene.drops("spoofed-from-outside")?;
    let own = scene.impersonate()?;
    ensure!(
        udp_gets_no_answer(&socket)?,
        "the node answered a frame from the bridge's MAC address"
    );
    ensure!(scene.drops("spoofed-from-outside")? > before);
    scene.set_world_mac(&own)?;
    all.iter().try_for_each(Connection::exchange)
}

#[test]
fn an_xdp_prefilter_outlives_its_agent_and_is_replaced_by_the_next_one() -> Result<()> {
    let mut scene = Scene::new()?;
    let all = scene.connections()?;
    let first = scene
        .prefilter()?
        .context("the uplink has no XDP program")?;
    scene.agent.kill()?;
    ensure!(scene.prefilter()? == Some(first.clone()));
    let hostport = SocketAddr::new(NODE[0], HOSTPORT);
    let (_, socket) = udp_source(&scene.sandbox.world, 0, hostport)?;
    let own = scene.impersonate()?;
    ensure!(
        udp_gets_no_answer(&socket)?,
        "the prefilter is not effective without an agent"
    );
    scene.set_world_mac(&own)?;
    scene.agent.restart()?;
    let second = scene
        .prefilter()?
        .context("the uplink has no XDP program")?;
    ensure!(second["prog"]["id"] != first["prog"]["id"], "{second}");
    all.iter().try_for_each(Connection::exchange)
}

#[test]
fn the_xdp_prefilter_is_detached_when_off_and_by_uninstall() -> Result<()> {
    let mut scene = Scene::new()?;
    ensure!(scene.prefilter()?.is_some());
    scene.agent.terminate()?;
    let agent = Agent::start(&scene.sandbox.node, &[])?;
    ensure!(
        scene.prefilter()?.is_none(),
        "the prefilter is still attached"
    );
    drop(agent);

    let scene = Scene::new()?;
    scene.pod.del()?;
    scene.agent.ctl("uninstall")?;
    until("the prefilter is detached", || {
        Ok(scene.prefilter()?.is_none().then_some(()))
    })
}

/// The ifb driver does not support native XDP.
#[test]
fn an_uplink_without_native_xdp_is_reported_and_pods_still_attach() -> Result<()> {
    let sandbox = Sandbox::new()?;
    sandbox.node.call("ip link add plain0 type ifb")?;
    sandbox.node.call("ip link set plain0 up")?;
    sandbox
        .node
        .call("ip address add 198.51.100.1/24 dev plain0")?;
    let agent = Agent::start(&sandbox.node, &["--xdp-guard", "native"])?;
    let status = agent.get("/v1/status")?;
    let degraded = status["degraded"].to_string();
    ensure!(
        degraded.contains("attach the XDP prefilter to plain0"),
        "{degraded}"
    );
    ensure!(
        prefilter(&sandbox)?.is_some(),
        "the other uplink has no prefilter"
    );
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let _echo = Echo::start(&sandbox.world, PORT)?;
    let outside = SocketAddr::new(WORLD[0], PORT);
    Connection::tcp(&pod.machine, outside)?.exchange()
}
