//! Each drop reason that traffic can provoke here: its event names pod, packet and reason, and
//! `viaductctl why` explains the same packet with the same reason.

#[path = "drop_reasons/fragments.rs"]
mod fragments;
#[path = "drops/provoked.rs"]
mod provoked;
#[path = "admission/scene.rs"]
mod scene;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ::abi::{DropReason as R, Mac};
use anyhow::Result;
use e2e::{DropListener, FrameSender, NODE, WORLD, are_all_provoked, bare_ends, until};
use serde_json::json;
use verdict::simulator::frame::{Body, Frame};

use self::provoked::{Provoked, datagram, forged_mac, listen, ports, tagged};
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
        Provoked::by_pod(R::SpoofedMac, forged_mac(scene)?, ports(own, victim)),
        Provoked::by_pod(
            R::SpoofedAddress,
            scene.to_victim(other, victim, REFUSED),
            ports(other, victim),
        ),
        Provoked::by_pod(
            R::Martian,
            scene.to_gateway(own, loopback, REFUSED),
            ports(own, loopback),
        ),
        Provoked::by_pod(R::UnknownVlan, tagged(&valid, 5), ports(own, victim)),
        Provoked::by_pod(R::TooManyHeaders, headers.bytes(), bare_ends(own6, victim6)),
        // An answer that no request belongs to.
        Provoked::by_pod(R::NoFlow, to_world, bare_ends(own, WORLD[0])).at("uplink_out"),
        Provoked::by_pod(R::ForeignFrame, foreign, None),
        Provoked::by_pod(R::Malformed, malformed, bare_ends(own, victim)),
        Provoked::by_pod(R::TinyFragment, tiny, ports(own, victim)),
        Provoked::by_pod(
            R::RogueRouter,
            scene.frame(abi(own), abi(victim), scene.victim_mac, icmp(9)),
            bare_ends(own, victim),
        ),
        Provoked::by_pod(
            R::RogueDhcp,
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
            R::SpoofedFromOutside,
            frame(own, victim),
            true,
            ports(own, victim),
        ),
        Provoked::by_world(
            R::Martian,
            frame(loopback, to_node),
            false,
            ports(loopback, to_node),
        ),
        Provoked::by_world(R::Malformed, malformed, true, ports(WORLD[0], victim)),
        Provoked::by_world(
            R::UnknownPod,
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
    Provoked::by_world(R::ErrorWithoutFlow, frame, false, bare_ends(WORLD[0], node))
}

/// Limits the sender to a rate that packets of this length exceed for minutes, and returns some of
/// them.
fn beyond_limit(scene: &Scene) -> Result<Provoked> {
    let limit = format!("limit {} --egress 1k", scene.sender.id());
    scene.agent.ctl(&limit)?;
    let [own, victim] = scene.own(0)?;
    let frame = |port| {
        let body = Body::Udp(port, PORT, vec![0; 1_200]);
        scene.frame(abi(own), abi(victim), scene.victim_mac, body)
    };
    // Packets of many low-rate flows use up what these may have beyond the limit.
    let others = (20_000..20_100).map(frame);
    let flood = (0..200).map(|_| frame(41_000));
    let last = Provoked::by_pod(R::RateLimit, frame(41_000), ports(own, victim));
    Ok(last.after(others.chain(flood)))
}

/// Returns a frame of the sender with two tags of VLAN 0, behind which nothing is reported.
fn tagged_twice(scene: &Scene) -> Result<Provoked> {
    let [own, victim] = scene.own(0)?;
    let valid = scene.to_victim(own, victim, REFUSED);
    Ok(Provoked::by_pod(
        R::TaggedTwice,
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
    let direct = Provoked::by_world(R::DirectAccess, direct, true, ports(WORLD[0], victim));
    let isolated = with("ingressPolicy", json!("isolated"))?;
    let [own, victim] = isolated.own(0)?;
    let policy = isolated.to_victim(own, victim, REFUSED);
    let policy = Provoked::by_pod(R::IngressPolicy, policy, ports(own, victim));
    let internal = with("internal", json!(true))?;
    let [own, _] = internal.own(0)?;
    let leaving = internal.to_gateway(own, WORLD[0], REFUSED);
    let leaving = Provoked::by_pod(R::InternalNetwork, leaving, ports(own, WORLD[0]));
    Ok(vec![
        (closed, direct),
        (isolated, policy),
        (internal, leaving),
    ])
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
    Ok(Provoked::by_pod(R::NatClash, clashing, bare_ends(own, WORLD[0])).at("uplink_out"))
}

#[test]
fn each_provoked_drop_is_an_event_and_explained_with_the_same_reason() -> Result<()> {
    let scene = Scene::new(&[EACH_DROP])?;
    let listener = listen(&scene)?;
    let mut provoked = BTreeSet::new();
    let mut check = |scene: &Scene, listener: &DropListener, one: &Provoked| {
        provoked.insert(one.reason().name());
        one.check(scene, listener)
    };
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
        check(scene, &listen(scene)?, one)?;
    }
    check(&scene, &listener, &tagged_twice(&scene)?)?;
    let limited = Scene::new(&[EACH_DROP])?;
    check(&limited, &listen(&limited)?, &beyond_limit(&limited)?)?;
    provoked.extend(fragments::check(&scene, &listener)?);
    are_all_provoked("drop_reasons", &provoked)
}
