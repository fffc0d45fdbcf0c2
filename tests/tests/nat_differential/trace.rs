//! What a trace consists of: flows, and steps of packets. A trace has no addresses and ports of its
//! own: [`Base`] has them, so that a trace can be repeated without the state of its last run.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::protocol;
use e2e::{GATEWAYS, WORLD};

use super::system::{PODS, PUBLISHED, SERVED, Site, node_address, pod_address};

/// The client's port that equals a published port.
pub(super) const PUBLISHED_PORT: u16 = 3;

/// Flows, and packets of them.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    pub(super) six: bool,
    pub(super) flows: Vec<Flow>,
    pub(super) steps: Vec<Step>,
}

/// Packets that are sent together. The next step begins when all of them have arrived.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) actions: Vec<Action>,
    /// Whether the frames of the actions alternate.
    pub(super) interleaved: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) path: Path,
    pub(super) protocol: Protocol,
    /// Which of the client's ports it uses; flows of one client may clash.
    pub(super) port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Tcp,
    Udp,
    Echo,
    /// A protocol number without ports.
    Portless,
}

/// Client and destination of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// From a pod to one of the trace's hosts in the world, and one of two ports there.
    Out { pod: usize, host: u8, port: u16 },
    /// From a host in the world.
    In { host: u8, entry: Entry },
    /// From a pod to a published port or to a pod.
    Between { pod: usize, entry: Entry },
}

/// How a client reaches a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// By a published port, on the first or second address of the node.
    Published {
        node: usize,
        pod: usize,
        port: usize,
    },
    /// By the pod's own address.
    Own { pod: usize },
}

/// Direction of a packet in its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    There,
    Back,
}

#[derive(Clone, Debug)]
pub(super) enum Action {
    /// A packet of a flow. Replies go to where the last packet came from.
    Send {
        flow: usize,
        way: Way,
        packet: Content,
    },
    /// An ICMP error about the last packet of the flow in a direction, by its receiver or by a
    /// router.
    Error {
        flow: usize,
        about: Way,
        kind: usize,
        quote: Quote,
        by_router: bool,
    },
    /// A packet of the flow's client with another source address.
    Martian { flow: usize, source: usize },
}

/// What an ICMP error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quote {
    /// So many bytes behind the IP header of the packet as its receiver got it.
    Received(usize),
    /// So many bytes behind the IP header of the packet as its sender sent it.
    Sent(usize),
    /// So many bytes of a fragment of the packet as its receiver got it: the first one, or a later
    /// one.
    Fragment { first: bool, length: usize },
}

#[derive(Clone, Debug)]
pub(super) struct Content {
    /// TCP flags.
    pub(super) flags: u8,
    pub(super) sequence: Sequence,
    /// Bytes of the payload.
    pub(super) size: usize,
    pub(super) dont_fragment: bool,
    /// Whether a UDP datagram has a checksum.
    pub(super) checksum: bool,
    /// Whether the last byte differs from the one that the checksum covers.
    pub(super) corrupt: bool,
    /// Start and length of each fragment, in the order of sending; none for a whole packet.
    pub(super) fragments: Vec<(usize, usize)>,
}

/// The sequence number of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequence {
    /// The next one.
    Next,
    /// Within the window, behind a gap.
    Ahead,
    /// Outside of the window.
    Outside,
}

impl Content {
    /// Returns whether the fragments, if there are any, are the whole packet without overlaps.
    pub(super) fn is_complete(&self, protocol: Protocol) -> bool {
        let parts = self.fragments.iter().collect::<BTreeSet<_>>();
        let mut end = 0;
        let contiguous = parts.into_iter().all(|&(start, length)| {
            let fits = start == end;
            end = start + length;
            fits
        });
        contiguous && (self.fragments.is_empty() || end == protocol.header_length() + self.size)
    }
}

impl Protocol {
    pub(super) fn number(self, six: bool) -> u8 {
        match self {
            Self::Tcp => protocol::TCP,
            Self::Udp => protocol::UDP,
            Self::Echo if six => protocol::ICMPV6,
            Self::Echo => protocol::ICMP,
            Self::Portless => 253,
        }
    }

    /// Returns the bytes of the transport header.
    pub(super) fn header_length(self) -> usize {
        match self {
            Self::Tcp => 20,
            Self::Udp | Self::Echo => 8,
            Self::Portless => 0,
        }
    }

    pub(super) fn has_ports(self) -> bool {
        matches!(self, Self::Tcp | Self::Udp)
    }
}

impl Path {
    pub(super) fn client(self) -> Site {
        match self {
            Self::Out { pod, .. } | Self::Between { pod, .. } => Site::Pod(pod),
            Self::In { .. } => Site::World,
        }
    }

    pub(super) fn server(self) -> Site {
        match self {
            Self::Out { .. } => Site::World,
            Self::In { entry, .. } | Self::Between { entry, .. } => match entry {
                Entry::Published { pod, .. } | Entry::Own { pod } => Site::Pod(pod),
            },
        }
    }
}

/// Addresses, ports and identifications of one run of a trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    /// Differs between the runs on one pair of systems.
    pub(super) run: u16,
    pub(super) six: bool,
}

impl Base {
    /// Returns the address of a host in the world. The world has a route to none of them: it only
    /// records what arrives.
    pub(super) fn host(self, host: u8) -> IpAddr {
        if self.six {
            IpAddr::V6(Ipv6Addr::new(
                0x2001,
                0xdb8,
                2,
                self.run,
                0,
                0,
                0,
                host.into(),
            ))
        } else {
            // 198.18.0.0/15, which is for benchmarks (RFC 2544).
            let first = u32::from(Ipv4Addr::new(198, 18, 0, 0));
            let address = first + u32::from(self.run) * 2 + u32::from(host);
            IpAddr::V4(Ipv4Addr::from(address))
        }
    }

    /// Returns the address of a router on the path to the world.
    pub(super) fn router(self) -> IpAddr {
        if self.six {
            IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 3, 0, 0, 0, 0, 1))
        } else {
            IpAddr::V4(Ipv4Addr::new(203, 0, 113, 77))
        }
    }

    /// Returns the port of a client, or the identifier of its echo requests.
    pub(super) fn port(self, port: u16) -> u16 {
        if port == PUBLISHED_PORT {
            return PUBLISHED[0][0];
        }
        10_000 + (self.run % 12_000) * 4 + port
    }

    /// Returns the identification of a sender's packet. No sender repeats one while a receiver may
    /// wait for fragments.
    pub(super) fn identification(self, number: u16) -> u16 {
        self.run.wrapping_mul(32).wrapping_add(number)
    }

    /// Returns the address and port from which the client of a flow sends.
    pub(super) fn client(self, flow: &Flow) -> (IpAddr, u16) {
        let address = match flow.path {
            Path::Out { pod, .. } | Path::Between { pod, .. } => pod_address(pod, self.six),
            Path::In { host, .. } => self.host(host),
        };
        let port = match flow.protocol {
            Protocol::Portless => 0,
            Protocol::Tcp | Protocol::Udp | Protocol::Echo => self.port(flow.port),
        };
        (address, port)
    }

    /// Returns the address and port to which the client of a flow sends.
    pub(super) fn destination(self, flow: &Flow) -> (IpAddr, u16) {
        let (address, port) = match flow.path {
            Path::Out { host, port, .. } => (self.host(host), 443 + port),
            Path::In { entry, .. } | Path::Between { entry, .. } => match entry {
                Entry::Published { node, pod, port } => {
                    (node_address(node, self.six), PUBLISHED[pod][port])
                }
                Entry::Own { pod } => (pod_address(pod, self.six), SERVED),
            },
        };
        let port = if flow.protocol.has_ports() { port } else { 0 };
        (address, port)
    }

    /// Returns the name of an address in reports.
    pub(super) fn name(self, address: IpAddr) -> String {
        let family = usize::from(self.six);
        let pods = (0..PODS.len()).map(|pod| (pod_address(pod, self.six), format!("pod {pod}")));
        let nodes = (0..2).map(|node| (node_address(node, self.six), format!("node {node}")));
        let hosts = (0..2).map(|host| (self.host(host), format!("host {host}")));
        let others = [
            (GATEWAYS[family], "gateway".to_owned()),
            (WORLD[family], "world".to_owned()),
            (self.router(), "router".to_owned()),
        ];
        pods.chain(nodes)
            .chain(hosts)
            .chain(others)
            .find(|(known, _)| *known == address)
            .map_or_else(|| address.to_string(), |(_, name)| name)
    }
}
