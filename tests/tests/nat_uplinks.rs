//! Kinds of uplinks, and uplinks that appear and disappear: tunnels without Ethernet, links that
//! are created and routed in one batch.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::residue::await_no_residue;
use e2e::{
    Agent, Config, DatagramFlood, Echo, Machine, Mapping, NODE, Pod, Residue, Sandbox, Sends,
    Sniffer, Stream, Tunnel, WORLD, patient, ping, tcp_source, udp_socket, udp_source,
    until_within,
};

const HOSTPORTS: [Mapping; 3] = [
    Mapping::tcp(8080, 80),
    Mapping::udp(8080, 80),
    Mapping::tcp(5201, 5201),
];

/// The node's addresses on its second uplink, and the world's.
const SECOND: [&str; 2] = ["198.51.100.1", "2001:db8:2::1"];
const BEYOND: [&str; 2] = ["198.51.100.2", "2001:db8:2::2"];
/// Addresses in the world that are reachable by routes only.
const FAR: [&str; 2] = ["203.0.113.5", "2001:db8:9::5"];
/// How long the node may take to apply a change on a loaded machine.
const SOON: Duration = Duration::from_secs(15);

fn parsed(texts: [&str; 2]) -> Result<[IpAddr; 2]> {
    let [v4, v6] = texts.map(str::parse::<IpAddr>);
    Ok([v4?, v6?])
}

fn attached(sandbox: &Sandbox, config: Config) -> Result<Pod> {
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(config)?;
    Ok(pod)
}

/// Waits until new flows from the pod to `server` have the source address `expected`.
fn becomes(pod: &Pod, server: SocketAddr, expected: IpAddr) -> Result<()> {
    let what = format!("flows to {server} come from {expected}");
    until_within(SOON, &what, || {
        let seen = seen_source(&pod.machine, server);
        Ok((seen == Some(expected)).then_some(()))
    })
}

/// Returns the source address that the server sees of a new flow, if it replies at once.
fn seen_source(machine: &Machine, server: SocketAddr) -> Option<IpAddr> {
    let socket = machine.run(|| udp_socket(0, server)).ok()?;
    socket
        .set_read_timeout(Some(patient(Duration::from_millis(10))))
        .ok()?;
    socket.send(b"who am I?").ok()?;
    let mut buffer = [0; 128];
    let length = socket.recv(&mut buffer).ok()?;
    let seen: SocketAddr = String::from_utf8_lossy(&buffer[..length]).parse().ok()?;
    Some(seen.ip())
}

/// An uplink without Ethernet headers, which appears while pods run.
#[test]
fn a_tunnel_without_ethernet_is_an_uplink_like_any_other() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = attached(&sandbox, Config::new("1.1.0").publish(&HOSTPORTS))?;
    let (own, beyond) = (parsed(SECOND)?, parsed(BEYOND)?);
    let sniffer = Sniffer::for_pods(&sandbox.world, "any")?;
    let tunnel = Tunnel::new([(&sandbox.node, "tun0"), (&sandbox.world, "tun1")])?;
    tunnel.configure([&own, &beyond])?;
    let _in_world = Echo::start(&sandbox.world, 7000)?;
    let _in_pod = Echo::start(&pod.machine, 80)?;
    for (node, world) in own.into_iter().zip(beyond) {
        let server = SocketAddr::new(world, 7000);
        becomes(&pod, server, node)?;
        assert_eq!(tcp_source(&pod.machine, 0, server)?.0.ip(), node);
        ping(&pod.machine, world, 3)?;

        let published = SocketAddr::new(node, 8080);
        assert_eq!(tcp_source(&sandbox.world, 0, published)?.0.ip(), world);
        assert_eq!(udp_source(&sandbox.world, 0, published)?.0.ip(), world);

        let (client, outward) = ((&pod.machine, SocketAddr::new(world, 7001)), 7001);
        for sends in [Sends::Client, Sends::Server] {
            Stream::start(client, (&sandbox.world, outward), sends, 8 << 20)?.end()?;
        }
        let caller = (&sandbox.world, SocketAddr::new(node, 5201));
        Stream::start(caller, (&pod.machine, 5201), Sends::Client, 8 << 20)?.end()?;
    }
    assert_eq!(sniffer.end()?, Vec::<String>::new());
    Ok(())
}

/// Returns an `ip -batch` script that creates a link, its addresses, and routes by it.
fn batch(sandbox: &Sandbox) -> Result<String> {
    let mut lines = vec![
        "link add up1 link low0 address 02:00:00:00:02:01 type macvlan mode bridge".to_owned(),
    ];
    lines.push(format!("address add {}/24 dev up1", SECOND[0]));
    lines.push(format!("address add {}/64 dev up1 nodad", SECOND[1]));
    lines.push("link set up1 up".to_owned());
    for (far, via) in FAR.into_iter().zip(BEYOND) {
        lines.push(format!("route add {far} via {via} dev up1"));
    }
    let path = "/run/batch";
    let text = lines.join("\n");
    sandbox.node.mounts().run(|| std::fs::write(path, text))?;
    Ok(format!("ip -batch {path}"))
}

/// Prepares a second link between node and world, on which the world accepts the node's new
/// addresses.
fn beyond(sandbox: &Sandbox) -> Result<()> {
    sandbox.connect("low0", "eth1")?;
    sandbox.node.sysctl("ipv6/conf/default/accept_dad", "0")?;
    sandbox.node.call("ip link set low0 up")?;
    sandbox.configure_link(&sandbox.world, "eth1", &parsed(BEYOND)?)?;
    for far in FAR {
        let nodad = if far.contains(':') { "nodad" } else { "" };
        sandbox
            .world
            .call(&format!("ip address add {far} dev lo {nodad}"))?;
    }
    Ok(())
}

/// Maximum number of packets, in all rounds, that are between the pod's veth and the node's routing
/// when a route appears. There is at most one per CPU, for some microseconds.
const IN_FLIGHT: usize = 10;

/// The agent is notified of such an uplink when packets may already leave by it, so `from_pod`
/// drops packets that would leave by an unknown uplink.
#[test]
fn new_uplinks_drop_pod_packets_until_they_masquerade() -> Result<()> {
    const ROUNDS: usize = 50;
    let sandbox = Sandbox::new()?;
    beyond(&sandbox)?;
    let agent = Agent::start(&sandbox.node, &[])?;
    let pod = attached(&sandbox, Config::new("1.1.0"))?;
    let servers = parsed(FAR)?.map(|far| SocketAddr::new(far, 7000));
    let [v4, v6] = servers.map(|server| Echo::at(&sandbox.world, server));
    let (_v4, _v6) = (v4?, v6?);
    for (server, node) in servers.into_iter().zip(NODE) {
        becomes(&pod, server, node)?;
    }
    let before = Residue::of(&sandbox.node, &[])?;
    let make = batch(&sandbox)?;
    let sniffer = Sniffer::for_pods(&sandbox.world, "any")?;
    let traffic = DatagramFlood::start(&pod.machine, &servers);
    let mut gaps = Vec::new();
    let mut round = || -> Result<()> {
        traffic.await_progress(50)?;
        sandbox.node.call(&make)?;
        let since = Instant::now();
        for (server, own) in servers.into_iter().zip(parsed(SECOND)?) {
            becomes(&pod, server, own)?;
        }
        gaps.push(since.elapsed());
        sandbox.node.call("ip link delete up1").map(drop)
    };
    (0..ROUNDS).try_for_each(|number| round().with_context(|| format!("round {number}")))?;
    traffic.end()?;
    await_no_residue(&before, &sandbox.node)?;
    gaps.sort();
    println!(
        "translated after {:?}, at worst {:?}",
        gaps[ROUNDS / 2],
        gaps[ROUNDS - 1]
    );
    let leaks = sniffer.end()?;
    let drops = agent.get("/v1/counters")?["drops"].take();
    println!("{} leaks; dropped: {drops}", leaks.len());
    // Without the check in `from_pod` thousands of packets would leak.
    ensure!(drops["unknown-uplink"].as_u64() > Some(100), "{drops}");
    ensure!(leaks.len() <= IN_FLIGHT, "{} leaks: {leaks:?}", leaks.len());
    Ok(())
}

/// A cached route applies to other ports only while no routing rule matches ports.
#[test]
fn flows_follow_policy_routing_rules_that_match_ports() -> Result<()> {
    const TURNS: usize = 50;
    let sandbox = Sandbox::new()?;
    beyond(&sandbox)?;
    let _agent = Agent::start(&sandbox.node, &[])?;
    let pod = attached(&sandbox, Config::new("1.1.0"))?;
    sandbox.node.call(&batch(&sandbox)?)?;
    for (family, far) in parsed(FAR)?.into_iter().enumerate() {
        let (by_second, by_first) = (SocketAddr::new(far, 7000), SocketAddr::new(far, 7001));
        let _servers = [
            Echo::at(&sandbox.world, by_second)?,
            Echo::at(&sandbox.world, by_first)?,
        ];
        let (second, first) = (parsed(SECOND)?[family], NODE[family]);
        becomes(&pod, by_first, second)?;
        let ip = ["ip -4", "ip -6"][family];
        let world = WORLD[family];
        sandbox
            .node
            .call(&format!("{ip} route add {far} via {world} table 100"))?;
        sandbox
            .node
            .call(&format!("{ip} rule add ipproto udp dport 7001 lookup 100"))?;
        let right = |server, own| seen_source(&pod.machine, server) == Some(own);
        until_within(SOON, "all flows leave by the uplink of their port", || {
            let mut turns = 0..TURNS;
            let all = turns.all(|_| right(by_second, second) && right(by_first, first));
            Ok(all.then_some(()))
        })?;
    }
    Ok(())
}
