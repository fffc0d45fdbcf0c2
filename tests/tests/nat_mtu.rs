//! Path MTU discovery through NAT, between links of different MTUs: the sender gets an error that
//! quotes its packet as it has sent it, and what fits arrives.

#[path = "nat_mtu/cell.rs"]
mod cell;
#[path = "nat_mtu/streams.rs"]
mod streams;

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::{
    Agent, Config, GATEWAYS, Mapping, NODE, Pod, RawSocket, Sandbox, UPLINK, WORLD, skipped, until,
};
use serde_json::json;
use verdict::simulator::frame::{Body, Frame};

use cell::{Cell, WIDE, forget_path_mtu};

/// MTU of the default network, in bytes.
const NARROW: u32 = 1460;
/// MTU of an uplink that is smaller than the pods', in bytes.
const NARROW_UPLINK: u32 = 1400;
/// MTU that a forged error reports, in bytes.
const REPORTED: u32 = 1300;
/// UDP port of a socket of the node.
const OWN_PORT: u16 = 7001;
/// The pods' server port, and the hostports of the two pods that lead to it.
const PORT: u16 = 53;
const HOSTPORTS: [u16; 2] = [5353, 5354];

/// A node with a pod on a network with a smaller MTU than the uplink, and one on a network with the
/// uplink's.
struct Scene {
    sandbox: Sandbox,
    _agent: Agent,
    narrow: Pod,
    wide: Pod,
}

impl Scene {
    fn new(fast_path: bool, narrow: Config) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let agent = start(&sandbox, NARROW, fast_path)?;
        let narrow = attached(&sandbox, "narrow", narrow, HOSTPORTS[0])?;
        let wide = attached(&sandbox, "wide", network("wide", 70, WIDE), HOSTPORTS[1])?;
        Ok(Self {
            sandbox,
            _agent: agent,
            narrow,
            wide,
        })
    }

    /// Returns the paths on which a sender's packets meet the smaller MTU, by their names.
    fn paths(&self) -> Vec<(&'static str, Path<'_>)> {
        let (world, narrow, wide) = (&self.sandbox.world, &self.narrow, &self.wide);
        let own = |family: usize| SocketAddr::new(narrow.addresses[family], PORT);
        let servers = move |family: usize| SocketAddr::new(wide.addresses[family], PORT);
        let mut paths: Vec<(&str, Path<'_>)> = Vec::new();
        let mut add = |name, path| paths.push((name, path));
        add(
            "world to hostport",
            Box::new(move |family| {
                let (to, at) = (hostport(family, HOSTPORTS[0]), own(family));
                Cell::request(world, to, &narrow.machine, at, NODE[family])
            }),
        );
        add(
            "world to pod",
            Box::new(move |family| {
                let to = own(family);
                Cell::request(world, to, &narrow.machine, to, NODE[family])
            }),
        );
        add(
            "reply to a masqueraded pod",
            Box::new(move |family| {
                let at = SocketAddr::new(WORLD[family], 7000);
                Cell::reply(&narrow.machine, at, world, at, NODE[family])
            }),
        );
        add(
            "pod to hostport",
            Box::new(move |family| {
                let (to, at) = (hostport(family, HOSTPORTS[0]), own(family));
                Cell::request(&wide.machine, to, &narrow.machine, at, gateway(70, family))
            }),
        );
        add(
            "pod to pod",
            Box::new(move |family| {
                let to = own(family);
                Cell::request(&wide.machine, to, &narrow.machine, to, gateway(70, family))
            }),
        );
        add(
            "reply of a hostport to a pod",
            Box::new(move |family| {
                let (to, at) = (hostport(family, HOSTPORTS[1]), servers(family));
                Cell::reply(&narrow.machine, to, &wide.machine, at, gateway(70, family))
            }),
        );
        paths
    }
}

/// Starts the agent, and waits until the fast path is as configured.
fn start(sandbox: &Sandbox, mtu: u32, fast_path: bool) -> Result<Agent> {
    let mode = if fast_path { "auto" } else { "never" };
    let flags = ["--mtu", &mtu.to_string(), "--bypass-netfilter", mode];
    let agent = Agent::start(&sandbox.node, &flags)?;
    until("the fast path is as configured", || {
        let status = agent.get("/v1/status")?;
        let active = status["bypass"]["active"].as_bool();
        Ok((active == Some(fast_path)).then_some(()))
    })?;
    Ok(agent)
}

/// Attaches a pod with a TCP and a UDP hostport, to which the world has a route.
fn attached(sandbox: &Sandbox, name: &str, config: Config, port: u16) -> Result<Pod> {
    let mut pod = sandbox.pod(name)?;
    pod.add_with(config.publish(&Mapping::both(port, PORT)))?;
    for (node, address) in NODE.into_iter().zip(&pod.addresses) {
        let route = format!("ip route add {address} via {node}");
        sandbox.world.call(&route)?;
    }
    Ok(pod)
}

fn hostport(family: usize, port: u16) -> SocketAddr {
    SocketAddr::new(NODE[family], port)
}

/// The configuration of a masqueraded network of both families. The number is part of its subnets.
fn network(name: &str, number: u8, mtu: u32) -> Config {
    let v4 = format!("10.{number}.0.0/24");
    let v6 = format!("fd00:{number}::/64");
    let ranges = json!([[{ "subnet": v4 }], [{ "subnet": v6 }]]);
    Config::new("1.1.0")
        .with("name", json!(name))
        .with("bridge", json!(format!("{name}0")))
        .with("mtu", json!(mtu))
        .with("isGateway", json!(true))
        .with("isDefaultGateway", json!(true))
        .with("ipMasq", json!(true))
        .with("ipam", json!({ "type": "host-local", "ranges": ranges }))
}

/// The gateway of [`network`].
fn gateway(number: u8, family: usize) -> IpAddr {
    let hextet = u16::from_str_radix(&number.to_string(), 16).unwrap_or(0);
    [
        IpAddr::from([10, number, 0, 1]),
        IpAddr::from([0xfd00, hextet, 0, 0, 0, 0, 0, 1]),
    ][family]
}

/// Opens the sockets of a path for a family.
type Path<'a> = Box<dyn Fn(usize) -> Result<Cell> + 'a>;

/// Checks every path in both families, and reports all cells that fail.
fn check_cells(paths: &[(&str, Path<'_>)], mtu: u32) -> Result<()> {
    let mut failures = Vec::new();
    for (name, path) in paths {
        for family in [0, 1] {
            let checked = path(family).and_then(|cell| cell.check(mtu));
            if let Err(error) = checked {
                failures.push(format!("{name}, IPv{}: {error:#}", [4, 6][family]));
            }
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    bail!("{}", failures.join("\n"))
}

fn check_narrow_network(fast_path: bool) -> Result<()> {
    let scene = Scene::new(fast_path, Config::new("1.1.0"))?;
    check_cells(&scene.paths(), NARROW)
}

#[test]
fn the_mtu_of_a_pods_network_is_reported_on_every_path_with_the_fast_path() -> Result<()> {
    check_narrow_network(true)
}

#[test]
fn the_mtu_of_a_pods_network_is_reported_on_every_path_without_the_fast_path() -> Result<()> {
    check_narrow_network(false)
}

/// Connection tracking reassembles fragments: errors about them quote the whole packet.
#[test]
fn path_mtu_discovery_and_fragments_pass_connection_tracking() -> Result<()> {
    let scene = Scene::new(false, Config::new("1.1.0"))?;
    let rules = "table inet tracking { chain forward { type filter hook forward priority 0; \
                 ct state invalid drop; }; }";
    scene.sandbox.node.call_words(&["nft", rules])?;
    for (name, path) in scene.paths() {
        for family in [0, 1] {
            let cell = path(family)?;
            let checked = cell
                .check_discovery(NARROW)
                .and_then(|()| cell.check_fragmentation());
            checked.with_context(|| format!("{name}, IPv{}", [4, 6][family]))?;
        }
    }
    Ok(())
}

/// Returns a scene whose narrow network is a VLAN of its bridge, or `None` after reporting that the
/// kernel has no such bridges.
fn with_vlan(fast_path: bool) -> Result<Option<Scene>> {
    let probe = "ip link add probe0 type bridge vlan_filtering 1";
    let words: Vec<_> = probe.split(' ').collect();
    if !Sandbox::new()?.node.output(&words)?.status.success() {
        skipped("VLAN filtering of bridges");
        return Ok(None);
    }
    let vlan = network("vlan", 71, NARROW).with("vlan", json!(100));
    Scene::new(fast_path, vlan).map(Some)
}

#[test]
fn the_mtu_of_a_pods_vlan_is_reported_on_every_path() -> Result<()> {
    match with_vlan(true)? {
        Some(scene) => check_cells(&scene.paths(), NARROW),
        None => Ok(()),
    }
}

/// The bridge gets the smallest MTU of the networks on it, and pods keep theirs.
#[test]
fn the_mtu_of_a_network_is_reported_if_it_shares_a_bridge_with_a_larger_one() -> Result<()> {
    let narrow = network("narrow", 71, NARROW).with("bridge", json!("wide0"));
    let scene = Scene::new(true, narrow)?;
    check_cells(&scene.paths(), NARROW)?;
    let own = scene.wide.machine.call("ip -o link show eth0")?;
    ensure!(own.contains(&format!("mtu {WIDE} ")), "{own}");
    Ok(())
}

/// A pod on a bridge learns from redirects of the node that it reaches the other networks of the
/// bridge directly, without the gateway (RFC 792). The bridge discards such frames if they are too
/// large, and reports nothing.
fn check_direct_route(fast_path: bool) -> Result<()> {
    let narrow = network("narrow", 71, NARROW).with("bridge", json!("wide0"));
    let scene = Scene::new(fast_path, narrow)?;
    let wide = &scene.wide.machine;
    for address in &scene.narrow.addresses {
        wide.call(&format!("ip route add {address} dev eth0"))?;
    }
    let own = |family: usize| SocketAddr::new(scene.narrow.addresses[family], PORT);
    let path: Path<'_> = Box::new(|family| {
        let to = own(family);
        Cell::request(wide, to, &scene.narrow.machine, to, gateway(70, family))
    });
    check_cells(&[("pod to pod", path)], NARROW)
}

#[test]
fn the_mtu_of_a_network_is_reported_to_a_direct_neighbour_with_the_fast_path() -> Result<()> {
    check_direct_route(true)
}

#[test]
fn the_mtu_of_a_network_is_reported_to_a_direct_neighbour_without_the_fast_path() -> Result<()> {
    check_direct_route(false)
}

fn check_narrow_uplink(fast_path: bool) -> Result<()> {
    let sandbox = Sandbox::new()?;
    for (machine, link) in [(&sandbox.node, UPLINK), (&sandbox.world, "eth0")] {
        machine.call(&format!("ip link set {link} mtu {NARROW_UPLINK}"))?;
    }
    let _agent = start(&sandbox, WIDE, fast_path)?;
    let pod = attached(&sandbox, "pod", Config::new("1.1.0"), HOSTPORTS[0])?;
    let (pod, world) = (&pod, &sandbox.world);
    let own = |family: usize| SocketAddr::new(pod.addresses[family], PORT);
    let paths: [(&str, Path<'_>); 3] = [
        (
            "pod to world",
            Box::new(|family| {
                let to = SocketAddr::new(WORLD[family], 7000);
                Cell::request(&pod.machine, to, world, to, GATEWAYS[family])
            }),
        ),
        (
            "reply of a hostport to the world",
            Box::new(|family| {
                let to = hostport(family, HOSTPORTS[0]);
                Cell::reply(world, to, &pod.machine, own(family), GATEWAYS[family])
            }),
        ),
        (
            "reply of a pod to the world",
            Box::new(|family| {
                let to = own(family);
                Cell::reply(world, to, &pod.machine, to, GATEWAYS[family])
            }),
        ),
    ];
    check_cells(&paths, NARROW_UPLINK)
}

#[test]
fn the_mtu_of_an_uplink_is_reported_to_pods_with_the_fast_path() -> Result<()> {
    check_narrow_uplink(true)
}

#[test]
fn the_mtu_of_an_uplink_is_reported_to_pods_without_the_fast_path() -> Result<()> {
    check_narrow_uplink(false)
}

/// Packets of the node itself are fragmented or refused by its own stack.
#[test]
fn a_process_of_the_node_knows_the_mtu_of_a_pods_network() -> Result<()> {
    let scene = Scene::new(true, Config::new("1.1.0"))?;
    for family in [0, 1] {
        let at = SocketAddr::new(scene.narrow.addresses[family], PORT);
        let (node, pod) = (&scene.sandbox.node, &scene.narrow.machine);
        let cell = Cell::request(node, at, pod, at, NODE[family])?;
        cell.discover()?;
        let refused = cell.sender.send(&cell.payload(NARROW + 1)).err();
        let number = refused.and_then(|error| error.raw_os_error());
        ensure!(number == Some(nix::libc::EMSGSIZE), "{number:?}");
        ensure!(cell.path_mtu()? == NARROW, "{}", cell.path_mtu()?);
        let fits = cell.payload(NARROW);
        cell.sender.send(&fits)?;
        cell.expect_arrival(&fits)?;
        cell.check_fragmentation()?;
    }
    Ok(())
}

/// An ICMP error that quotes a hostport and belongs to no flow would find the socket that reserves
/// the port, and change the path MTU of the node, and thereby of pods. A socket of another process
/// shows that errors are processed.
#[test]
fn an_error_about_a_hostport_without_a_flow_changes_no_path_mtu() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = start(&sandbox, WIDE, true)?;
    let _pod = attached(&sandbox, "pod", Config::new("1.1.0"), HOSTPORTS[0])?;
    let (node, world) = (&sandbox.node, &sandbox.world);
    let peers = [
        ["192.0.2.97", "2001:db8:1::97"],
        ["192.0.2.98", "2001:db8:1::98"],
    ];
    for family in [0, 1] {
        let own = |port| SocketAddr::new(NODE[family], port);
        let _plain = node.run(|| UdpSocket::bind(own(OWN_PORT)))?;
        let raw = RawSocket::sender(world, NODE[family])?;
        let path_mtu = |peer: &str| -> Result<bool> {
            let route = node.call(&format!("ip route get {peer}"))?;
            Ok(route.contains(&format!("mtu {REPORTED}")))
        };
        for (port, peer) in [HOSTPORTS[0], OWN_PORT].into_iter().zip(peers) {
            let error = too_big(WORLD[family], own(port), peer[family].parse()?);
            raw.send(&error, NODE[family])?;
        }
        let [of_hostport, of_plain] = peers.map(|peer| peer[family]);
        until("the error about another socket is processed", || {
            Ok(path_mtu(of_plain)?.then_some(()))
        })?;
        ensure!(!path_mtu(of_hostport)?, "the path MTU to {of_hostport}");
        let drops = &agent.get("/v1/counters")?["drops"]["error-without-flow"];
        ensure!(drops.as_u64() == Some([1, 2][family]), "{drops} drops");
    }
    Ok(())
}

/// Returns an error by which `router` reports [`REPORTED`] about a datagram.
fn too_big(router: IpAddr, sent: SocketAddr, to: IpAddr) -> Vec<u8> {
    let frame = |from: IpAddr, to: IpAddr, body: Body| {
        let mut frame = Frame::new(cell::abi(from), cell::abi(to), body);
        frame.ethernet = None;
        frame.packet()
    };
    let datagram = frame(sent.ip(), to, Body::Udp(sent.port(), 9, vec![7; 64]));
    let (icmp_type, code) = if router.is_ipv4() { (3, 4) } else { (2, 0) };
    let error = Body::Icmp(icmp_type, code, REPORTED.to_be_bytes(), datagram);
    frame(router, sent.ip(), error)
}

/// Errors about ICMP echo, and large echo replies to a masqueraded pod.
#[test]
fn pings_larger_than_the_mtu_of_a_pods_network_are_answered_or_report_it() -> Result<()> {
    let scene = Scene::new(true, Config::new("1.1.0"))?;
    let (world, pod) = (&scene.sandbox.world, &scene.narrow);
    for family in [0, 1] {
        let own = pod.addresses[family];
        let payload = WIDE - [28, 48][family];
        let line = format!("ping -n -c 1 -W 2 -M do -s {payload} {own}");
        let words = line.split(' ').collect::<Vec<_>>();
        let output = world.output(&words)?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let expected = ["mtu = 1460", "mtu=1460"][family];
        ensure!(printed.contains(expected), "{printed}");
        forget_path_mtu(world)?;
        for (machine, to) in [(&pod.machine, WORLD[family]), (world, own)] {
            // The first one may be lost: it tells the world the path MTU.
            let line = format!("ping -n -q -c 1 -W 2 -s 4000 {to}");
            let words = line.split(' ').collect::<Vec<_>>();
            until(&format!("a large reply of {to}"), || {
                let replied = machine.output(&words)?.status.success();
                Ok(replied.then_some(()))
            })?;
        }
    }
    Ok(())
}

#[test]
fn tcp_streams_pass_although_the_announced_mss_is_too_large_with_the_fast_path() -> Result<()> {
    streams::check(&Scene::new(true, Config::new("1.1.0"))?)
}

#[test]
fn tcp_streams_pass_although_the_announced_mss_is_too_large_without_the_fast_path() -> Result<()> {
    streams::check(&Scene::new(false, Config::new("1.1.0"))?)
}

#[test]
fn tcp_streams_of_a_pods_vlan_pass_although_the_announced_mss_is_too_large() -> Result<()> {
    for fast_path in [true, false] {
        let Some(scene) = with_vlan(fast_path)? else {
            return Ok(());
        };
        streams::check(&scene).with_context(|| format!("fast path {fast_path}"))?;
    }
    Ok(())
}
