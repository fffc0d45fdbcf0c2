//! Attempts of root in a pod to exceed the pod's limit. Each is shown to have been made, and to
//! gain nothing.

use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, Machine, Pod, RawSocket, Sandbox, WORLD, patient, until};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use super::{
    BURST, BURST_DATAGRAMS, FLOOD, PAYLOAD, SLOW, WEIGHT, at, flood, hear, is_burst, is_spent,
    outbox,
};

/// Bytes of flows that need little, which may pass beyond the burst.
const HEADROOM: usize = 64 << 10;
/// Bytes that reach an interface without being charged: Ethernet headers, ARP, neighbour discovery,
/// MLD.
const UNCHARGED: usize = 8 << 10;
/// An address of the pods' subnet that is not the pod's.
const ADDED: &str = "10.244.1.200";
/// IP protocol number for experiments (RFC 3692).
const EXPERIMENT: u8 = 253;
/// An echo request with identifier, sequence number and data of zero: its checksum does not depend
/// on its length.
const ECHO_REQUEST: [u8; 4] = [8, 0, 0xf7, 0xff];

/// A pod with a slow limit on what it sends, and the two interfaces that can receive it.
struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    neighbour: Pod,
    sly: Pod,
    /// Bytes that the receivers had before the pod sent anything.
    before: u64,
    begun: Instant,
}

impl Scene {
    fn new() -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        let neighbour = sandbox.limited("neighbour", 0, 0)?;
        let sly = sandbox.limited("sly", 0, SLOW)?;
        let mut scene = Self {
            sandbox,
            agent,
            neighbour,
            sly,
            before: 0,
            begun: Instant::now(),
        };
        scene.before = scene.received()?;
        Ok(scene)
    }

    /// Bytes that have reached the world and the other pod, by whatever protocol.
    fn received(&self) -> Result<u64> {
        [&self.sandbox.world, &self.neighbour.machine]
            .into_iter()
            .map(|machine| {
                let shown = machine.call_json("ip -j -s link show eth0")?;
                let bytes = shown[0]["stats64"]["rx"]["bytes"].as_u64();
                bytes.with_context(|| format!("no bytes in {shown}"))
            })
            .sum()
    }

    /// Packets of the pod that its limit has dropped.
    fn limited(&self) -> Result<u64> {
        let limits = self.agent.limits(&self.sly)?;
        let dropped = limits["egress"]["dropped_packets"].as_u64();
        dropped.with_context(|| format!("no drops in {limits}"))
    }

    /// Packets that were dropped for a reason.
    fn dropped(&self, reason: &str) -> Result<u64> {
        Ok(self.agent.get("/v1/counters")?["drops"][reason]
            .as_u64()
            .unwrap_or(0))
    }

    /// Lets the pod send, and waits until its limit has dropped at least `most` of these packets.
    /// Fails if the pod has sent more in total than burst, headroom and rate allow.
    fn gains_nothing(
        &self,
        attempt: &str,
        most: usize,
        send: impl FnOnce(&Machine) -> Result<()> + Send,
    ) -> Result<()> {
        let before = self.limited()?;
        send(&self.sly.machine).context(attempt.to_owned())?;
        let most = u64::try_from(most)?;
        until(&format!("{attempt}: the limit drops packets"), || {
            Ok((self.limited()? >= before + most).then_some(()))
        })?;
        let received = usize::try_from(self.received()? - self.before)?;
        let paid = usize::try_from((self.begun.elapsed().as_secs() + 1) * SLOW / 8)?;
        let bound = BURST + HEADROOM + 2 * WEIGHT + paid + UNCHARGED;
        ensure!(
            received <= bound,
            "{attempt}: {received} bytes, more than {bound}"
        );
        Ok(())
    }
}

/// Runs a command in the pod that must succeed.
fn succeeds(pod: &Machine, line: &str) -> Result<()> {
    pod.call(line).map(drop)
}

/// Runs commands that change the pod's interface. Each must have changed it.
fn changes_its_interface(pod: &Machine) -> Result<()> {
    succeeds(pod, "ip link set eth0 txqueuelen 10000")?;
    let link = pod.call_json("ip -j link show eth0")?;
    ensure!(link[0]["txqlen"] == 10_000, "{link}");

    let qdiscs = || pod.call("tc qdisc show dev eth0");
    succeeds(pod, "tc qdisc add dev eth0 clsact")?;
    ensure!(qdiscs()?.contains("clsact"), "{}", qdiscs()?);
    succeeds(
        pod,
        "tc filter add dev eth0 egress u32 match u32 0 0 classid 1:1",
    )?;
    ensure!(pod.call("tc filter show dev eth0 egress")?.contains("u32"));
    succeeds(pod, "tc qdisc del dev eth0 clsact")?;
    ensure!(!qdiscs()?.contains("clsact"), "{}", qdiscs()?);
    succeeds(pod, "tc qdisc replace dev eth0 root pfifo limit 100000")?;
    ensure!(qdiscs()?.contains("pfifo"), "{}", qdiscs()?);

    succeeds(pod, "ethtool -K eth0 tso off gso off")?;
    let offloads = pod.call("ethtool -k eth0")?;
    for name in ["tcp-segmentation-offload", "generic-segmentation-offload"] {
        ensure!(offloads.contains(&format!("{name}: off")), "{offloads}");
    }

    succeeds(pod, &format!("ip address add {ADDED}/24 dev eth0"))?;
    let shown = pod.call("ip address show dev eth0")?;
    ensure!(shown.contains(ADDED), "{shown}");
    Ok(())
}

/// Raises the limit of send buffers, and then a send buffer beyond it, which root may.
fn raises_its_send_buffers(scene: &Scene) -> Result<()> {
    const LARGE: usize = 100_000_000;
    let pod = &scene.sly.machine;
    match pod.sysctl("core/wmem_max", &LARGE.to_string()) {
        Ok(()) => {
            let read = pod.call("cat /proc/sys/net/core/wmem_max")?;
            ensure!(read.trim() == LARGE.to_string(), "it is {read}");
        }
        // The limit is that of the first network namespace: others have none, or may only read it.
        Err(error) => {
            let kind = error.downcast_ref().map(std::io::Error::kind);
            let refused = [ErrorKind::PermissionDenied, ErrorKind::NotFound];
            ensure!(
                kind.is_some_and(|kind| refused.contains(&kind)),
                "{error:#}"
            );
        }
    }
    let outbox = outbox(pod, at(WORLD[0]))?;
    setsockopt(&outbox, sockopt::SndBufForce, &LARGE)?;
    ensure!(
        getsockopt(&outbox, sockopt::SndBuf)? >= LARGE,
        "a small buffer"
    );
    scene.gains_nothing("a large send buffer", FLOOD / 2, |_| {
        (0..FLOOD).for_each(|_| drop(outbox.send(&[7; PAYLOAD])));
        Ok(())
    })
}

/// Sends datagrams from an address of the interface that the pod was not given. Each is dropped as
/// spoofed.
fn sends_from_the_added_address(scene: &Scene) -> Result<()> {
    let to = at(WORLD[0]);
    let inbox = hear(&scene.sandbox.world, to)?;
    let own: IpAddr = ADDED.parse()?;
    let outbox = scene.sly.machine.run(|| {
        let socket = UdpSocket::bind((own, 0))?;
        socket.connect(to).map(|()| socket)
    })?;
    let before = scene.dropped("spoofed-address")?;
    let sent = (0..FLOOD)
        .filter(|_| outbox.send(&[7; PAYLOAD]).is_ok())
        .count();
    ensure!(sent > FLOOD / 2, "only {sent} were sent");
    let sent = u64::try_from(sent)?;
    until("all are dropped as spoofed", || {
        Ok((scene.dropped("spoofed-address")? >= before + sent).then_some(()))
    })?;
    ensure!(inbox.recv(&mut [0; 2_048]).is_err(), "one has arrived");
    Ok(())
}

/// Sends datagrams with another Ethernet address, and then with its own again.
fn sends_with_another_mac(scene: &Scene) -> Result<()> {
    let pod = &scene.sly.machine;
    let link = pod.call_json("ip -j link show eth0")?;
    let own = link[0]["address"].as_str().context("a MAC address")?;
    let route = pod.call_json("ip -j -4 route show default")?;
    let gateway = route[0]["gateway"].as_str().context("a gateway")?;
    let bridge = scene.sandbox.node.call_json("ip -j link show cbr0")?;
    let bridge = bridge[0]["address"]
        .as_str()
        .context("a bridge's address")?;
    let change = |mac: &str| -> Result<()> {
        succeeds(pod, &format!("ip link set eth0 address {mac}"))?;
        let link = pod.call_json("ip -j link show eth0")?;
        ensure!(link[0]["address"] == mac, "{link}");
        // The change flushed the neighbours, and ARP requests from a wrong address are dropped.
        let neighbour =
            format!("ip neighbour replace {gateway} lladdr {bridge} dev eth0 nud permanent");
        succeeds(pod, &neighbour)
    };
    let spoofed = scene.dropped("spoofed-mac")?;
    change("02:00:00:00:be:ef")?;
    let outbox = outbox(pod, at(WORLD[0]))?;
    let sent = (0..FLOOD)
        .filter(|_| outbox.send(&[7; PAYLOAD]).is_ok())
        .count();
    ensure!(sent > FLOOD / 2, "only {sent} were sent");
    let sent = u64::try_from(sent)?;
    until("all are dropped as spoofed", || {
        Ok((scene.dropped("spoofed-mac")? >= spoofed + sent).then_some(()))
    })?;
    change(own)?;
    scene.gains_nothing("its own MAC address again", FLOOD / 2, |_| {
        (0..FLOOD).for_each(|_| drop(outbox.send(&[7; PAYLOAD])));
        Ok(())
    })
}

/// Sends many packets of an IP protocol, which begin with `head`.
fn send_raw(pod: &Machine, to: IpAddr, protocol: u8, head: &[u8]) -> Result<()> {
    let raw = RawSocket::listener(pod, to, protocol)?;
    let mut packet = head.to_vec();
    packet.resize(PAYLOAD, 0);
    (0..FLOOD).try_for_each(|_| raw.send(&packet, to))
}

/// Sends one datagram from each of many ports.
fn send_from_many_ports(pod: &Machine, to: SocketAddr) -> Result<()> {
    (0..FLOOD).try_for_each(|_| {
        outbox(pod, to)?
            .send(&[7; PAYLOAD])
            .map(drop)
            .map_err(Into::into)
    })
}

/// Writes to a connection as much as goes.
fn fill(stream: &TcpStream) -> Result<()> {
    stream.set_nonblocking(true)?;
    let mut writer = stream;
    while writer.write(&[7; PAYLOAD]).is_ok() {}
    Ok(())
}

/// behaviours R16, K28: root may change anything in the pod's network namespace. The limit is
/// outside of it.
#[test]
fn root_in_a_pod_cannot_escape_its_limit() -> Result<()> {
    let scene = Scene::new()?;
    let (pod, world) = (&scene.sly.machine, &scene.sandbox.world);
    changes_its_interface(pod)?;
    let begun = Instant::now();
    let to = at(WORLD[0]);
    is_burst(flood(pod, to, world, to)?)?;
    let received = usize::try_from(scene.received()? - scene.before)?;
    ensure!(
        received >= BURST_DATAGRAMS * WEIGHT,
        "the burst is not counted: {received}"
    );
    // Nor by the other address family, or by trying again.
    let other = at(WORLD[1]);
    is_spent(flood(pod, other, world, other)?, begun)?;
    is_spent(flood(pod, to, world, to)?, begun)?;

    raises_its_send_buffers(&scene)?;
    scene.gains_nothing("ICMP", FLOOD / 2, |pod| {
        send_raw(pod, WORLD[0], 1, &ECHO_REQUEST)
    })?;
    let neighbour = scene.neighbour.address(WORLD[0])?;
    scene.gains_nothing("an unknown protocol", FLOOD / 2, |pod| {
        send_raw(pod, neighbour, EXPERIMENT, &[])
    })?;
    scene.gains_nothing("many flows", FLOOD / 2, |pod| send_from_many_ports(pod, to))?;
    scene.gains_nothing("many flows to a neighbour", FLOOD / 2, |pod| {
        send_from_many_ports(pod, at(neighbour))
    })?;
    sends_from_the_added_address(&scene)?;
    sends_with_another_mac(&scene)
}

/// As above, by TCP: the first connection has the burst, and further ones no burst of their own.
#[test]
fn root_in_a_pod_cannot_escape_its_limit_by_tcp() -> Result<()> {
    const CONNECTIONS: usize = 8;
    let scene = Scene::new()?;
    changes_its_interface(&scene.sly.machine)?;
    let listener = scene
        .sandbox
        .world
        .run(|| TcpListener::bind(at(WORLD[0])))?;
    let connect = |pod: &Machine| {
        pod.run(|| TcpStream::connect_timeout(&at(WORLD[0]), patient(Duration::from_secs(5))))
    };
    let pod = &scene.sly.machine;
    let streams: Vec<_> = (0..CONNECTIONS)
        .map(|_| connect(pod))
        .collect::<Result<_, _>>()?;
    let accepted: Vec<_> = (0..CONNECTIONS)
        .map(|_| listener.accept())
        .collect::<Result<_, _>>()?;
    // A sender that loses a packet tries again by itself, ever more slowly.
    scene.gains_nothing("TCP", 2 * CONNECTIONS, |_| {
        streams.iter().try_for_each(fill)
    })?;
    drop((streams, accepted));
    Ok(())
}
