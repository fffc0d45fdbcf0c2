//! What a pod and the world may send at all: frames are built byte by byte, and what arrives in the
//! receiving namespace decides (decision 101).

#[path = "admission/scene.rs"]
mod scene;

use std::net::IpAddr;

use anyhow::{Result, ensure};
use e2e::{
    Config, FrameCapture, FrameFlood, FrameSender, GATEWAYS, Mapping, NODE, WORLD, contains,
};
use serde_json::json;

use self::scene::{HOSTPORT, MARKER, MODES, PORT, REFUSED, Scene, declared};

/// A tag on the wire: `EtherType` and VLAN identifier.
type Tag = (u16, u16);

/// Stacks of tags behind which a Linux receiver finds the packet: all are of VLAN 0.
const RECEIVED: [&[Tag]; 5] = [
    &[(0x8100, 0), (0x8100, 0)],
    &[(0x88a8, 0), (0x8100, 0)],
    &[(0x8100, 0), (0x88a8, 0)],
    &[(0x88a8, 0), (0x88a8, 0)],
    &[(0x8100, 0), (0x8100, 0), (0x8100, 0)],
];
/// Other tags that no network of these tests is configured for.
const OTHERS: [&[Tag]; 7] = [
    &[(0x8100, 5)],
    &[(0x88a8, 5)],
    &[(0x9100, 0)],
    &[(0x9300, 7), (0x8100, 0)],
    &[(0x8100, 0), (0x9200, 0)],
    &[(0x8100, 5), (0x8100, 0)],
    &[(0x8100, 0), (0x8100, 5)],
];

/// Returns a frame with these tags in front of its `EtherType`.
fn tagged(tags: &[Tag], frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame[..12].to_vec();
    for (ethertype, vlan) in tags {
        bytes.extend(ethertype.to_be_bytes());
        bytes.extend(vlan.to_be_bytes());
    }
    bytes.extend(&frame[12..]);
    bytes
}

/// CVE-2021-27853: two tags of VLAN 0 hide a packet from a filter that removes one.
#[test]
fn frames_with_stacked_tags_reach_no_other_pod() -> Result<()> {
    for mode in MODES {
        let scene = Scene::new(&[mode])?;
        for family in [0, 1] {
            let [own, victim] = scene.own(family)?;
            let mut frames = Vec::new();
            for tags in RECEIVED.into_iter().chain(OTHERS) {
                for source in [own, victim, GATEWAYS[family], WORLD[family]] {
                    let direct = scene.to_victim(source, victim, REFUSED);
                    let routed = scene.to_gateway(source, victim, REFUSED);
                    frames.extend([tagged(tags, &direct), tagged(tags, &routed)]);
                }
            }
            scene.must_not_reach_victim(&frames)?;
        }
        for reason in ["tagged-twice", "unknown-vlan"] {
            ensure!(scene.drops(reason)? > 0, "{mode}: {reason}");
        }
    }
    Ok(())
}

/// ARP behind two tags would change the neighbour entries of pods and of the node.
#[test]
fn arp_behind_stacked_tags_changes_no_neighbour_entry() -> Result<()> {
    let scene = Scene::new(&[])?;
    let [_, victim] = scene.own(0)?;
    let (IpAddr::V4(gateway), IpAddr::V4(victim_v4)) = (GATEWAYS[0], victim) else {
        anyhow::bail!("IPv4 addresses");
    };
    e2e::ping(&scene.victim.machine, GATEWAYS[0], 1)?;
    e2e::ping(&scene.sandbox.node, victim, 1)?;
    let reply = |claimed: [u8; 4], to: abi::Mac, target: [u8; 4]| {
        let (own, to) = (scene.sender_mac.bytes(), to.bytes());
        let kind = [0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2];
        [&to[..], &own, &kind, &own, &claimed, &to, &target].concat()
    };
    let frames = [
        reply(gateway.octets(), scene.victim_mac, victim_v4.octets()),
        reply(victim_v4.octets(), scene.bridge_mac, gateway.octets()),
    ];
    for tags in RECEIVED {
        for frame in &frames {
            scene.inside.send(&tagged(tags, frame))?;
        }
    }
    scene.must_not_reach_victim(&[])?;
    let entry = |machine: &e2e::Machine, link: &str, of: IpAddr| {
        machine.call(&format!("ip neigh show {of} dev {link}"))
    };
    let own = scene
        .sender_mac
        .bytes()
        .map(|byte| format!("{byte:02x}"))
        .join(":");
    for text in [
        entry(&scene.victim.machine, "eth0", GATEWAYS[0])?,
        entry(&scene.sandbox.node, "cbr0", victim)?,
    ] {
        ensure!(text.contains("lladdr") && !text.contains(&own), "{text}");
    }
    scene.await_drops("tagged-twice", 10)
}

/// Frames of other protocols, each with an IP packet somewhere inside.
fn foreign_frames(scene: &Scene, packet: &[u8]) -> Vec<Vec<u8>> {
    let header = |to: [u8; 6]| [&to[..], &scene.sender_mac.bytes()].concat();
    let length = u16::try_from(packet.len() + 8)
        .unwrap_or(u16::MAX)
        .to_be_bytes();
    let kinds: [&[u8]; 11] = [
        // LLC with SNAP, as for IP over IEEE 802 (RFC 1042), and with a bridge's protocol.
        &[length[0], length[1], 0xaa, 0xaa, 3, 0, 0, 0, 8, 0],
        &[length[0], length[1], 0xaa, 0xaa, 3, 0, 0, 0xf8, 8, 0],
        // STP, and raw 802.3.
        &[length[0], length[1], 0x42, 0x42, 3],
        &[length[0], length[1], 0xff, 0xff],
        // RARP, MPLS, PPPoE, LLDP, EAPOL, MACsec.
        &[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 4],
        &[0x88, 0x47, 0, 0, 1, 0xff],
        &[0x88, 0x64, 0x11, 0, 0, 1, length[0], length[1], 0, 0x21],
        &[0x88, 0x63, 0x11, 9, 0, 0, 0, 0],
        &[0x88, 0xcc],
        &[0x88, 0x8e],
        &[0x88, 0xe5, 0, 0, 0, 0, 0, 0],
    ];
    let mut frames = Vec::new();
    for to in [
        scene.victim_mac.bytes(),
        [0xff; 6],
        [1, 0x80, 0xc2, 0, 0, 0xe],
    ] {
        for kind in kinds {
            let bytes = [&header(to), kind, packet].concat();
            frames.push(bytes);
        }
    }
    frames
}

#[test]
fn frames_of_other_protocols_reach_no_other_pod() -> Result<()> {
    for mode in MODES {
        let scene = Scene::new(&[mode])?;
        for family in [0, 1] {
            let [own, victim] = scene.own(family)?;
            let packet = scene.to_victim(own, victim, REFUSED).split_off(14);
            let frames = foreign_frames(&scene, &packet);
            let before = scene.drops("foreign-frame")?;
            scene.must_not_reach_victim(&frames)?;
            // Each is sent ten times.
            scene.await_drops("foreign-frame", before + 10 * frames.len() as u64)?;
        }
    }
    Ok(())
}

/// `macspoofchk: false` switches the list off with the other checks.
#[test]
fn pods_without_a_spoof_check_send_any_frame() -> Result<()> {
    let config = declared().with("macspoofchk", json!(false));
    let scene = Scene::with(&[], &config)?;
    let capture = FrameCapture::start(&scene.victim.machine)?;
    let header = [scene.victim_mac.bytes(), scene.sender_mac.bytes()].concat();
    let [own, victim] = scene.own(0)?;
    let packet = scene.to_victim(own, victim, REFUSED);
    let frames = [
        [&header, &[0x88, 0xcc][..], REFUSED].concat(),
        [&header, &[0x88, 0x47, 0, 0, 1, 0xff][..], REFUSED].concat(),
        tagged(&[(0x8100, 5)], &packet),
        tagged(&[(0x8100, 0), (0x8100, 0)], &packet),
    ];
    for frame in frames {
        scene.inside.send(&frame)?;
        capture.until(REFUSED)?;
    }
    Ok(())
}

/// With the XDP prefilter as well, which sees the tags among the bytes.
#[test]
fn frames_of_the_world_with_stacked_tags_reach_no_pod() -> Result<()> {
    for flags in [MODES[0], MODES[1], "--xdp-guard=native"] {
        let scene = Scene::new(&[flags])?;
        for family in [0, 1] {
            let [own, victim] = scene.own(family)?;
            let mut frames = Vec::new();
            for tags in RECEIVED {
                for source in [own, WORLD[family], NODE[family], GATEWAYS[family]] {
                    for (to, port) in [(NODE[family], HOSTPORT), (victim, PORT)] {
                        let frame = scene.frame_of_world(source, to, port, REFUSED);
                        frames.push(tagged(tags, &frame));
                    }
                }
            }
            scene.must_not_enter(&frames)?;
        }
        ensure!(scene.drops("tagged-twice")? > 0, "{flags}");
    }
    Ok(())
}

/// Frames that are sent before each DEL.
const BEFORE: u64 = 100;

/// While a DEL removes the rows of a pod, nothing that the pod forges passes.
#[test]
fn no_forged_frame_passes_while_a_del_runs() -> Result<()> {
    let mut scene = Scene::new(&[])?;
    let capture = FrameCapture::start(&scene.victim.machine)?;
    for round in 0..6 {
        let [_, victim] = scene.own(0)?;
        let frame = scene.to_victim(GATEWAYS[0], victim, REFUSED);
        let sender = FrameSender::new(&scene.sender.machine, "eth0", GATEWAYS[0])?;
        let flood = FrameFlood::start(sender, move |_| frame.clone());
        flood.await_sent(BEFORE)?;
        scene.sender.del()?.success()?;
        // The interface is gone: the sender has failed, or ends before its next frame.
        let _ended = flood.end();
        let config = Config::new("1.1.0").publish(&Mapping::both(9000 + round, PORT));
        scene.sender.add_with(config)?.success()?;
        scene.reopen()?;
    }
    let [own, victim] = scene.own(0)?;
    scene.inside.send(&scene.to_victim(own, victim, MARKER))?;
    let seen = capture.until(MARKER)?;
    let forged = seen.iter().filter(|it| contains(it, REFUSED)).count();
    assert_eq!(forged, 0, "of {} frames", seen.len());
    Ok(())
}
