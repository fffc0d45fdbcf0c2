//! Which packets the test sends: one cell for each connection that must work, in each address
//! family of the pods.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Port of the servers in both pods.
pub(super) const PORT: u16 = 7;

/// What the cells are planned from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Both pods; the second one is published.
    pub(super) pods: [PodFacts; 2],
    /// Addresses of the node on its uplinks.
    pub(super) node: Vec<IpAddr>,
    /// Hosts beyond the node.
    pub(super) world: Vec<World>,
    /// Host port of the second pod, for TCP and UDP.
    pub(super) host_port: u16,
    /// Name to resolve, and the DNS server.
    pub(super) dns: Option<(String, IpAddr)>,
}

/// A throw-away pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PodFacts {
    /// Container ID.
    pub(super) id: String,
    pub(super) addresses: Vec<IpAddr>,
    /// MTU of its interface in bytes.
    pub(super) mtu: u32,
}

/// A host beyond the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct World {
    pub(super) address: IpAddr,
    /// TCP port; without one, the host is sent ICMP echo requests.
    pub(super) port: Option<u16>,
    /// Whether it is the default gateway of the node.
    pub(super) is_gateway: bool,
}

/// Where a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    FirstPod,
    SecondPod,
    Node,
}

/// What is sent, and must be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// A connection to a server of the test, and bytes both ways.
    Tcp,
    /// A connection to another server.
    Connect,
    /// A datagram and its echo.
    Udp,
    /// An ICMP echo request.
    Icmp,
    /// A UDP datagram of this length in bytes, IP header included, and its echo, none of them
    /// fragmented.
    LargeUdp(u32),
    /// The same as an ICMP echo request.
    LargeIcmp(u32),
    /// DNS queries for the addresses of a name.
    Dns(String),
}

impl Probe {
    /// Returns the protocol as `viaductctl why` names it.
    pub(super) const fn protocol(&self) -> &'static str {
        match self {
            Self::Tcp | Self::Connect => "tcp",
            Self::Udp | Self::LargeUdp(_) | Self::Dns(_) => "udp",
            Self::Icmp | Self::LargeIcmp(_) => "icmp",
        }
    }

    /// Returns the length of the packet in bytes where it matters.
    pub(super) const fn size(&self) -> Option<u32> {
        match self {
            Self::LargeUdp(bytes) | Self::LargeIcmp(bytes) => Some(*bytes),
            Self::Tcp | Self::Connect | Self::Udp | Self::Icmp | Self::Dns(_) => None,
        }
    }
}

/// One connection that must work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// What it shows.
    pub(super) name: String,
    pub(super) from: Origin,
    /// Destination; port 0 for ICMP.
    pub(super) to: SocketAddr,
    pub(super) probe: Probe,
}

/// Returns the address of a family.
pub(super) fn of_family(addresses: &[IpAddr], is_v4: bool) -> Option<IpAddr> {
    let mut found = addresses.iter().copied();
    found.find(|address| address.is_ipv4() == is_v4)
}

/// Returns the cells in the order of the report, IPv4 first.
pub(super) fn cells(facts: &Facts) -> Vec<Cell> {
    let mut cells: Vec<Cell> = [true, false]
        .into_iter()
        .flat_map(|is_v4| of_pods(facts, is_v4))
        .collect();
    if let Some((name, server)) = &facts.dns
        && has_family(facts, server.is_ipv4())
    {
        cells.push(Cell {
            name: format!("name {name} at {server}"),
            from: Origin::FirstPod,
            to: SocketAddr::new(*server, 53),
            probe: Probe::Dns(name.clone()),
        });
    }
    cells
}

/// Returns whether both pods have an address of the family.
pub(super) fn has_family(facts: &Facts, is_v4: bool) -> bool {
    let mut pods = facts.pods.iter();
    pods.all(|pod| of_family(&pod.addresses, is_v4).is_some())
}

fn of_pods(facts: &Facts, is_v4: bool) -> Vec<Cell> {
    let [first, second] = facts
        .pods
        .each_ref()
        .map(|pod| of_family(&pod.addresses, is_v4));
    let (Some(first), Some(second)) = (first, second) else {
        return Vec::new();
    };
    let [to_first, to_second] = [first, second].map(|address| SocketAddr::new(address, PORT));
    let mtu = facts.pods[0].mtu.min(facts.pods[1].mtu);
    let mut cells = vec![
        cell("pod to pod", Origin::FirstPod, to_second, Probe::Tcp),
        cell("pod to pod", Origin::FirstPod, to_second, Probe::Udp),
        cell("pod to pod, back", Origin::SecondPod, to_first, Probe::Tcp),
        cell(
            format!("pod to pod, {mtu} bytes"),
            Origin::FirstPod,
            to_second,
            Probe::LargeUdp(mtu),
        ),
        cell("node to pod", Origin::Node, to_second, Probe::Tcp),
    ];
    cells.extend(published(facts, is_v4));
    let world = facts.world.iter();
    cells.extend(
        world
            .filter(|host| host.address.is_ipv4() == is_v4)
            .flat_map(|host| to_world(host, facts.pods[0].mtu)),
    );
    cells
}

/// Returns the entry points of the published port.
fn published(facts: &Facts, is_v4: bool) -> Vec<Cell> {
    let loopback = if is_v4 {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    } else {
        IpAddr::V6(Ipv6Addr::LOCALHOST)
    };
    let node = of_family(&facts.node, is_v4);
    let doors = [
        ("published port from a pod", Origin::FirstPod, node),
        ("published port from its own pod", Origin::SecondPod, node),
        ("published port from the node", Origin::Node, node),
        ("published port by loopback", Origin::Node, Some(loopback)),
    ];
    let mut cells = Vec::new();
    for (name, from, address) in doors {
        let Some(address) = address else { continue };
        let to = SocketAddr::new(address, facts.host_port);
        cells.push(cell(name, from, to, Probe::Tcp));
        cells.push(cell(name, from, to, Probe::Udp));
    }
    cells
}

fn to_world(host: &World, mtu: u32) -> Vec<Cell> {
    let place = if host.is_gateway {
        format!("gateway {}", host.address)
    } else {
        format!("world {}", host.address)
    };
    let from = Origin::FirstPod;
    if let Some(port) = host.port {
        let to = SocketAddr::new(host.address, port);
        return vec![cell(place, from, to, Probe::Connect)];
    }
    let to = SocketAddr::new(host.address, 0);
    vec![
        cell(place.clone(), from, to, Probe::Icmp),
        cell(
            format!("{place}, {mtu} bytes"),
            from,
            to,
            Probe::LargeIcmp(mtu),
        ),
    ]
}

fn cell(name: impl Into<String>, from: Origin, to: SocketAddr, probe: Probe) -> Cell {
    Cell {
        name: name.into(),
        from,
        to,
        probe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let pod = |last: u8| PodFacts {
            id: format!("viaductctl-test-{last}"),
            addresses: vec![
                IpAddr::from([10, 244, 1, last]),
                format!("fd00::{last}").parse().unwrap(),
            ],
            mtu: 1500,
        };
        Facts {
            pods: [pod(2), pod(3)],
            node: vec!["192.0.2.1".parse().unwrap()],
            world: vec![
                World {
                    address: "192.0.2.254".parse().unwrap(),
                    port: None,
                    is_gateway: true,
                },
                World {
                    address: "2001:db8::7".parse().unwrap(),
                    port: Some(443),
                    is_gateway: false,
                },
            ],
            host_port: 20_123,
            dns: Some(("example.org".to_owned(), "192.0.2.53".parse().unwrap())),
        }
    }

    #[test]
    fn cells_of_the_test_cover_pods_ports_and_world_in_both_families() {
        let lines: Vec<String> = cells(&facts())
            .iter()
            .map(|it| format!("{}: {:?} -> {} {:?}", it.name, it.from, it.to, it.probe))
            .collect();
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn a_family_that_one_pod_does_not_have_has_no_cell() {
        let mut facts = facts();
        facts.pods[1].addresses.pop();
        assert!(cells(&facts).iter().all(|cell| cell.to.is_ipv4()));
        facts.pods[0].addresses.clear();
        assert_eq!(cells(&facts), []);
    }
}
