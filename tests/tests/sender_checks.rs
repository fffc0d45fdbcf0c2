//! Addresses and roles that a pod does not have: forged neighbour discovery, router and DHCP
//! messages are built byte by byte, and what the other pod receives and believes decides
//! (decision 102).

#[path = "admission/scene.rs"]
mod scene;

use ::abi::{Address, Mac};
use anyhow::{Context as _, Result, ensure};
use e2e::{FrameCapture, GATEWAYS, ping};
use serde_json::json;
use verdict::address::link_local_of;
use verdict::simulator::frame::Body;

use self::scene::{MODES, PORT, REFUSED, Scene, abi, declared};

const ALL_NODES: Mac = Mac::new([0x33, 0x33, 0, 0, 0, 1]);

fn parse(text: &str) -> Address {
    abi(text.parse().unwrap_or_else(|_| panic!("{text}")))
}

/// An unknown option with the payload, which receivers of neighbour discovery skip.
fn mark() -> Vec<u8> {
    let mut option = [&[253, 3], REFUSED].concat();
    option.resize(24, 0);
    option
}

/// Neighbour discovery for a target, with a MAC address as the option `kind`.
fn discovery(icmp_type: u8, flags: u8, target: Address, kind: u8, mac: Mac) -> Body {
    let option = [&[kind, 1], &mac.bytes()[..]].concat();
    let rest = [&target.bytes()[..], &option, &mark()].concat();
    Body::Icmp(icmp_type, 0, [flags, 0, 0, 0], rest)
}

fn icmp(icmp_type: u8) -> Body {
    Body::Icmp(icmp_type, 0, [0; 4], mark())
}

/// An IGMP message for 224.0.0.251, with the payload and a valid checksum.
fn igmp(kind: u8) -> Vec<u8> {
    let mut bytes = [&[kind, 0, 0, 0, 224, 0, 0, 251], REFUSED, &[0]].concat();
    let words = bytes
        .chunks_exact(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let [_, _, high, low] = (!fold(fold(sum))).to_be_bytes();
    bytes[2..4].copy_from_slice(&[high, low]);
    bytes
}

fn datagram(from: u16, to: u16) -> Body {
    Body::Udp(from, to, REFUSED.to_vec())
}

/// A forged frame, and the reason that it is dropped for.
type Forged = (Vec<u8>, &'static str);

/// Frames with link-local addresses that are not the sender's, as source or as target.
fn forged_addresses(scene: &Scene) -> Result<Vec<Forged>> {
    let own = link_local_of(scene.sender_mac);
    let [own_v6, victim_v6] = scene.own(1)?.map(abi);
    let (all, unspecified) = (parse("ff02::1"), Address::v6([0; 16]));
    let foreign = [
        link_local_of(scene.bridge_mac),
        link_local_of(scene.victim_mac),
        parse("fe80::1"),
        abi(scene.gateways[1]),
        victim_v6,
    ];
    let mac = scene.sender_mac;
    let mut frames = Vec::new();
    for other in foreign {
        for (source, body) in [
            (own, discovery(136, 0x20, other, 2, mac)),
            (own_v6, discovery(136, 0x60, other, 2, mac)),
            (unspecified, discovery(135, 0, other, 1, mac)),
            (other, discovery(135, 0, victim_v6, 1, mac)),
            (other, icmp(143)),
            (other, icmp(132)),
            (other, icmp(133)),
            (other, Body::Icmp(128, 0, [0, 7, 0, 7], REFUSED.to_vec())),
            (other, datagram(5353, 5353)),
        ] {
            for to_mac in [ALL_NODES, scene.victim_mac] {
                frames.push((
                    scene.frame(source, all, to_mac, body.clone()),
                    "spoofed-address",
                ));
            }
        }
    }
    // Its own addresses, at the MAC address of another machine.
    for (icmp_type, kind) in [(133, 1), (135, 1), (136, 2), (136, 1)] {
        for mac in [scene.victim_mac, scene.bridge_mac] {
            let body = discovery(icmp_type, 0x20, own, kind, mac);
            let body = if icmp_type == 133 {
                solicitation(mac)
            } else {
                body
            };
            frames.push((scene.frame(own, all, ALL_NODES, body), "spoofed-mac"));
        }
    }
    Ok(frames)
}

/// A router solicitation with a MAC address.
fn solicitation(mac: Mac) -> Body {
    let option = [&[1, 1], &mac.bytes()[..]].concat();
    Body::Icmp(133, 0, [0; 4], [option, mark()].concat())
}

/// Messages of routers and DHCP servers, from addresses of the sender.
fn forged_roles(scene: &Scene) -> Result<Vec<Forged>> {
    let link = link_local_of(scene.sender_mac);
    let [own_v4, victim_v4] = scene.own(0)?.map(abi);
    let [own_v6, victim_v6] = scene.own(1)?.map(abi);
    let (all, group) = (parse("ff02::1"), parse("224.0.0.1"));
    let mut frames = Vec::new();
    for icmp_type in [130, 134, 137, 151, 153] {
        for (source, to) in [(link, all), (own_v6, all), (own_v6, victim_v6)] {
            frames.push((
                scene.frame(source, to, scene.victim_mac, icmp(icmp_type)),
                "rogue-router",
            ));
        }
    }
    for icmp_type in [5, 9] {
        for to in [victim_v4, group] {
            frames.push((
                scene.frame(own_v4, to, scene.victim_mac, icmp(icmp_type)),
                "rogue-router",
            ));
        }
    }
    for kind in [0x11, 0x30, 0x32] {
        let igmp = Body::Other(2, igmp(kind));
        frames.push((
            scene.frame(own_v4, group, scene.victim_mac, igmp),
            "rogue-router",
        ));
    }
    for (source, to, ports) in [
        (own_v4, victim_v4, [67, 68]),
        (own_v4, parse("255.255.255.255"), [67, 68]),
        (link, link_local_of(scene.victim_mac), [547, 546]),
        (own_v6, victim_v6, [547, 546]),
    ] {
        let body = datagram(ports[0], ports[1]);
        frames.push((
            scene.frame(source, to, scene.victim_mac, body),
            "rogue-dhcp",
        ));
    }
    Ok(frames)
}

#[test]
fn forged_link_local_addresses_and_roles_are_dropped_by_name() -> Result<()> {
    for mode in MODES {
        let scene = Scene::new(&[mode])?;
        let forged = [forged_addresses(&scene)?, forged_roles(&scene)?].concat();
        let reasons = [
            "spoofed-address",
            "spoofed-mac",
            "rogue-router",
            "rogue-dhcp",
        ];
        let frames: Vec<_> = forged.iter().map(|(frame, _)| frame.clone()).collect();
        scene.must_not_reach_victim(&frames)?;
        for reason in reasons {
            let count = forged.iter().filter(|(_, of)| *of == reason).count() as u64;
            // Each is sent ten times.
            scene.await_drops(reason, 10 * count)?;
        }
    }
    Ok(())
}

/// The same frames arrive from a pod without the spoof check: they are valid, and the bridge
/// forwards them.
#[test]
fn a_pod_without_a_spoof_check_sends_from_any_address_and_in_any_role() -> Result<()> {
    let scene = Scene::with(&[], &declared().with("macspoofchk", json!(false)))?;
    let capture = FrameCapture::start(&scene.victim.machine)?;
    for (frame, _) in [forged_addresses(&scene)?, forged_roles(&scene)?].concat() {
        scene.inside.send(&frame)?;
        capture
            .until(REFUSED)
            .with_context(|| format!("{frame:02x?}"))?;
    }
    Ok(())
}

/// F12: neither the gateway's link-local address nor another pod's is taken over.
#[test]
fn forged_advertisements_change_no_neighbour_entry() -> Result<()> {
    let scene = Scene::new(&[])?;
    let victim = &scene.victim.machine;
    let gateway = std::net::Ipv6Addr::from(link_local_of(scene.bridge_mac).bytes());
    victim.call(&format!("ping -6 -n -q -c 1 {gateway}%eth0"))?;
    ping(victim, GATEWAYS[1], 1)?;
    let own = link_local_of(scene.sender_mac);
    let [_, victim_v6] = scene.own(1)?.map(abi);
    for target in [abi(gateway.into()), abi(GATEWAYS[1])] {
        for (source, to) in [
            (own, parse("ff02::1")),
            (own, victim_v6),
            (target, victim_v6),
        ] {
            let body = discovery(136, 0xe0, target, 2, scene.sender_mac);
            scene
                .inside
                .send(&scene.frame(source, to, scene.victim_mac, body))?;
        }
    }
    scene.must_not_reach_victim(&[])?;
    let sender = scene
        .sender_mac
        .bytes()
        .map(|byte| format!("{byte:02x}"))
        .join(":");
    for address in [gateway.to_string(), GATEWAYS[1].to_string()] {
        let entry = victim.call(&format!("ip -6 neigh show {address} dev eth0"))?;
        ensure!(
            entry.contains("lladdr") && !entry.contains(&sender),
            "{entry}"
        );
    }
    Ok(())
}

/// What hosts send on their own link passes: address resolution, group membership, link-local
/// traffic.
#[test]
fn pods_resolve_and_reach_each_other_by_their_link_local_addresses() -> Result<()> {
    for mode in MODES {
        let scene = Scene::new(&[mode])?;
        for mac in [scene.victim_mac, scene.bridge_mac] {
            let to = std::net::Ipv6Addr::from(link_local_of(mac).bytes());
            let pod = &scene.sender.machine;
            pod.call(&format!("ping -6 -n -q -c 2 -W 5 {to}%eth0"))?;
        }
        let own = link_local_of(scene.sender_mac);
        let mld = parse("ff02::16");
        let mut frames = Vec::new();
        for (to, body) in [
            (mld, icmp(143)),
            (parse("ff02::2"), icmp(133)),
            (parse("ff02::fb"), datagram(5353, 5353)),
            (link_local_of(scene.victim_mac), datagram(1, PORT)),
        ] {
            frames.push(scene.frame(own, to, scene.victim_mac, body));
        }
        scene.must_reach_victim(&frames)?;
    }
    Ok(())
}
