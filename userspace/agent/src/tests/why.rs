//! Explanations of packets through the API: pods by name, addresses, and what is refused.

use std::net::SocketAddr;

use abi::{Endpoint, Interface, Mac, Network, Pod, Source, Uplink};
use api::{WhyQuery, WhyView};
use explain::Lookups;
use steps::{
    DatapathTables, FoundRoute, FoundSocket, Link, LinkKind, LookupTables, RouteDecision,
    RoutedPacket,
};

use super::*;
use crate::http::why::{NodeSource, ObservedNode};

const UPLINK: u32 = 2;
const BRIDGE: u32 = 3;
const VETH: u32 = 7;
const POD_MAC: Mac = Mac::new([2, 0, 0, 0, 0, 2]);

/// A default route by the uplink, and no sockets.
#[derive(Debug)]
struct DefaultRoute;

impl Lookups for DefaultRoute {
    fn route(&self, packet: &RoutedPacket) -> FoundRoute {
        let is_pod = packet.destination.ip() == std::net::IpAddr::from([10, 1, 2, 2]);
        FoundRoute {
            decision: RouteDecision::Leaves {
                link: if is_pod { BRIDGE } else { UPLINK },
                gateway: None,
                mtu: None,
            },
            route: "default dev eth0".to_owned(),
        }
    }

    fn socket(&self, _protocol: u8, _source: SocketAddr, _destination: SocketAddr) -> FoundSocket {
        FoundSocket::None
    }
}

/// Returns a node with the first pod that is added, and an uplink.
pub(super) fn node_source() -> NodeSource {
    NodeSource::new(|| {
        Ok(ObservedNode {
            tables: tables(),
            links: [(UPLINK, "eth0"), (BRIDGE, "cbr0"), (VETH, "veth7")]
                .map(|(index, name)| (name.to_owned(), link(index)))
                .into(),
            filters: None,
            translations: None,
            lookups: Arc::new(DefaultRoute),
        })
    })
}

fn tables() -> DatapathTables {
    let address = Address::v4([10, 1, 2, 2]);
    let node = Address::v4([192, 0, 2, 1]);
    let pod = Pod {
        v4: address,
        mac: POD_MAC,
        interface: VETH,
        generation: 1,
        flags: abi::EndpointFlags::SPOOF_CHECK | abi::EndpointFlags::MASQUERADE_V4,
        network: BRIDGE,
        ..Pod::default()
    };
    let endpoint = Endpoint {
        pod: 1,
        generation: 1,
        interface: VETH,
        flags: pod.flags,
        mac: POD_MAC,
        reserved: 0,
    };
    let network = Network {
        v4: Address::v4([10, 1, 2, 1]),
        mac: Mac::new([2, 0, 0, 0, 0, 1]),
        ..Network::default()
    };
    let mut uplink = Uplink {
        l2_len: 14,
        mtu: 1500,
        ..Uplink::default()
    };
    uplink.sources[0] = Source {
        address: node,
        prefix_len: 24,
        reserved: 0,
    };
    DatapathTables {
        now: 1_000_000_000_000,
        is_consistent: true,
        pods: [(1, pod)].into(),
        lookups: LookupTables {
            interfaces: [(VETH, Interface { pod: 1, flags: 0 })].into(),
            endpoints: [(address, endpoint)].into(),
            networks: [(BRIDGE, network)].into(),
            uplinks: [(UPLINK, uplink)].into(),
            ..LookupTables::default()
        },
        locals: [node, network.v4].into(),
        flow_entries: 1024,
        ..DatapathTables::default()
    }
}

fn link(index: u32) -> Link {
    Link {
        mtu: 1500,
        ..Link::plain(index, LinkKind::Ethernet)
    }
}

fn agent() -> Agent {
    let agent = Agent::start(&["--pod-cidr", "10.1.2.0/24"]);
    agent.add("c1").unwrap();
    agent
}

fn query(from: &str, to: &str) -> WhyQuery {
    WhyQuery {
        from: Some(from.to_owned()),
        to: Some(to.to_owned()),
        ..WhyQuery::default()
    }
}

#[test]
fn a_pods_packet_to_the_world_is_explained_by_its_name_id_and_address() {
    let agent = agent();
    for from in [
        "default/web",
        "web",
        "c1",
        "10.1.2.2",
        "web:40000",
        "10.1.2.2:40000",
    ] {
        let view: WhyView = agent.get(&query(from, "198.51.100.7:443").to_path());
        assert!(view.passes, "{from}: {view:#?}");
        assert_eq!(view.request.protocol, "tcp");
        assert_eq!(view.request.packet.destination, "198.51.100.7:443");
        assert_eq!(view.request.outcome, "leaves");
        assert!(
            view.request.arrived.source.starts_with("192.0.2.1:"),
            "{view:#?}"
        );
        let text = view.answer.expect("an answer").text;
        assert_eq!(text, "pod default/web receives it");
        assert_eq!(view.notes.len(), 1, "the filter tables are not known");
    }
    let echo: WhyView = agent.get(&query("web", "198.51.100.7").to_path());
    assert_eq!(
        (echo.request.protocol.as_str(), echo.passes),
        ("icmp", true)
    );
}

#[test]
fn a_packet_that_is_dropped_has_the_reason_and_its_advice() {
    let agent = agent();
    let view: WhyView = agent.get(&query("web", "127.0.0.1:80").to_path());
    assert!(!view.passes);
    assert_eq!(view.request.reason.as_deref(), Some("martian"));
    assert_eq!(view.request.advice, abi::DropReason::Martian.advice());
    assert_eq!(view.request.text, "from_pod@veth7 drops it as martian");
    assert_eq!(view.answer, None);
}

#[test]
fn a_query_that_names_no_packet_is_refused_with_what_is_missing() {
    let agent = agent();
    let udp = WhyQuery {
        protocol: Some("udp".to_owned()),
        ..query("web", "198.51.100.7")
    };
    let last = WhyQuery {
        last_drop: Some("web".to_owned()),
        ..WhyQuery::default()
    };
    for (query, part) in [
        (
            query("db", "198.51.100.7:443"),
            "db is neither an address nor an attached pod",
        ),
        (query("web", "2001:db8::7"), "no address family in common"),
        (udp, "198.51.100.7 has no port"),
        (WhyQuery::default(), "from and to are missing"),
        (last, "viaductctl drops --follow --pod web"),
    ] {
        let reply = agent.client.get(&query.to_path()).unwrap();
        assert!(!reply.is_success(), "{query:?}");
        let error = reply.error().to_string();
        assert!(error.contains(part), "{part} is not in {error}");
    }
}
