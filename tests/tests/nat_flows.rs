//! NAT flows in the agent's API and in `viaductctl flows`.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Echo, Mapping, NODE, Pod, Sandbox, WORLD, ping, tcp_source, udp_source, until,
};
use serde_json::Value;

const HOSTPORT: Mapping = Mapping::tcp(8080, 80);

fn pod(sandbox: &Sandbox, name: &str, config: Config) -> Result<Pod> {
    let mut pod = sandbox.pod(name)?;
    pod.add_with(config)?;
    Ok(pod)
}

/// Returns the only flow that matches `query`.
fn only(agent: &Agent, query: &str) -> Result<Value> {
    let mut view = agent.get(&format!("/v1/flows?{query}"))?;
    ensure!(view["matching"] == 1, "{query}: {view}");
    Ok(view["flows"][0].take())
}

#[test]
fn flows_show_their_pod_both_tuples_and_counters() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let client = pod(&sandbox, "client", Config::new("1.1.0"))?;
    let server = pod(
        &sandbox,
        "server",
        Config::new("1.1.0").publish(&[HOSTPORT]),
    )?;
    let _in_pod = Echo::start(&server.machine, 80)?;
    let _in_world = Echo::start(&sandbox.world, 7000)?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let at = |address, port| SocketAddr::new(address, port).to_string();
        let (seen, stream) = tcp_source(&client.machine, 0, SocketAddr::new(world, 7000))?;
        let flow = only(
            &agent,
            &format!("pod=client&peer={world}&port={}", seen.port()),
        )?;
        assert_eq!(flow["containerID"], "client");
        assert_eq!(flow["protocol"], "tcp");
        assert_eq!(flow["kind"], "masqueraded");
        assert_eq!(flow["state"], "established");
        assert_eq!(
            flow["seen"]["source"],
            at(client.address(world)?, seen.port())
        );
        assert_eq!(flow["seen"]["destination"], at(world, 7000));
        assert_eq!(flow["translated"]["source"], at(node, seen.port()));
        assert!(flow["sent_packets"].as_u64() > Some(1), "{flow}");
        assert!(flow["answered_bytes"].as_u64() > Some(100), "{flow}");
        drop(stream);
        until("the flow is shown as closing", || {
            let flow = only(
                &agent,
                &format!("pod=client&peer={world}&port={}", seen.port()),
            )?;
            Ok((flow["state"] == "closing" || flow["state"] == "reset").then_some(()))
        })?;

        let (caller, _open) = tcp_source(&sandbox.world, 0, SocketAddr::new(node, 8080))?;
        let flow = only(&agent, &format!("peer={world}&port={}", caller.port()))?;
        assert_eq!(flow["containerID"], "server");
        assert_eq!(flow["kind"], "published");
        assert_eq!(flow["seen"]["destination"], at(node, 8080));
        assert_eq!(
            flow["translated"]["destination"],
            at(server.address(world)?, 80)
        );

        let (direct, _socket) = udp_source(&client.machine, 0, SocketAddr::new(world, 7000))?;
        let flow = only(
            &agent,
            &format!("pod=client&peer={world}&port={}", direct.port()),
        )?;
        assert_eq!(flow["state"], "stream");
    }
    Ok(())
}

#[test]
fn flows_are_printed_one_per_line_and_end_with_their_pod() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    assert_eq!(agent.ctl("flows")?, "No flows.\n");
    let pod = pod(&sandbox, "owner", Config::new("1.1.0"))?;
    for world in WORLD {
        ping(&pod.machine, world, 1)?;
    }
    let text = agent.ctl("flows --pod owner")?;
    let lines = text.lines().filter(|line| line.contains("icmp"));
    assert_eq!(lines.count(), 2, "{text}");
    let json = agent.ctl(&format!("flows --json --peer {}", WORLD[1]))?;
    let json: Value = serde_json::from_str(&json).context("no JSON")?;
    assert_eq!(json["flows"][0]["protocol"], "icmp", "{json}");
    assert_eq!(agent.ctl("flows --pod unknown")?, "No flows.\n");
    pod.del()?;
    assert_eq!(agent.ctl("flows")?, "No flows.\n");
    Ok(())
}
