//! A node for tests: two pods on one bridge, a third one on another, and an uplink.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use abi::{Address, Mac, Network, Port, Tuple, protocol};
use steps::{DatapathTables, FoundRoute, FoundSocket, RouteDecision, RoutedPacket};
use verdict::simulator::example::{
    self, BRIDGE, INTERFACE, OTHER_INTERFACE, OTHER_POD, POD, add_pod, gateway, other_pod, pod,
};
use verdict::simulator::{Place, World};

use crate::question::{Question, Sender};
use crate::snapshot::{LinkFacts, Lookups, Snapshot, address};
use crate::{Explanation, Leg, Node};

/// Interface index of the first pod's veth.
pub(crate) const VETH: u32 = 11;
/// The uplink.
pub(crate) const UPLINK: u32 = INTERFACE;
/// Bridge, slot and interface of the third pod.
pub(crate) const FAR_BRIDGE: u32 = 21;
pub(crate) const FAR_POD: u32 = 3;
pub(crate) const FAR_VETH: u32 = 13;

/// Addresses of the third pod, and of its gateway.
pub(crate) fn far_pod() -> Address {
    Address::v4([10, 89, 0, 2])
}
pub(crate) fn far_gateway() -> Address {
    Address::v4([10, 89, 0, 1])
}

/// Returns the tables: those of the simulator's example, with a third pod and distinct interfaces.
pub(crate) fn world() -> World {
    let mut world = example::world();
    world.interfaces.clear();
    world.endpoints.clear();
    add_pod(&mut world, POD, &pod(), example::mac(), VETH);
    add_pod(
        &mut world,
        OTHER_POD,
        &other_pod(),
        example::other_mac(),
        OTHER_INTERFACE,
    );
    let mac = Mac::new([2, 0, 0, 0, 0, 4]);
    add_pod(
        &mut world,
        FAR_POD,
        &[far_pod(), Address::ANY],
        mac,
        FAR_VETH,
    );
    world.endpoints.remove(&Address::ANY);
    world.pods[FAR_POD as usize].network = FAR_BRIDGE;
    let network = Network {
        v4: far_gateway(),
        mac: Mac::new([2, 0, 0, 0, 0, 0x21]),
        ..Network::default()
    };
    world.networks.insert(FAR_BRIDGE, network);
    world.locals.insert(far_gateway());
    world
}

/// Returns the snapshot of a world.
pub(crate) fn snapshot(world: &World) -> Snapshot {
    let index = |(slot, direction): &(u32, abi::Direction)| slot * 2 + *direction as u32;
    let tables = DatapathTables {
        now: u64::from(world.now) * 1_000_000_000,
        is_consistent: true,
        settings: world.settings,
        pods: (0..)
            .zip(&world.pods)
            .filter(|(_, pod)| pod.generation != 0)
            .map(|(slot, pod)| (slot, *pod))
            .collect(),
        lookups: crate::node::copied(&world.tables),
        locals: world.locals.clone(),
        prefixes: world.prefixes.clone(),
        identities: world.identities.clone(),
        policy_rules: world.policy_rules.clone(),
        policy_flows: world.policy_flows.clone(),
        flows: world.flows.clone(),
        flow_entries: u32::try_from(world.flow_capacity).unwrap(),
        live: world.live.clone(),
        limits: world
            .limits
            .iter()
            .map(|(key, limit)| (index(key), *limit))
            .collect(),
        ..DatapathTables::default()
    };
    let names = [
        (POD, "default/web"),
        (OTHER_POD, "default/db"),
        (FAR_POD, "shop/cart"),
    ];
    Snapshot {
        lookups: Arc::new(Routes::of(world)),
        tables,
        links: links(world),
        pods: names.map(|(slot, name)| (slot, name.to_owned())).into(),
        policies: BTreeMap::from([(OTHER_POD, vec!["default/db-clients".to_owned()])]),
        subnets: subnets(),
        filters: Some(steps::ForwardTables::default()),
        translations: Some(BTreeMap::new()),
    }
}

fn subnets() -> BTreeMap<u32, Vec<(Address, u32)>> {
    let of = |[v4, v6]: [Address; 2]| vec![(v4, 24), (v6, 64)];
    [
        (POD, of(pod())),
        (OTHER_POD, of(other_pod())),
        (FAR_POD, vec![(far_pod(), 24)]),
    ]
    .into()
}

fn links(world: &World) -> BTreeMap<u32, LinkFacts> {
    let link = |name: &str, mac| LinkFacts {
        name: name.to_owned(),
        mac,
        mtu: 1500,
    };
    let host = |last| Mac::new([2, 0, 0, 0, 1, last]);
    [
        (UPLINK, link("eth0", world.mac)),
        (VETH, link("veth-web", host(1))),
        (OTHER_INTERFACE, link("veth-db", host(2))),
        (FAR_VETH, link("veth-cart", host(3))),
        (BRIDGE, link("cbr0", example::bridge_mac())),
        (FAR_BRIDGE, link("br1", Mac::new([2, 0, 0, 0, 0, 0x21]))),
    ]
    .into()
}

/// Routes of the test's node: addresses of the node, two subnets of pods, and a default route.
#[derive(Debug)]
pub(crate) struct Routes {
    locals: Vec<std::net::IpAddr>,
}

impl Routes {
    fn of(world: &World) -> Self {
        Self {
            locals: world.locals.iter().map(crate::snapshot::ip).collect(),
        }
    }
}

impl Lookups for Routes {
    fn route(&self, packet: &RoutedPacket) -> FoundRoute {
        let to = address(packet.destination.ip());
        let leaves = |link, gateway: Option<&str>, route: &str| FoundRoute {
            decision: RouteDecision::Leaves {
                link,
                gateway: gateway.map(|text| text.parse().unwrap()),
                mtu: None,
            },
            route: route.to_owned(),
        };
        let same_subnet = |other: Address| {
            let length = if to.is_v4() { 15 } else { 8 };
            other.bytes()[..length] == to.bytes()[..length]
        };
        if self.locals.contains(&packet.destination.ip()) {
            FoundRoute {
                decision: RouteDecision::Local,
                route: format!("local {} dev lo table 255", packet.destination.ip()),
            }
        } else if gateway().into_iter().any(same_subnet) {
            leaves(BRIDGE, None, "10.88.0.0/24 dev cbr0")
        } else if same_subnet(far_gateway()) {
            leaves(FAR_BRIDGE, None, "10.89.0.0/24 dev br1")
        } else if to.is_v4() {
            leaves(
                UPLINK,
                Some("192.0.2.254"),
                "default via 192.0.2.254 dev eth0",
            )
        } else {
            leaves(
                UPLINK,
                Some("2001:db8:1::fe"),
                "default via 2001:db8:1::fe dev eth0",
            )
        }
    }

    fn socket(&self, _protocol: u8, _source: SocketAddr, _destination: SocketAddr) -> FoundSocket {
        FoundSocket::None
    }
}

/// Returns the tuple of a TCP packet.
pub(crate) fn tcp(source: Address, destination: Address, ports: [u16; 2]) -> Tuple {
    Tuple {
        source,
        destination,
        source_port: Port::new(ports[0]),
        destination_port: Port::new(ports[1]),
        protocol: protocol::TCP,
        ..Tuple::default()
    }
}

/// Returns the question about a packet of the shortest length.
pub(crate) const fn question(sender: Sender, tuple: Tuple) -> Question {
    Question::plain(sender, tuple)
}

/// Explains a packet on the node of a world.
pub(crate) fn explain(world: &World, sender: Sender, tuple: Tuple) -> Explanation {
    crate::explain(&mut Node::new(snapshot(world)), &question(sender, tuple))
}

/// Shows an explanation as text, one decision a line.
pub(crate) fn shown(explanation: &Explanation) -> String {
    let mut text = leg("packet", &explanation.request);
    if let Some(answer) = &explanation.answer {
        text += &leg("answer", answer);
    }
    text
}

fn leg(title: &str, leg: &Leg) -> String {
    let mut text = format!("{title} {}\n", crate::sentences::ends(&leg.sent));
    for step in &leg.steps {
        let mark = if step.ends { "=>" } else { "  " };
        let decision = step.decision.name();
        writeln!(text, "{mark} {} [{decision}] {}", step.at, step.text).unwrap();
    }
    text + &format!("{}\n", leg.outcome.name())
}

/// Returns the interface at which the hook of a place is run.
pub(crate) const fn interface_of(place: Place) -> u32 {
    match place {
        Place::FromPod | Place::ToPod => VETH,
        Place::UplinkIn | Place::UplinkOut => UPLINK,
    }
}
