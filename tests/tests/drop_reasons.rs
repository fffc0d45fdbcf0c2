//! Each drop reason that traffic can provoke here: its event names pod, packet and reason, and
//! `viaductctl why` explains the same packet with the same reason.

#[path = "drops/provoked.rs"]
mod provoked;
#[path = "admission/scene.rs"]
mod scene;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ::abi::Mac;
use anyhow::{Context as _, Result, ensure};
use e2e::{FrameSender, NODE, PROVOKED, WORLD, until};
use serde_json::json;
use verdict::simulator::frame::{Body, Frame};

use self::provoked::{Listener, Provoked, bare, datagram, forged_mac, ports, tagged};
use self::scene::{HOSTPORT, PORT, REFUSED, Scene, abi, declared};

const EACH_DROP: &str = "--drop-event-interval=1";

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
    let [own6, victim6] = scene.own(1)?;
    let mut headers = Frame::new(abi(own6), abi(victim6), datagram(REFUSED))
        .from_to(scene.sender_mac, scene.victim_mac);
    headers.options = vec![(60, vec![0; 6]); 32];
    let reply = Body::Icmp(0, 0, [0, 7, 0, 1], REFUSED.to_vec());
    let to_world = scene.frame(abi(own), abi(WORLD[0]), scene.bridge_mac, reply);
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
        Provoked::by_pod("too-many-headers", headers.bytes(), bare(own6, victim6)),
        // An answer that no request belongs to.
        Provoked::by_pod("no-flow", to_world, bare(own, WORLD[0])).at("uplink_out"),
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

/// Returns an ICMP error of the world about a packet of the hostport that no flow has sent.
fn error_about_hostport(scene: &Scene) -> Provoked {
    let [node, ..] = NODE;
    let quoted = Frame {
        ethernet: None,
        ..Frame::new(
            abi(node),
            abi(WORLD[0]),
            Body::Udp(HOSTPORT, 50_999, vec![0; 8]),
        )
    };
    let body = Body::Icmp(3, 1, [0; 4], quoted.bytes());
    let frame = scene.outside_to_node(&Frame::new(abi(WORLD[0]), abi(node), body));
    Provoked::by_world("error-without-flow", frame, false, bare(WORLD[0], node))
}

/// Returns a frame of the sender with two tags of VLAN 0, behind which nothing is reported.
fn tagged_twice(scene: &Scene) -> Result<Provoked> {
    let [own, victim] = scene.own(0)?;
    let valid = scene.to_victim(own, victim, REFUSED);
    Ok(Provoked::by_pod(
        "tagged-twice",
        tagged(&tagged(&valid, 0), 0),
        None,
    ))
}

/// Packets that settings of a network forbid.
fn of_networks() -> Result<Vec<(Scene, Provoked)>> {
    let with = |key, value| Scene::with(&[EACH_DROP], &declared().with(key, value));
    let closed = with("directAccess", json!(false))?;
    let [_, victim] = closed.own(0)?;
    let direct = closed.frame_of_world(WORLD[0], victim, PORT, REFUSED);
    let direct = Provoked::by_world("direct-access", direct, true, ports(WORLD[0], victim));
    let isolated = with("ingressPolicy", json!("isolated"))?;
    let [own, victim] = isolated.own(0)?;
    let policy = isolated.to_victim(own, victim, REFUSED);
    let policy = Provoked::by_pod("ingress-policy", policy, ports(own, victim));
    Ok(vec![(closed, direct), (isolated, policy)])
}

/// A packet without ports whose replies could not be told from those of another pod.
fn of_clash(scene: &Scene) -> Result<Provoked> {
    const GRE: u8 = 47;
    let [own, victim] = scene.own(0)?;
    let frame = |from: IpAddr, mac| {
        let body = Body::Other(GRE, REFUSED.to_vec());
        let frame = Frame::new(abi(from), abi(WORLD[0]), body);
        frame.from_to(mac, scene.bridge_mac).bytes()
    };
    let other = FrameSender::new(&scene.victim.machine, "eth0", scene.gateways[0])?;
    other.send(&frame(victim, scene.victim_mac))?;
    until("the other pod has a flow", || {
        let flows = scene.agent.get("/v1/flows?protocol=47")?;
        Ok((flows["matching"] == 1).then_some(()))
    })?;
    let clashing = frame(own, scene.sender_mac);
    Ok(Provoked::by_pod("nat-clash", clashing, bare(own, WORLD[0])).at("uplink_out"))
}

#[test]
fn each_provoked_drop_is_an_event_and_explained_with_the_same_reason() -> Result<()> {
    let mut provoked = BTreeSet::new();
    let mut check = |scene: &Scene, listener: &Listener, one: &Provoked| {
        provoked.insert(one.reason);
        one.check(scene, listener).context(one.reason)
    };
    let scene = Scene::new(&[EACH_DROP])?;
    let listener = Listener::start(&scene)?;
    let last = [error_about_hostport(&scene)];
    for one in of_pod(&scene)?
        .iter()
        .chain(&of_world(&scene)?)
        .chain(&last)
    {
        check(&scene, &listener, one)?;
    }
    check(&scene, &listener, &of_clash(&scene)?)?;
    for (scene, one) in &of_networks()? {
        check(scene, &Listener::start(scene)?, one)?;
    }
    check(&scene, &listener, &tagged_twice(&scene)?)?;
    let listed: BTreeSet<&str> = PROVOKED.iter().map(|reason| reason.name()).collect();
    ensure!(provoked == listed, "{provoked:?}, but listed: {listed:?}");
    Ok(())
}
