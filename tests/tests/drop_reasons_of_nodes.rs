//! Drop reasons that depend on the node: its addresses, links and settings, and a table in the
//! middle of a DEL. Each drop is an event, and is explained with the same reason.

#[path = "drops/provoked.rs"]
#[expect(dead_code, reason = "another test uses the rest")]
mod provoked;
#[path = "admission/scene.rs"]
mod scene;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::IpAddr;

use ::abi::{DropReason as R, Hostport, HostportKey, Port, maps};
use anyhow::{Context as _, Result};
use aya::maps::{HashMap, Map, MapData};
use e2e::{FrameSender, NODE, UPLINK, WORLD, are_all_provoked, until};
use verdict::simulator::frame::{Body, Frame};
use zerocopy::FromBytes as _;

use self::provoked::{Provoked, datagram, listen, ports};
use self::scene::{HOSTPORT, REFUSED, Scene, abi};

const EACH_DROP: &str = "--drop-event-interval=1";

/// Checks a packet, and returns its reason.
fn check(scene: &Scene, provoked: &Provoked) -> Result<&'static str> {
    provoked.check(scene, &listen(scene)?)?;
    Ok(provoked.reason().name())
}

/// A configured egress address that the node does not have.
fn without_egress_address() -> Result<&'static str> {
    let scene = Scene::new(&[EACH_DROP, "--egress-address=192.0.2.99"])?;
    let [own, _] = scene.own(0)?;
    let frame = scene.to_gateway(own, WORLD[0], REFUSED);
    let leaving = Provoked::by_pod(R::NoEgressAddress, frame, ports(own, WORLD[0]));
    check(&scene, &leaving.at("uplink_out"))
}

/// An uplink that has lost its address of a family, and no other link that has one.
fn without_source_address() -> Result<&'static str> {
    let scene = Scene::new(&[EACH_DROP])?;
    let [node, world] = [NODE[1], WORLD[1]];
    let command = format!("ip -6 address del {node}/64 dev {UPLINK}");
    scene.sandbox.node.call(&command)?;
    let [own, _] = scene.own(1)?;
    let frame = |port| {
        let body = Body::Udp(port, scene::PORT, REFUSED.to_vec());
        scene.frame(abi(own), abi(world), scene.bridge_mac, body)
    };
    // Flows that began with the address keep it until the agent has seen that it is gone.
    let port = Cell::new(20_000);
    until("the agent has seen that the address is gone", || {
        port.set(port.get() + 1);
        scene.inside.send(&frame(port.get()))?;
        Ok((scene.drops(R::NoSourceAddress.name())? > 0).then_some(()))
    })?;
    let ends = [format!("[{own}]:41000"), format!("[{world}]:7000")];
    let leaving = Provoked::by_pod(R::NoSourceAddress, frame(41_000), ends);
    check(&scene, &leaving.at("uplink_out"))
}

/// A route to a port of a bridge of other software: no uplink, so nothing is translated there.
fn by_port_of_a_bridge() -> Result<&'static str> {
    let scene = Scene::new(&[EACH_DROP])?;
    scene.sandbox.connect("up1", "eth1")?;
    for command in [
        "ip link add house type bridge",
        "ip link set house up",
        "ip link set up1 master house",
        "ip link set up1 up",
        "ip route add 203.0.113.0/24 dev up1",
    ] {
        scene.sandbox.node.call(command)?;
    }
    let [own, _] = scene.own(0)?;
    let far: IpAddr = "203.0.113.9".parse()?;
    let frame = scene.to_gateway(own, far, REFUSED);
    let leaving = Provoked::by_pod(R::UnknownUplink, frame, ports(own, far));
    check(&scene, &leaving)
}

/// What a promiscuous bridge delivers a second time: a packet of the sender that the node has
/// forwarded.
fn second_copy() -> Result<&'static str> {
    let scene = Scene::new(&[EACH_DROP, "--hairpin-mode=promiscuous-bridge"])?;
    let [own, victim] = scene.own(0)?;
    let of_node = FrameSender::new(&scene.sandbox.node, "cbr0", victim)?;
    let copy = Frame::new(abi(own), abi(victim), datagram(REFUSED))
        .from_to(scene.bridge_mac, scene.victim_mac)
        .bytes();
    let provoked = Provoked::by_world(R::Duplicate, copy, true, ports(own, victim)).at("to_pod");
    provoked.check_from(&of_node, &scene, &listen(&scene)?)?;
    Ok(provoked.reason().name())
}

/// A published port whose pod has another generation: so the tables are between two writes of a
/// DEL and an ADD to the same slot. The test makes the write, and repeats it, as the agent repairs
/// its tables.
fn of_a_pod_that_is_gone() -> Result<&'static str> {
    let scene = Scene::new(&[EACH_DROP])?;
    let listener = listen(&scene)?;
    let frame = scene.frame_of_world(WORLD[0], NODE[0], HOSTPORT, REFUSED);
    let expected = e2e::ExpectedDrop {
        reason: R::StaleGeneration,
        hook: "uplink_in",
        pod: Some(scene.victim.id().to_owned()),
        ends: Some([
            format!("{}:41000", WORLD[0]),
            format!("{}:{HOSTPORT}", NODE[0]),
        ]),
    };
    expected.check(&scene.agent, &listener, || {
        scene.sandbox.node.run(make_stale)?;
        scene.outside.send(&frame)
    })?;
    Ok(expected.reason.name())
}

const KEY: usize = size_of::<HostportKey>();
const VALUE: usize = size_of::<Hostport>();

/// Gives the hostports of the scene's victim a generation that the pod does not have.
fn make_stale() -> Result<()> {
    let name = maps::HOSTPORTS.name;
    let path = format!("/sys/fs/bpf/viaduct/v{}/maps/{name}", ::abi::ABI_VERSION);
    let map = Map::HashMap(MapData::from_pin(&path).context(path)?);
    let mut map = HashMap::<MapData, [u8; KEY], [u8; VALUE]>::try_from(map)?;
    let entries = map.iter().collect::<Result<Vec<_>, _>>()?;
    for (key, value) in entries {
        let port = HostportKey::read_from_bytes(&key)
            .ok()
            .context("a key")?
            .port;
        let hostport = Hostport::read_from_bytes(&value).ok().context("a value")?;
        if port != Port::new(HOSTPORT) {
            continue;
        }
        let stale = Hostport {
            generation: hostport.generation | 1 << 31,
            ..hostport
        };
        let bytes: [u8; VALUE] = zerocopy::transmute!(stale);
        map.insert(key, bytes, 0)?;
    }
    Ok(())
}

#[test]
fn each_drop_that_depends_on_the_node_is_explained_with_the_same_reason() -> Result<()> {
    let provoked = BTreeSet::from([
        without_egress_address()?,
        without_source_address()?,
        by_port_of_a_bridge()?,
        of_a_pod_that_is_gone()?,
        second_copy()?,
    ]);
    are_all_provoked("drop_reasons_of_nodes", &provoked)
}
