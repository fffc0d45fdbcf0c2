//! NAT of fragments, in order and out of order.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use abi::Address;
use anyhow::{Result, ensure};
use e2e::{
    Agent, Config, Machine, Mapping, NODE, Pod, RawSocket, Sandbox, Sniffer, UPLINK, WORLD,
    patient, ping, udp_bound,
};
use verdict::simulator::frame::{Body, Frame};

/// Payload bytes of the first of two fragments.
const CUT: usize = 1448;

fn pod(sandbox: &Sandbox, name: &str, config: Config) -> Result<Pod> {
    let mut pod = sandbox.pod(name)?;
    pod.add_with(config)?;
    Ok(pod)
}

fn abi(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

/// Returns a datagram in two fragments; each byte of its payload is `letter`.
fn pieces(from: SocketAddr, to: SocketAddr, identification: u32, letter: u8) -> [Vec<u8>; 2] {
    let body = Body::Udp(from.port(), to.port(), vec![letter; 2500]);
    let mut frame = Frame::new(abi(from.ip()), abi(to.ip()), body);
    frame.ethernet = None;
    frame.fragments(identification, CUT)
}

/// A UDP socket that only receives.
fn sink(machine: &Machine, at: SocketAddr) -> Result<UdpSocket> {
    let socket = udp_bound(machine, at)?;
    socket.set_read_timeout(Some(patient(Duration::from_secs(4))))?;
    Ok(socket)
}

/// Waits for a datagram, which must be complete and consist of one letter.
fn arrival(sink: &UdpSocket) -> Result<(SocketAddr, u8)> {
    let mut buffer = [0; 4000];
    let (length, from) = sink.recv_from(&mut buffer)?;
    let letter = buffer[0];
    ensure!(length == 2500, "{length} bytes");
    ensure!(buffer[..length].iter().all(|byte| *byte == letter), "mixed");
    Ok((from, letter))
}

/// Returns how many fragments were dropped because the first one of their datagram did not arrive.
fn lost(agent: &Agent) -> Result<u64> {
    let counters = agent.get("/v1/counters")?;
    Ok(counters["drops"]["fragment-without-first"]
        .as_u64()
        .unwrap_or(0))
}

#[test]
fn two_pods_can_use_the_same_fragment_identification() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pods = ["first", "second"].map(|name| pod(&sandbox, name, Config::new("1.1.0")));
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let server = SocketAddr::new(world, 7000);
        let sink = sink(&sandbox.world, server)?;
        for (pod, (port, letter)) in pods.iter().zip([(41_000, b'a'), (41_001, b'b')]) {
            let pod = pod.as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))?;
            let from = SocketAddr::new(pod.address(world)?, port);
            let raw = RawSocket::sender(&pod.machine, world)?;
            for piece in pieces(from, server, 0x77, letter) {
                raw.send(&piece, world)?;
            }
            assert_eq!(arrival(&sink)?, (SocketAddr::new(node, port), letter));
        }
    }
    Ok(())
}

#[test]
fn interleaved_fragments_of_two_pods_are_never_reassembled_together() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let one = pod(&sandbox, "one", Config::new("1.1.0"))?;
    let other = pod(&sandbox, "other", Config::new("1.1.0"))?;
    for world in WORLD {
        let server = SocketAddr::new(world, 7000);
        let sink = sink(&sandbox.world, server)?;
        let send =
            |pod: &Pod, identification: u32, letter: u8| -> Result<[(RawSocket, Vec<u8>); 2]> {
                let from = SocketAddr::new(pod.address(world)?, 42_000);
                let [first, second] = pieces(from, server, identification, letter);
                let raw = || RawSocket::sender(&pod.machine, world);
                Ok([(raw()?, first), (raw()?, second)])
            };
        for (identification, second_id) in [(0x11, 0x11), (0x21, 0x22)] {
            let [a1, a2] = send(&one, identification, b'a')?;
            let [b1, b2] = send(&other, second_id, b'b')?;
            for (raw, piece) in [a1, b1, a2, b2] {
                raw.send(&piece, world)?;
            }
            let letters = [arrival(&sink)?.1, arrival(&sink)?.1];
            assert_eq!(letters, [b'a', b'b']);
        }
    }
    Ok(())
}

#[test]
fn a_fragment_without_its_first_never_leaves_and_is_counted_when_others_take_its_place()
-> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let pod = pod(&sandbox, "pod", Config::new("1.1.0"))?;
    let sniffer = Sniffer::for_pods(&sandbox.world, "eth0")?;
    let mut expected = 0;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let server = SocketAddr::new(world, 7000);
        let sink = sink(&sandbox.world, server)?;
        let from = SocketAddr::new(pod.address(world)?, 43_000);
        let raw = RawSocket::sender(&pod.machine, world)?;
        // This also completes the pod's neighbour discovery.
        ping(&pod.machine, world, 1)?;
        for identification in 0..abi::RING + 5 {
            let [_, second] = pieces(from, server, 0x1000 + identification, b'x');
            raw.send(&second, world)?;
        }
        // Those of the first family are the oldest of the pod in the second.
        expected += if world.is_ipv4() {
            5
        } else {
            u64::from(abi::RING) + 5
        };
        for piece in pieces(from, server, 0x32, b'y') {
            raw.send(&piece, world)?;
        }
        assert_eq!(arrival(&sink)?, (SocketAddr::new(node, 43_000), b'y'));
        assert_eq!(lost(&agent)?, expected);
    }
    assert_eq!(sniffer.end()?, Vec::<String>::new());
    Ok(())
}

#[test]
fn fragments_pass_in_any_order_with_connection_tracking() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let rules = "table inet tracking { chain forward { type filter hook forward priority 0; ct state invalid counter; }; }";
    sandbox.node.call_words(&["nft", rules])?;
    let pod = pod(&sandbox, "pod", Config::new("1.1.0"))?;
    for (node, world) in NODE.into_iter().zip(WORLD) {
        let server = SocketAddr::new(world, 7000);
        let sink = sink(&sandbox.world, server)?;
        let from = SocketAddr::new(pod.address(world)?, 45_000);
        let raw = RawSocket::sender(&pod.machine, world)?;
        let [first, second] = pieces(from, server, 0x51, b'z');
        raw.send(&second, world)?;
        raw.send(&first, world)?;
        assert_eq!(arrival(&sink)?, (SocketAddr::new(node, 45_000), b'z'));
    }
    assert_eq!(lost(&agent)?, 0);
    Ok(())
}

/// IP options that are not copied to later fragments (RFC 791): 40 times "no operation".
const OPTIONS: (u8, [u8; 40]) = (0, [1; 40]);

/// Options make the header of a first fragment longer than the whole last fragment. The kernel lets
/// no program cut off a packet within its headers, so the last one is restored with padding.
#[test]
fn a_last_fragment_shorter_than_the_header_of_the_first_one_waits_for_it() -> Result<()> {
    const PORT: u16 = 5353;
    let (sandbox, agent) = Sandbox::with_agent()?;
    let config = Config::new("1.1.0").publish(&[Mapping::udp(PORT, 53)]);
    let pod = pod(&sandbox, "pod", config)?;
    let [node, world] = [NODE[0], WORLD[0]];
    ping(&pod.machine, world, 1)?;
    let own = pod.address(world)?;
    let inside = SocketAddr::new(own, 53);
    let outside = SocketAddr::new(world, 7000);
    for (sender, from, to, receiver, at) in [
        (&pod.machine, inside, outside, &sandbox.world, outside),
        (
            &sandbox.world,
            outside,
            SocketAddr::new(node, PORT),
            &pod.machine,
            inside,
        ),
    ] {
        let sink = sink(receiver, at)?;
        let body = Body::Udp(from.port(), to.port(), vec![b'o'; 1_200 - 7]);
        let mut frame = Frame::new(abi(from.ip()), abi(to.ip()), body);
        frame.ethernet = None;
        let last = frame.fragment(0x61, 1_200..1_201);
        frame.options.push((OPTIONS.0, OPTIONS.1.to_vec()));
        let first = frame.fragment(0x61, 0..1_200);
        ensure!(last.len() < 60, "{} bytes", last.len());
        let raw = RawSocket::sender(sender, to.ip())?;
        raw.send(&last, to.ip())?;
        raw.send(&first, to.ip())?;
        let mut buffer = [0; 4000];
        let (length, _) = sink.recv_from(&mut buffer)?;
        ensure!(buffer[..length] == [b'o'; 1_193], "{length} bytes");
    }
    assert_eq!(lost(&agent)?, 0);
    Ok(())
}

#[test]
fn large_pings_pass_an_uplink_with_a_smaller_mtu_than_the_pods() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let pod = pod(&sandbox, "pod", Config::new("1.1.0"))?;
    sandbox
        .node
        .call(&format!("ip link set {UPLINK} mtu 1400"))?;
    sandbox.world.call("ip link set eth0 mtu 1400")?;
    for world in WORLD {
        for bytes in [1372, 1390, 1450, 3000, 9000] {
            let line = format!("ping -n -q -c 2 -i 0.01 -W 3 -M dont -s {bytes} {world}");
            pod.machine.call(&line)?;
        }
    }
    Ok(())
}
