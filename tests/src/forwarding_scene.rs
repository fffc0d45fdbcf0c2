//! A node whose packet filter drops forwarded packets by default, with pods that serve and dial.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    Agent, Config, Echo, GATEWAYS, Machine, Mapping, NODE, Pod, Sandbox, WORLD,
    set_bridge_netfilter, tcp_source, until,
};

/// A port of the pod that is not published.
const UNPUBLISHED: u16 = 81;

/// The node, its agent, a pod that publishes ports, and one that dials.
pub struct ForwardingScene {
    /// The node and the world.
    pub sandbox: Sandbox,
    /// The agent, with its default flags and those of the test.
    pub agent: Agent,
    /// Publishes 8080, and listens on 80 and 81.
    pub server: Pod,
    /// Dials the others.
    pub client: Pod,
    _echoes: Vec<Echo>,
}

impl ForwardingScene {
    /// Starts an agent with `flags`, and attaches both pods. `before` runs on the node first.
    pub fn new(flags: &[&str], before: impl FnOnce(&Machine) -> Result<()>) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        set_bridge_netfilter(&sandbox.node, true)?;
        before(&sandbox.node)?;
        let agent = Agent::start(&sandbox.node, flags)?;
        let mut server = sandbox.pod("server")?;
        server.add_with(Config::new("1.1.0").publish(&Mapping::both(8080, 80)))?;
        let mut client = sandbox.pod("client")?;
        client.add()?;
        let echoes = vec![
            Echo::start(&server.machine, 80)?,
            Echo::start(&server.machine, UNPUBLISHED)?,
            Echo::start(&sandbox.world, 7000)?,
        ];
        // The world can address pods.
        for (cidr, node) in crate::POD_CIDRS.into_iter().zip(NODE) {
            sandbox
                .world
                .call(&format!("ip route add {cidr} via {node}"))?;
        }
        Ok(Self {
            sandbox,
            agent,
            server,
            client,
            _echoes: echoes,
        })
    }

    /// Dials pod to pod, pod to world, world to hostport, and node to pod, in both families.
    pub fn all_paths_work(&self) -> Result<()> {
        for (what, machine, server) in self.paths()? {
            tcp_source(machine, 0, server).context(what)?;
        }
        Ok(())
    }

    /// Waits until all paths work, and returns how long that took.
    pub fn await_all_paths(&self) -> Result<Duration> {
        let start = Instant::now();
        until("all paths work", || {
            let mut open = true;
            for (_, machine, server) in self.paths()? {
                open &= connects(machine, server)?;
            }
            Ok(open.then_some(()))
        })?;
        Ok(start.elapsed())
    }

    /// Asserts that neither a new connection from the world to a port that is not published, nor a
    /// packet between other machines is let through.
    pub fn the_policy_still_holds(&self) -> Result<()> {
        for node in NODE {
            let pod = SocketAddr::new(self.server.address(node)?, UNPUBLISHED);
            ensure!(
                !connects(&self.sandbox.world, pod)?,
                "the world reaches {pod}, which is not published"
            );
        }
        Ok(())
    }

    fn paths(&self) -> Result<Vec<(String, &Machine, SocketAddr)>> {
        let mut paths = Vec::new();
        for family in [0, 1] {
            let (node, world) = (NODE[family], WORLD[family]);
            let pod = self.server.address(GATEWAYS[family])?;
            for (what, machine, server) in [
                ("pod to pod", &self.client.machine, (pod, 80)),
                ("pod to world", &self.client.machine, (world, 7000)),
                ("world to hostport", &self.sandbox.world, (node, 8080)),
                ("pod to hostport", &self.client.machine, (node, 8080)),
                ("node to pod", &self.sandbox.node, (pod, 80)),
            ] {
                let server = SocketAddr::from(server);
                paths.push((format!("{what}: {server}"), machine, server));
            }
        }
        Ok(paths)
    }

    /// Returns whether the client pod connects to the world in this family.
    pub fn reaches_world(&self, world: IpAddr) -> Result<bool> {
        connects(&self.client.machine, SocketAddr::new(world, 7000))
    }

    /// Returns `forwarding.defaults` of the status: each default with its state.
    pub fn defaults(&self) -> Result<Vec<(String, String)>> {
        let status = self.agent.get("/v1/status")?;
        let defaults = status["forwarding"]["defaults"].as_array().cloned();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let defaults = defaults.unwrap_or_default();
        let one = |it: &Value| (text(&it["what"]), text(&it["state"]));
        Ok(defaults.iter().map(one).collect())
    }

    /// Waits until the reasons of the status are these.
    pub fn await_degraded(&self, reasons: &[&str]) -> Result<()> {
        until(&format!("the agent is degraded by {reasons:?}"), || {
            let status = self.agent.get("/v1/status")?;
            let degraded = status["degraded"].as_array().cloned().unwrap_or_default();
            let found: Vec<Value> = degraded.iter().map(|it| it["reason"].clone()).collect();
            Ok((json!(found) == json!(reasons)).then_some(()))
        })
    }
}

/// Returns whether a TCP connection is made, or refused by the peer, within a second.
pub fn connects(machine: &Machine, server: SocketAddr) -> Result<bool> {
    let timeout = Duration::from_secs(1);
    match machine.run(|| std::net::TcpStream::connect_timeout(&server, timeout)) {
        Ok(_) => Ok(true),
        Err(error) if is_silence(&error) => Ok(false),
        Err(error) => bail!("{} dials {server}: {error}", machine.name()),
    }
}

/// Whether the packet was dropped, or rejected by the node's packet filter.
fn is_silence(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::TimedOut
            | ErrorKind::WouldBlock
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::PermissionDenied
            | ErrorKind::ConnectionRefused
    )
}
