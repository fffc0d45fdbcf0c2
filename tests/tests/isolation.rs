//! Isolation of pods by port, whatever addresses a packet has: link-local ones, groups, broadcast,
//! addresses that no pod was assigned, and the way by the gateway (decision 102).

#[path = "admission/scene.rs"]
mod scene;

use std::net::{IpAddr, SocketAddr};

use ::abi::{Address, Mac};
use anyhow::{Result, ensure};
use e2e::{
    Config, Echo, FrameCapture, FrameSender, NODE, Sandbox, WORLD, contains, ping, udp_source,
};
use serde_json::json;
use verdict::address::link_local_of;
use verdict::simulator::frame::{Body, Frame};

use self::scene::{HOSTPORT, MARKER, MODES, PORT, REFUSED, Scene, abi, declared, mac_of};

/// Addresses that no pod was assigned; the node has a route to each by the victim.
const UNLISTED: [&str; 2] = ["172.16.9.9", "fd00:99::9"];

fn with_policy(policy: &str) -> Config {
    declared().with("ingressPolicy", json!(policy))
}

fn parse(text: &str) -> Address {
    abi(text.parse().unwrap_or_else(|_| panic!("{text}")))
}

fn group_mac(group: &Address) -> Mac {
    let bytes = group.bytes();
    if group.is_v4() {
        Mac::new([1, 0, 0x5e, bytes[13] & 0x7f, bytes[14], bytes[15]])
    } else {
        Mac::new([0x33, 0x33, bytes[12], bytes[13], bytes[14], bytes[15]])
    }
}

fn data() -> Body {
    Body::Udp(41_000, PORT, REFUSED.to_vec())
}

/// Frames from the sender to the victim by every kind of address, bridged and by the gateway.
fn frames(scene: &Scene) -> Result<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    for family in [0, 1] {
        let [own, victim] = scene.own(family)?.map(abi);
        for to in [victim, parse(UNLISTED[family])] {
            frames.push(scene.frame(own, to, scene.victim_mac, data()));
            frames.push(scene.frame(own, to, scene.bridge_mac, data()));
        }
        let groups: &[&str] =
            [["224.0.0.1", "239.1.2.3"], ["ff02::1", "ff02::fb"]][family].as_ref();
        for group in groups {
            let group = parse(group);
            frames.push(scene.frame(own, group, group_mac(&group), data()));
            // A group of machines by the MAC address of one.
            frames.push(scene.frame(own, group, scene.victim_mac, data()));
        }
    }
    let [own, _] = scene.own(0)?.map(abi);
    for broadcast in ["255.255.255.255", "10.7.0.255"] {
        frames.push(scene.frame(own, parse(broadcast), Mac::new([0xff; 6]), data()));
    }
    let link = link_local_of(scene.sender_mac);
    for to in [link_local_of(scene.victim_mac), parse("ff02::1")] {
        frames.push(scene.frame(link, to, scene.victim_mac, data()));
    }
    Ok(frames)
}

/// Adds routes of the node by the victim, as for a pod that has more addresses than it was
/// assigned.
fn add_routes(scene: &Scene) -> Result<()> {
    for (family, unlisted) in UNLISTED.into_iter().enumerate() {
        let [_, victim] = scene.own(family)?;
        let node = &scene.sandbox.node;
        node.call(&format!("ip route add {unlisted} via {victim} dev br7"))?;
    }
    // Neighbour entries, so that routed packets leave at once.
    for address in [0, 1].map(|family| scene.own(family)) {
        ping(&scene.sandbox.node, address?[1], 1)?;
    }
    Ok(())
}

#[test]
fn isolated_pods_of_one_bridge_reach_each_other_by_no_address() -> Result<()> {
    for mode in MODES {
        let scene = Scene::with(&[mode], &with_policy("isolated"))?;
        add_routes(&scene)?;
        scene.must_not_reach_isolated(&frames(&scene)?)?;
        ensure!(scene.drops("ingress-policy")? > 0, "{mode}");
    }
    Ok(())
}

/// The same frames arrive without the policy: they are valid, and the node forwards them.
#[test]
fn pods_with_an_open_policy_reach_each_other_by_these_addresses() -> Result<()> {
    let scene = Scene::with(&[], &with_policy("open"))?;
    add_routes(&scene)?;
    scene.must_reach_victim(&frames(&scene)?)
}

#[test]
fn isolated_pods_reach_published_ports_the_gateway_and_the_world() -> Result<()> {
    for mode in MODES {
        let scene = Scene::with(&[mode], &with_policy("isolated"))?;
        let _servers = [
            Echo::start(&scene.victim.machine, PORT)?,
            Echo::start(&scene.sandbox.world, PORT)?,
        ];
        for family in [0, 1] {
            let client = &scene.sender.machine;
            udp_source(client, 0, SocketAddr::new(NODE[family], HOSTPORT))?;
            udp_source(client, 0, SocketAddr::new(WORLD[family], PORT))?;
            ping(client, scene.gateways[family], 1)?;
        }
        let gateway = link_local(scene.bridge_mac);
        ping_link(&scene, &gateway)?;
        let victim = link_local(scene.victim_mac);
        ensure!(ping_link(&scene, &victim).is_err(), "{mode}: {victim}");
    }
    Ok(())
}

fn link_local(mac: Mac) -> String {
    let address = std::net::Ipv6Addr::from(link_local_of(mac).bytes());
    format!("{address}%eth0")
}

fn ping_link(scene: &Scene, to: &str) -> Result<()> {
    let words = ["ping", "-6", "-n", "-q", "-c", "1", "-W", "2", to];
    let output = scene.sender.machine.output(&words)?;
    ensure!(output.status.success(), "{to} does not answer");
    Ok(())
}

/// Pods of two bridges, by the gateway.
#[test]
fn pods_of_two_bridges_with_a_policy_reach_each_other_by_no_address() -> Result<()> {
    for mode in MODES {
        let sandbox = Sandbox::new()?;
        let _agent = e2e::Agent::start(&sandbox.node, &[mode])?;
        let mut pods = Vec::new();
        for number in [7, 8] {
            let config = Config::new("1.1.0")
                .with("name", json!(format!("net{number}")))
                .with("bridge", json!(format!("br{number}")))
                .with("isDefaultGateway", json!(true))
                .with("ingressPolicy", json!("same-bridge"))
                .with(
                    "ipam",
                    json!({
                        "type": "host-local", "subnet": format!("10.{number}.0.0/24"),
                    }),
                );
            let mut pod = sandbox.pod(&format!("pod{number}"))?;
            pod.add_with(config)?.success()?;
            pods.push(pod);
        }
        let [one, two] = pods.as_slice() else {
            anyhow::bail!("two pods");
        };
        let [from, to] = [one.addresses[0], two.addresses[0]];
        let node = &sandbox.node;
        node.call(&format!("ip route add {} via {to} dev br8", UNLISTED[0]))?;
        ping(node, to, 1)?;
        let gateway: IpAddr = "10.7.0.1".parse()?;
        let sender = FrameSender::new(&one.machine, "eth0", gateway)?;
        let (own_mac, bridge_mac) = (mac_of(&one.machine, "eth0")?, mac_of(node, "br7")?);
        let capture = FrameCapture::start(&two.machine)?;
        for destination in [abi(to), parse(UNLISTED[0]), parse("10.8.0.255")] {
            let frame = Frame::new(abi(from), destination, data()).from_to(own_mac, bridge_mac);
            (0..10).try_for_each(|_| sender.send(&frame.bytes()))?;
        }
        // The node's own packets arrive.
        let socket = node.run(|| std::net::UdpSocket::bind("0.0.0.0:0"))?;
        socket.send_to(MARKER, (to, 9))?;
        let seen = capture.until(MARKER)?;
        let refused = seen.iter().any(|frame| contains(frame, REFUSED));
        ensure!(!refused, "{mode}: {seen:02x?}");
    }
    Ok(())
}
