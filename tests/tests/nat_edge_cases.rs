//! Edge cases of NAT: fragments, port unreachable errors, small MTUs, hostports that change owner.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Config, Echo, Iperf, Machine, Mapping, NODE, Pod, Sandbox, WORLD, ping, udp_seen_as,
    udp_socket, udp_source, until,
};

const HOSTPORTS: [Mapping; 2] = [Mapping::udp(5353, 53), Mapping::tcp(5201, 5201)];

fn published(sandbox: &Sandbox, name: &str) -> Result<Pod> {
    let mut pod = sandbox.pod(name)?;
    pod.add_with(Config::new("1.1.0").publish(&HOSTPORTS))?;
    Ok(pod)
}

/// Sends a datagram of three fragments and expects the echo of the sender's address.
fn exchange_fragmented(client: &Machine, server: SocketAddr) -> Result<()> {
    let (seen, socket) = udp_source(client, 0, server)?;
    let mut buffer = [0; 128];
    for _ in 0..3 {
        socket.send(&[7; 4000])?;
        if let Ok(length) = socket.recv(&mut buffer) {
            ensure!(
                buffer[..length] == *seen.to_string().as_bytes(),
                "another flow"
            );
            return Ok(());
        }
    }
    anyhow::bail!(
        "{}: no answer of {server} to a large datagram",
        client.name()
    )
}

#[test]
fn fragments_pass_in_both_directions() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox, "pod")?;
    let (_in_world, _in_pod) = (
        Echo::start(&sandbox.world, 7000)?,
        Echo::start(&pod.machine, 53)?,
    );
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let big_ping = format!("ping -n -q -c 2 -i 0.01 -W 3 -s 4000 {world}");
        pod.machine.call(&big_ping)?;
        exchange_fragmented(&pod.machine, SocketAddr::new(world, 7000))?;
        exchange_fragmented(&sandbox.world, SocketAddr::new(node, 5353))?;
    }
    Ok(())
}

/// Sends to a port without a server, and waits for the port unreachable error.
fn assert_refusal_arrives(client: &Machine, server: SocketAddr) -> Result<()> {
    let socket = client.run(|| udp_socket(0, server))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    until(&format!("{server} refuses {}", client.name()), || {
        // A pending ICMP error is also returned by the next send.
        let refused = socket.send(b"?").and_then(|_| socket.recv(&mut [0; 16]));
        Ok(refused
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            .then_some(()))
    })
}

#[test]
fn a_port_unreachable_error_reaches_the_sender() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox, "pod")?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        assert_refusal_arrives(&pod.machine, SocketAddr::new(world, 7777))?;
        assert_refusal_arrives(&sandbox.world, SocketAddr::new(node, 5353))?;
    }
    Ok(())
}

#[test]
fn clients_of_a_hostport_reach_its_next_owner() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let mut owner = published(&sandbox, "first")?;
    let mut served = Echo::start(&owner.machine, 53)?;
    let mut callers = Vec::new();
    for node in NODE {
        let published = SocketAddr::new(node, 5353);
        callers.push(udp_source(&sandbox.world, 0, published)?);
    }
    for name in ["second", "third"] {
        owner.del()?;
        drop(served);
        owner = published(&sandbox, name)?;
        served = Echo::start(&owner.machine, 53)?;
        for (seen, caller) in &callers {
            let again = udp_seen_as(caller);
            let drops = agent.get("/v1/counters")?;
            let again = again.with_context(|| format!("owner {name}; {drops}"))?;
            assert_eq!(again, *seen, "owner {name}");
        }
    }
    drop(served);
    Ok(())
}

/// Creates a machine behind the world, over a link with an MTU of 1300 bytes.
fn far_away(sandbox: &Sandbox) -> Result<(Machine, [IpAddr; 2])> {
    let far = sandbox.machine("far")?;
    let addresses = ["203.0.113.9".parse()?, "2001:db8:9::9".parse()?];
    let here = ["203.0.113.1".parse()?, "2001:db8:9::1".parse()?];
    let world = &sandbox.world;
    let path = far.path();
    world.call(&format!(
        "ip link add far mtu 1300 type veth peer name eth0 mtu 1300 netns {path}"
    ))?;
    sandbox.configure_link(world, "far", &here)?;
    sandbox.configure_link(&far, "eth0", &addresses)?;
    far.call("ip route add default via 203.0.113.1")?;
    far.call("ip -6 route add default via 2001:db8:9::1")?;
    world.sysctl("ipv4/ip_forward", "1")?;
    world.sysctl("ipv6/conf/all/forwarding", "1")?;
    Ok((far, addresses))
}

#[test]
fn a_pod_learns_the_path_mtu() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox, "pod")?;
    let (far, addresses) = far_away(&sandbox)?;
    let server = Iperf::serve(&far, 5201)?;
    for address in addresses {
        ping(&pod.machine, address, 1)?;
        let too_big = format!("ping -n -c 2 -i 0.2 -W 2 -M do -s 1400 {address}");
        let words = too_big.split_whitespace().collect::<Vec<_>>();
        let output = pod.machine.output(&words)?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        let route = pod.machine.call(&format!("ip route get {address}"))?;
        ensure!(route.contains("mtu 1300"), "{printed}\n{route}");
        let sent = server.send(&pod.machine, address, 1)?;
        ensure!(sent.bits_per_second > 1e6, "{sent:?}");
    }
    Ok(())
}

#[test]
fn bulk_traffic_passes_with_and_without_offloads() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = published(&sandbox, "pod")?;
    let to_world = Iperf::serve(&sandbox.world, 5202)?;
    let to_pod = Iperf::serve(&pod.machine, 5201)?;
    for offloads in ["on", "off"] {
        for machine in [&pod.machine, &sandbox.world] {
            machine
                .call(&format!(
                    "ethtool -K eth0 tx {offloads} tso {offloads} gso {offloads}"
                ))
                .context("offloads")?;
        }
        for (node, world) in NODE.into_iter().zip(WORLD) {
            let outward = to_world.send(&pod.machine, world, 1)?;
            let inward = to_pod.send(&sandbox.world, node, 1)?;
            for run in [outward, inward] {
                ensure!(run.bits_per_second > 1e7, "offloads {offloads}: {run:?}");
            }
        }
    }
    Ok(())
}
