//! Flows in the agent's API and in `viaductctl flows`: NAT flows, and connections between pods and
//! with the node.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Echo, GATEWAYS, Machine, Mapping, NODE, Pod, Sandbox, WORLD, ping, tcp_echo,
    tcp_source, udp_socket, udp_source, until,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
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

/// A connection that is opened for a test: from a machine to an address, and how it is listed.
struct Opened<'a> {
    from: &'a Machine,
    to: SocketAddr,
    kind: &'static str,
    /// Container IDs of the pod, and of the pod at the other end.
    pods: [Option<&'a str>; 2],
}

impl Opened<'_> {
    /// Opens it by TCP and by UDP, and checks what is listed while it is open and afterwards.
    fn check(&self, agent: &Agent) -> Result<()> {
        let own = self.pods[0].context("a pod")?;
        let query = |port| format!("pod={own}&port={port}");
        let (seen, stream) = tcp_source(self.from, 0, self.to)?;
        tcp_echo(&stream)?;
        let flow = self.listed(agent, &query(seen.port()), seen)?;
        ensure!(flow["protocol"] == "tcp", "{flow}");
        ensure!(flow["state"] == "established", "{flow}");
        ensure!(flow["sent_packets"].as_u64() > Some(1), "{flow}");
        // The greeting, which is the client's address, and the echo.
        ensure!(flow["answered_bytes"].as_u64() > Some(10), "{flow}");
        ensure!(flow["idle_seconds"].is_u64(), "{flow}");
        drop(stream);
        ends(agent, &query(seen.port()))?;

        let (seen, socket) = udp_source(self.from, 0, self.to)?;
        let flow = self.listed(agent, &query(seen.port()), seen)?;
        ensure!(flow["protocol"] == "udp", "{flow}");
        ensure!(flow["state"] == "connected", "{flow}");
        ensure!(flow["sent_bytes"].is_null(), "{flow}");
        drop(socket);
        ends(agent, &query(seen.port()))
    }

    /// Returns the only flow of the query, after a check of its kind and ends.
    fn listed(&self, agent: &Agent, query: &str, source: SocketAddr) -> Result<Value> {
        let flow = only(agent, query)?;
        ensure!(flow["kind"] == self.kind, "{flow}");
        for key in ["seen", "translated"] {
            ensure!(flow[key]["source"] == source.to_string(), "{flow}");
            ensure!(flow[key]["destination"] == self.to.to_string(), "{flow}");
        }
        for (key, id) in ["containerID", "peerContainerID"]
            .into_iter()
            .zip(self.pods)
        {
            ensure!(flow[key].as_str() == id, "{key}: {flow}");
        }
        ensure!(flow["age_seconds"].is_null(), "{flow}");
        Ok(flow)
    }
}

/// Waits until no flow matches the query.
fn ends(agent: &Agent, query: &str) -> Result<()> {
    until("the flow of a closed socket is not listed", || {
        let view = agent.get(&format!("/v1/flows?{query}"))?;
        Ok((view["matching"] == 0).then_some(()))
    })
}

#[test]
fn connections_between_pods_and_with_the_node_are_flows_as_long_as_their_sockets() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let client = pod(&sandbox, "client", Config::new("1.1.0"))?;
    let server = pod(&sandbox, "server", Config::new("1.1.0"))?;
    let _in_pod = Echo::start(&server.machine, 80)?;
    let _in_node = Echo::start(&sandbox.node, 7100)?;
    for gateway in GATEWAYS {
        let in_server = SocketAddr::new(server.address(gateway)?, 80);
        for opened in [
            Opened {
                from: &client.machine,
                to: in_server,
                kind: "pod-to-pod",
                pods: [Some("client"), Some("server")],
            },
            Opened {
                from: &client.machine,
                to: SocketAddr::new(gateway, 7100),
                kind: "pod-to-node",
                pods: [Some("client"), None],
            },
            Opened {
                from: &sandbox.node,
                to: in_server,
                kind: "node-to-pod",
                pods: [Some("server"), None],
            },
        ] {
            let what = format!("{} to {}", opened.kind, opened.to);
            opened.check(&agent).context(what)?;
        }

        // Of either pod, with the other one as peer.
        let (seen, stream) = tcp_source(&client.machine, 0, in_server)?;
        for (own, peer) in [("client", in_server.ip()), ("server", seen.ip())] {
            let flow = only(&agent, &format!("pod={own}&peer={peer}&protocol=tcp"))?;
            ensure!(flow["seen"]["source"] == seen.to_string(), "{flow}");
            let text = agent.ctl(&format!("flows --pod {own} --peer {peer} --no-headers"))?;
            let mut words = text.split_whitespace();
            ensure!(words.next() == Some("client"), "{text}");
            ensure!(words.next() == Some("server"), "{text}");
        }
        drop(stream);
        ends(&agent, "pod=client")?;
    }
    Ok(())
}

#[test]
fn a_connection_from_a_pod_to_a_hostport_is_one_flow_with_both_pods() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let client = pod(&sandbox, "client", Config::new("1.1.0"))?;
    let server = pod(
        &sandbox,
        "server",
        Config::new("1.1.0").publish(&[HOSTPORT]),
    )?;
    let _in_pod = Echo::start(&server.machine, 80)?;
    for node in NODE {
        let (seen, _stream) = tcp_source(&client.machine, 0, SocketAddr::new(node, 8080))?;
        let flow = only(&agent, &format!("port={}", seen.port()))?;
        assert_eq!(flow["kind"], "published", "{flow}");
        assert_eq!(flow["containerID"], "server", "{flow}");
        assert_eq!(flow["peerContainerID"], "client", "{flow}");
    }
    Ok(())
}

/// Sockets of one pod, family and protocol: more than the agent reads.
const CROWD: u64 = 17_000;

#[test]
fn a_pod_with_many_sockets_hides_no_connection_of_other_pods() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // A guest has a hard limit of 4,096, which root may raise there.
    let raised = setrlimit(Resource::RLIMIT_NOFILE, 2 * CROWD, most.max(2 * CROWD));
    raised.or_else(|_| setrlimit(Resource::RLIMIT_NOFILE, most, most))?;
    let (sandbox, agent) = Sandbox::with_agent()?;
    // The agent reads namespaces in the order of their paths.
    let crowd = pod(&sandbox, "crowd", Config::new("1.1.0"))?;
    let quiet = pod(&sandbox, "quiet", Config::new("1.1.0"))?;
    let server = pod(&sandbox, "server", Config::new("1.1.0"))?;
    let _in_pod = Echo::start(&server.machine, 80)?;
    let address = |like: IpAddr| server.address(like);
    let [ipv4, ipv6] = [address(GATEWAYS[0])?, address(GATEWAYS[1])?];
    let discard = SocketAddr::new(ipv4, 9);
    let _many = crowd.machine.run(|| {
        let sockets = (0..CROWD).map(|_| udp_socket(0, discard));
        sockets.collect::<std::io::Result<Vec<_>>>()
    })?;
    // The time of a read is bounded, too.
    until("the bound of the sockets of a pod is listed", || {
        let view = agent.get("/v1/flows?pod=crowd&limit=0")?;
        let listed = view["matching"].as_u64().context("a number")?;
        ensure!(listed < CROWD && view["truncated_pods"] == 1, "{view}");
        Ok((listed >= 1 << 14).then_some(()))
    })?;
    for server in [ipv4, ipv6] {
        let server = SocketAddr::new(server, 80);
        for client in [&quiet.machine, &sandbox.node] {
            let (seen, _stream) = tcp_source(client, 0, server)?;
            only(&agent, &format!("protocol=tcp&port={}", seen.port()))?;
            let (seen, _socket) = udp_source(client, 0, server)?;
            let query = format!("peer={}&protocol=udp&port={}", seen.ip(), seen.port());
            only(&agent, &query)?;
        }
        // Connections of the same pod by another protocol.
        let (seen, _stream) = tcp_source(&crowd.machine, 0, server)?;
        only(&agent, &format!("protocol=tcp&port={}", seen.port()))?;
    }
    Ok(())
}
