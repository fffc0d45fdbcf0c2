//! Dropped packets are explained: counters by pod and reason, the pods that lose packets in the
//! status, and an event for each drop reason that traffic can provoke here.

#[path = "admission/scene.rs"]
mod scene;

use std::net::IpAddr;

use ::abi::{Address, Mac};
use anyhow::{Context as _, Result, ensure};
use e2e::{FrameFlood, FrameSender, NODE, Pod, Process, SOCKET, WORLD, until};
use serde_json::{Value, json};
use verdict::simulator::frame::{Body, Frame};

use self::scene::{PORT, REFUSED, Scene, abi, declared};

/// A MAC address that no pod has.
const FORGED: Mac = Mac::new([2, 0, 0, 0, 0, 0x77]);

/// Returns the counters of a pod.
fn counters(scene: &Scene, pod: &Pod) -> Result<Value> {
    let views = scene.agent.get(&format!("/v1/attachments/{}", pod.id()))?;
    Ok(views[0]["counters"].clone())
}

/// Returns a frame of the sender with a forged source MAC address.
fn forged_mac(scene: &Scene) -> Result<Vec<u8>> {
    let [own, victim] = scene.own(0)?;
    let body = Body::Udp(41_000, PORT, REFUSED.to_vec());
    let frame = Frame::new(abi(own), abi(victim), body);
    Ok(frame.from_to(FORGED, scene.victim_mac).bytes())
}

#[test]
fn drops_are_counted_for_the_pod_that_a_packet_was_from_or_for() -> Result<()> {
    let scene = Scene::new(&[])?;
    let forged = forged_mac(&scene)?;
    let [own, victim] = scene.own(0)?;
    // From outside, with a pod's address as the source.
    let outside = scene.frame_of_world(own, victim, PORT, REFUSED);
    for _ in 0..7 {
        scene.inside.send(&forged)?;
        scene.outside.send(&outside)?;
    }
    for (pod, reason, dropped) in [
        (&scene.sender, "spoofed-mac", "tx_dropped"),
        (&scene.victim, "spoofed-from-outside", "rx_dropped"),
    ] {
        let counters = until(&format!("7 packets are counted as {reason}"), || {
            let counters = counters(&scene, pod)?;
            Ok((counters["drops"][reason] == 7).then_some(counters))
        })?;
        let drops = counters["drops"].as_object().context("no drops")?;
        let sum: u64 = drops.values().filter_map(Value::as_u64).sum();
        let both = ["rx_dropped", "tx_dropped"].map(|key| counters[key].as_u64().unwrap_or(0));
        ensure!(sum == both.iter().sum::<u64>(), "{counters}");
        ensure!(counters[dropped].as_u64() >= Some(7), "{counters}");
    }
    let metrics = scene.sandbox.node.call(&format!(
        "curl --silent --fail --unix-socket {SOCKET} http://viaduct/metrics"
    ))?;
    let series = format!(
        "container=\"{}\",ifname=\"eth0\",reason=\"spoofed-mac\"}} 7",
        scene.sender.id()
    );
    ensure!(metrics.contains(&series), "{series} is not in {metrics}");
    Ok(())
}

#[test]
fn the_status_names_a_pod_that_loses_packets_with_the_reason_and_advice() -> Result<()> {
    let scene = Scene::new(&[])?;
    let forged = forged_mac(&scene)?;
    // The agent reads the counters every five seconds: these drops must be within two reads.
    let text = until("the status names the sender", || {
        scene.inside.send(&forged)?;
        let text = scene.agent.ctl("status")?;
        Ok(text.contains("Losses").then_some(text))
    })?;
    ensure!(text.contains("mainly spoofed-mac"), "{text}");
    ensure!(
        text.contains(::abi::DropReason::SpoofedMac.advice()),
        "{text}"
    );
    let list = scene.agent.ctl("list")?;
    ensure!(list.contains("DROPS"), "{list}");
    Ok(())
}

/// A client of `GET /v1/drops`, which runs until the end of the test.
struct Listener(Process);

impl Listener {
    /// Starts to listen, and waits until the datapath reports to it.
    fn start(scene: &Scene) -> Result<Self> {
        let listener = Self(scene.agent.follow_drops()?);
        let probe = Frame::new(
            abi(WORLD[0]),
            Address::v4([127, 0, 0, 9]),
            datagram(b"probe"),
        );
        let probe = scene.outside_to_node(&probe);
        until("the datapath reports to the agent", || {
            scene.outside.send(&probe)?;
            let is_probe = |event: &Value| event["packet"]["destination"] == "127.0.0.9:7000";
            Ok(listener.events()?.iter().any(is_probe).then_some(()))
        })?;
        Ok(listener)
    }

    fn events(&self) -> Result<Vec<Value>> {
        let output = self.0.output();
        // The last line may not be complete yet.
        let whole = output.rsplit_once('\n').map_or("", |(lines, _)| lines);
        whole
            .lines()
            .map(|line| Ok(serde_json::from_str(line)?))
            .collect()
    }

    /// Waits for an event that `is_wanted`, and returns it.
    fn until(&self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let found = until(what, || {
            Ok(self.events()?.into_iter().find(|it| is_wanted(it)))
        });
        found.with_context(|| self.0.output())
    }
}

fn datagram(payload: &[u8]) -> Body {
    Body::Udp(41_000, PORT, payload.to_vec())
}

/// A packet that is dropped, and what its event must say.
struct Provoked {
    reason: &'static str,
    hook: &'static str,
    /// Whether the pod is the victim; `None` where no pod is known.
    is_victim: Option<bool>,
    from_world: bool,
    frame: Vec<u8>,
    /// Source and destination; `None` where the packet has no addresses.
    ends: Option<[String; 2]>,
}

impl Provoked {
    /// A packet of the sender.
    fn by_pod(reason: &'static str, frame: Vec<u8>, ends: impl Into<Option<[String; 2]>>) -> Self {
        Self {
            reason,
            hook: "from_pod",
            is_victim: Some(false),
            from_world: false,
            frame,
            ends: ends.into(),
        }
    }

    /// A packet of the world for the victim, or for no pod.
    fn by_world(
        reason: &'static str,
        frame: Vec<u8>,
        is_for_victim: bool,
        ends: [String; 2],
    ) -> Self {
        Self {
            hook: "uplink_in",
            is_victim: is_for_victim.then_some(true),
            from_world: true,
            ..Self::by_pod(reason, frame, ends)
        }
    }

    fn check(&self, scene: &Scene, listener: &Listener) -> Result<()> {
        let sender = if self.from_world {
            &scene.outside
        } else {
            &scene.inside
        };
        sender.send(&self.frame)?;
        let ends = self.ends.as_ref().map_or(
            Value::Null,
            |[source, destination]| json!({ "source": source, "destination": destination }),
        );
        let what = format!("an event of {} with {ends}", self.reason);
        let event = listener.until(&what, |event| {
            event["reason"] == self.reason && event["packet"] == ends
        })?;
        let pod = self.is_victim.map(|is_victim| {
            if is_victim {
                scene.victim.id()
            } else {
                scene.sender.id()
            }
        });
        ensure!(event["containerID"].as_str() == pod, "{event}");
        ensure!(event["hook"] == self.hook, "{event}");
        ensure!(event["count"].as_u64() >= Some(1), "{event}");
        let known = ::abi::DropReason::ALL
            .into_iter()
            .find(|it| it.name() == self.reason);
        ensure!(
            event["advice"].as_str() == known.map(::abi::DropReason::advice),
            "{event}"
        );
        Ok(())
    }
}

/// Returns source and destination of a datagram as events show them.
fn ports(from: IpAddr, to: IpAddr) -> [String; 2] {
    [format!("{from}:41000"), format!("{to}:{PORT}")]
}

fn bare(from: IpAddr, to: IpAddr) -> [String; 2] {
    [from.to_string(), to.to_string()]
}

/// Puts a VLAN tag into a frame.
fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
    let [high, low] = vlan.to_be_bytes();
    [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat()
}

/// Packets of the sender that its node drops.
fn of_pod(scene: &Scene) -> Result<Vec<Provoked>> {
    let [own, victim] = scene.own(0)?;
    let valid = scene.to_victim(own, victim, REFUSED);
    let other: IpAddr = "10.244.1.77".parse()?;
    let loopback: IpAddr = "127.0.0.1".parse()?;
    let icmp = |icmp_type| Body::Icmp(icmp_type, 0, [0; 4], REFUSED.to_vec());
    let mut foreign = valid.clone();
    foreign[12..14].copy_from_slice(&[0x88, 0xcc]);
    let mut malformed = valid.clone();
    malformed[14] = 0x41;
    let mut tiny = valid.clone();
    // More fragments, and 4 bytes of the transport header.
    tiny[20] = 0x20;
    tiny.truncate(38);
    tiny[16..18].copy_from_slice(&24_u16.to_be_bytes());
    fix_checksum(&mut tiny);
    let dhcp = Body::Udp(67, 68, REFUSED.to_vec());
    let broadcast: IpAddr = "255.255.255.255".parse()?;
    let all = [
        Provoked::by_pod("spoofed-mac", forged_mac(scene)?, ports(own, victim)),
        Provoked::by_pod(
            "spoofed-address",
            scene.to_victim(other, victim, REFUSED),
            ports(other, victim),
        ),
        Provoked::by_pod(
            "martian",
            scene.to_gateway(own, loopback, REFUSED),
            ports(own, loopback),
        ),
        Provoked::by_pod("unknown-vlan", tagged(&valid, 5), ports(own, victim)),
        Provoked::by_pod("foreign-frame", foreign, None),
        Provoked::by_pod("malformed", malformed, bare(own, victim)),
        Provoked::by_pod("tiny-fragment", tiny, ports(own, victim)),
        Provoked::by_pod(
            "rogue-router",
            scene.frame(abi(own), abi(victim), scene.victim_mac, icmp(9)),
            bare(own, victim),
        ),
        Provoked::by_pod(
            "rogue-dhcp",
            scene.frame(abi(own), abi(broadcast), Mac::new([255; 6]), dhcp),
            [format!("{own}:67"), format!("{broadcast}:68")],
        ),
    ];
    Ok(all.into())
}

/// Corrects the checksum of the IPv4 header of a frame.
fn fix_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let words = frame[14..34].chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let [_, _, high, low] = (!fold(fold(sum))).to_be_bytes();
    frame[24..26].copy_from_slice(&[high, low]);
}

/// Packets of the world that the node drops.
fn of_world(scene: &Scene) -> Result<Vec<Provoked>> {
    let [own, victim] = scene.own(0)?;
    let loopback: IpAddr = "127.0.0.1".parse()?;
    let unassigned: IpAddr = "10.244.1.99".parse()?;
    let frame = |from, to| scene.frame_of_world(from, to, PORT, REFUSED);
    let [to_node, ..] = NODE;
    let mut malformed = frame(WORLD[0], victim);
    malformed[24] ^= 0xff;
    Ok(vec![
        Provoked::by_world(
            "spoofed-from-outside",
            frame(own, victim),
            true,
            ports(own, victim),
        ),
        Provoked::by_world(
            "martian",
            frame(loopback, to_node),
            false,
            ports(loopback, to_node),
        ),
        Provoked::by_world("malformed", malformed, true, ports(WORLD[0], victim)),
        Provoked::by_world(
            "unknown-pod",
            frame(WORLD[0], unassigned),
            false,
            ports(WORLD[0], unassigned),
        ),
    ])
}

#[test]
fn an_event_of_each_provoked_drop_names_pod_packet_and_reason() -> Result<()> {
    let scene = Scene::new(&["--drop-event-interval=1"])?;
    let listener = Listener::start(&scene)?;
    for provoked in of_pod(&scene)?.into_iter().chain(of_world(&scene)?) {
        provoked.check(&scene, &listener).context(provoked.reason)?;
    }
    Ok(())
}

#[test]
fn drops_of_closed_networks_and_of_the_ingress_policy_are_events() -> Result<()> {
    let closed = declared().with("directAccess", json!(false));
    let scene = Scene::with(&["--drop-event-interval=1"], &closed)?;
    let listener = Listener::start(&scene)?;
    let [_, victim] = scene.own(0)?;
    let frame = scene.frame_of_world(WORLD[0], victim, PORT, REFUSED);
    let ends = ports(WORLD[0], victim);
    Provoked::by_world("direct-access", frame, true, ends).check(&scene, &listener)?;

    let isolated = declared().with("ingressPolicy", json!("isolated"));
    let scene = Scene::with(&["--drop-event-interval=1"], &isolated)?;
    let listener = Listener::start(&scene)?;
    let [own, victim] = scene.own(0)?;
    let frame = scene.to_victim(own, victim, REFUSED);
    Provoked::by_pod("ingress-policy", frame, ports(own, victim)).check(&scene, &listener)
}

#[test]
fn a_flood_of_one_pod_hides_no_drop_of_another() -> Result<()> {
    let scene = Scene::new(&[])?;
    let listener = Listener::start(&scene)?;
    let forged = forged_mac(&scene)?;
    let sender = FrameSender::new(&scene.sender.machine, "eth0", scene.gateways[0])?;
    let flood = FrameFlood::start(sender, move |_| forged.clone());
    listener.until("an event stands for many packets of the flood", |event| {
        event["reason"] == "spoofed-mac" && event["count"].as_u64() > Some(50)
    })?;
    // One packet of the other pod, for the same reason.
    let [own, victim] = scene.own(0)?;
    let frame = Frame::new(abi(victim), abi(own), datagram(REFUSED))
        .from_to(FORGED, scene.sender_mac)
        .bytes();
    let single = FrameSender::new(&scene.victim.machine, "eth0", scene.gateways[0])?;
    single.send(&frame)?;
    let event = listener.until("the drop of the other pod is an event", |event| {
        event["containerID"] == scene.victim.id() && event["reason"] == "spoofed-mac"
    })?;
    ensure!(event["count"] == 1, "{event}");
    flood.end()?;
    // The flood has cost few events: ten a second.
    let events = listener.events()?;
    let of_flood: Vec<_> = events
        .iter()
        .filter(|it| it["containerID"] == scene.sender.id() && it["reason"] == "spoofed-mac")
        .collect();
    let span = of_flood.last().zip(of_flood.first()).map(|(last, first)| {
        last["at_ms"].as_u64().unwrap_or(0) - first["at_ms"].as_u64().unwrap_or(0)
    });
    let most = span.unwrap_or(0) / 100 + 2;
    ensure!(
        of_flood.len() as u64 <= most,
        "{} events, at most {most}",
        of_flood.len()
    );
    Ok(())
}

#[test]
fn viaductctl_drops_prints_what_has_just_been_dropped_with_advice() -> Result<()> {
    let scene = Scene::new(&[])?;
    let listener = Listener::start(&scene)?;
    scene.inside.send(&forged_mac(&scene)?)?;
    listener.until("the drop is an event", |event| {
        event["reason"] == "spoofed-mac"
    })?;
    let text = scene.agent.ctl("drops --for 0 --reason spoofed-mac")?;
    let [own, victim] = scene.own(0)?;
    for part in [
        "from_pod@veth",
        "spoofed-mac",
        &format!("udp {own}:41000 -> {victim}:{PORT}"),
        ::abi::DropReason::SpoofedMac.advice(),
    ] {
        ensure!(text.contains(part), "{part} is not in {text}");
    }
    let none = scene.agent.ctl("drops --for 0 --reason nat-clash")?;
    ensure!(none.starts_with("No dropped packets."), "{none}");
    Ok(())
}
