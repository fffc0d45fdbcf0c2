//! Packet traces, and the documented differences to netfilter.

use std::net::IpAddr;

use abi::Address;
use verdict::simulator::frame::{Body, Frame, flag};

/// A named sequence of steps.
pub(crate) struct Trace {
    pub(crate) name: String,
    /// The documented reason for a different outcome; `None` where the outcomes must be equal.
    pub(crate) explained: Option<&'static str>,
    pub(crate) steps: Vec<Step>,
}

/// Packets that one side sends together.
pub(crate) struct Step {
    pub(crate) way: Way,
    pub(crate) six: bool,
    pub(crate) packets: Vec<Vec<u8>>,
}

/// Direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the pod to the world.
    Out,
    /// From the world to the node.
    In,
}

/// A packet that starts with its IP header.
pub(crate) fn frame(source: IpAddr, destination: IpAddr, body: &Body) -> Frame {
    let abi = |address| match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    };
    let mut frame = Frame::new(abi(source), abi(destination), body.clone());
    frame.ethernet = None;
    frame
}

/// The addresses of pod, node and world in one family; makes the steps between them.
#[derive(Clone, Copy)]
struct Family {
    pod: IpAddr,
    node: IpAddr,
    world: IpAddr,
}

impl Family {
    fn out(self, body: &Body) -> Step {
        self.step(Way::Out, vec![frame(self.pod, self.world, body).packet()])
    }

    fn back(self, body: &Body) -> Step {
        self.step(Way::In, vec![frame(self.world, self.node, body).packet()])
    }

    fn step(self, way: Way, packets: Vec<Vec<u8>>) -> Step {
        Step {
            way,
            six: self.world.is_ipv6(),
            packets,
        }
    }

    fn trace(self, name: &str, steps: Vec<Step>) -> Trace {
        let family = if self.world.is_ipv4() { "IPv4" } else { "IPv6" };
        Trace {
            name: format!("{name}, {family}"),
            explained: None,
            steps,
        }
    }

    /// An ICMP error of the world that quotes `quoted` bytes of the packet `wire`, as the world
    /// received it.
    fn error(self, (kind, code): (u8, u8), rest: [u8; 4], wire: &Body, quoted: usize) -> Step {
        let mut packet = frame(self.node, self.world, wire).packet();
        packet.truncate(quoted);
        self.back(&Body::Icmp(kind, code, rest, packet))
    }

    /// The errors of this family: too big, unreachable, TTL exceeded.
    fn errors(self) -> [((u8, u8), [u8; 4]); 3] {
        if self.world.is_ipv4() {
            [
                ((3, 4), [0, 0, 0x05, 0x14]),
                ((3, 3), [0; 4]),
                ((11, 0), [0; 4]),
            ]
        } else {
            [
                ((2, 0), [0, 0, 0x05, 0x14]),
                ((1, 4), [0; 4]),
                ((3, 0), [0; 4]),
            ]
        }
    }

    fn header(self) -> usize {
        if self.world.is_ipv4() { 20 } else { 40 }
    }
}

fn tcp(from: u16, to: u16, flags: u8) -> Body {
    Body::Tcp(from, to, flags, Vec::new())
}

fn udp(from: u16, to: u16, text: &str) -> Body {
    Body::Udp(from, to, text.into())
}

/// An SCTP packet with the checksum that connection tracking verifies.
fn sctp(ports: [u16; 2], tag: [u8; 4], chunk: &[u8]) -> Body {
    let mut bytes = ports.map(u16::to_be_bytes).concat();
    bytes.extend(tag);
    bytes.extend([0; 4]);
    bytes.extend(chunk);
    let checksum = crc32c(&bytes).to_le_bytes();
    bytes[8..12].copy_from_slice(&checksum);
    Body::Other(132, bytes)
}

const INIT: [u8; 20] = [1, 0, 0, 20, 0, 0, 0, 9, 0, 0, 9, 9, 0, 1, 0, 1, 0, 0, 0, 1];
const INIT_ACK: [u8; 20] = [2, 0, 0, 20, 0, 0, 0, 7, 0, 0, 9, 9, 0, 1, 0, 1, 0, 0, 0, 1];

/// Returns the `CRC32c` of `bytes` (RFC 9260, appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(crc & 1));
        }
    }
    !crc
}

/// Returns all traces between a pod, its node and the world. Each uses its own ports.
pub(crate) fn all((pod, node, world): (IpAddr, IpAddr, IpAddr)) -> Vec<Trace> {
    let family = Family { pod, node, world };
    let mut traces = conversations(family);
    traces.extend(published(family));
    traces.extend(errors(family));
    traces.extend(oddities(family));
    traces.extend(explained(family));
    traces
}

fn conversations(family: Family) -> Vec<Trace> {
    const ACK: u8 = flag::ACK;
    let both = |there: Body, back: Body| vec![family.out(&there), family.back(&back)];
    let to = if family.world.is_ipv4() {
        Address::v4([0; 4])
    } else {
        Address::v6([1; 16])
    };
    vec![
        family.trace(
            "a TCP connection from SYN to the last ACK",
            vec![
                family.out(&tcp(42_000, 443, flag::SYN)),
                family.back(&tcp(443, 42_000, flag::SYN | ACK)),
                family.out(&tcp(42_000, 443, ACK)),
                family.out(&Body::Tcp(42_000, 443, ACK, b"GET /".to_vec())),
                family.back(&Body::Tcp(443, 42_000, ACK, b"200 OK!".to_vec())),
                family.out(&tcp(42_000, 443, flag::FIN | ACK)),
                family.back(&tcp(443, 42_000, flag::FIN | ACK)),
                family.out(&tcp(42_000, 443, ACK)),
            ],
        ),
        family.trace(
            "a TCP connection that is reset",
            both(
                tcp(42_001, 443, flag::SYN),
                tcp(443, 42_001, flag::RST | ACK),
            ),
        ),
        family.trace(
            "UDP and its answer",
            both(udp(42_002, 53, "who?"), udp(53, 42_002, "me!")),
        ),
        family.trace(
            "UDP of no bytes",
            both(udp(42_003, 53, ""), udp(53, 42_003, "")),
        ),
        family.trace(
            "ping",
            both(Body::echo_request(&to, 4_201), Body::echo_reply(&to, 4_201)),
        ),
        family.trace(
            "SCTP, from INIT to INIT ACK",
            both(
                sctp([42_004, 9], [0; 4], &INIT),
                sctp([9, 42_004], [0, 0, 0, 9], &INIT_ACK),
            ),
        ),
        family.trace(
            "a protocol without ports",
            both(
                Body::Other(253, b"there".to_vec()),
                Body::Other(253, b"back".to_vec()),
            ),
        ),
    ]
}

fn published(family: Family) -> Vec<Trace> {
    const ACK: u8 = flag::ACK;
    vec![
        family.trace(
            "a client of a published TCP port",
            vec![
                family.back(&tcp(43_000, 8080, flag::SYN)),
                family.out(&tcp(80, 43_000, flag::SYN | ACK)),
                family.back(&tcp(43_000, 8080, ACK)),
                family.out(&Body::Tcp(80, 43_000, ACK, b"hello".to_vec())),
                family.out(&tcp(80, 43_000, flag::FIN | ACK)),
                family.back(&tcp(43_000, 8080, flag::FIN | ACK)),
            ],
        ),
        family.trace(
            "a client of a published UDP port",
            vec![
                family.back(&udp(43_001, 8080, "who?")),
                family.out(&udp(80, 43_001, "me!")),
            ],
        ),
        family.trace(
            "a client of a port that is not published",
            vec![family.back(&udp(43_002, 8081, "?"))],
        ),
    ]
}

fn errors(family: Family) -> Vec<Trace> {
    let mut traces = Vec::new();
    for (number, (kind, rest)) in (0_u16..).zip(family.errors()) {
        let (port, long) = (44_000 + number * 10, family.header() + 400);
        let sent = |port| Body::Udp(port, 33_434, vec![7; 300]);
        let (short, head) = (family.header() + 8, family.header() + 60);
        for (step, quoted) in (0_u16..).zip([long, head, short]) {
            let wire = sent(port + step);
            traces.push(family.trace(
                &format!("an error {kind:?} that quotes up to {quoted} bytes of UDP"),
                vec![family.out(&wire), family.error(kind, rest, &wire, quoted)],
            ));
        }
        let syn = tcp(port + 5, 443, flag::SYN);
        traces.push(family.trace(
            &format!("an error {kind:?} that quotes TCP"),
            vec![family.out(&syn), family.error(kind, rest, &syn, short)],
        ));
        // An error of the pod about a packet that it received by a published port.
        let asked = frame(
            family.world,
            family.pod,
            &udp(port + 6, 80, "are you there?"),
        )
        .packet();
        traces.push(family.trace(
            &format!("an error {kind:?} of the pod about a client's packet"),
            vec![
                family.back(&udp(port + 6, 8080, "are you there?")),
                family.out(&Body::Icmp(kind.0, kind.1, rest, asked)),
            ],
        ));
    }
    traces
}

fn oddities(family: Family) -> Vec<Trace> {
    const ACK: u8 = flag::ACK;
    let mut traces = vec![
        family.trace(
            "an ACK of a connection without a SYN",
            vec![
                family.out(&Body::Tcp(45_000, 443, ACK, b"as I said".to_vec())),
                family.back(&tcp(443, 45_000, ACK)),
            ],
        ),
        family.trace(
            "a UDP reply without a request",
            vec![family.back(&udp(53, 45_001, "me!"))],
        ),
    ];
    if family.world.is_ipv4() {
        traces.push(family.trace(
            "UDP without a checksum",
            vec![
                family.out(&Body::UdpUnchecked(45_002, 53, b"who?".to_vec())),
                family.back(&Body::UdpUnchecked(53, 45_002, b"me!".to_vec())),
            ],
        ));
        traces.push(family.trace(
            "an ICMP timestamp",
            vec![
                family.out(&Body::Icmp(13, 0, [4, 5, 0, 1], vec![0; 12])),
                family.back(&Body::Icmp(14, 0, [4, 5, 0, 1], vec![1; 12])),
            ],
        ));
        let mut record = frame(family.pod, family.world, &udp(45_003, 53, "by which way?"));
        record.options = vec![(0, vec![1, 1, 1, 0])];
        traces.push(family.trace(
            "IPv4 options",
            vec![family.step(Way::Out, vec![record.packet()])],
        ));
    } else {
        let mut options = frame(family.pod, family.world, &udp(45_004, 53, "extended"));
        options.options = vec![(60, vec![1, 4, 0, 0, 0, 0])];
        traces.push(family.trace(
            "IPv6 destination options",
            vec![family.step(Way::Out, vec![options.packet()])],
        ));
    }
    traces
}

/// A datagram in two fragments.
fn fragments(family: Family, port: u16, identification: u32) -> [Vec<u8>; 2] {
    let body = Body::Udp(port, 53, vec![5; 2_000]);
    frame(family.pod, family.world, &body).fragments(identification, 1_400)
}

/// See docs/decisions/0010-match-netfilters-masquerade-except-for-listed-differences.md.
fn explained(family: Family) -> Vec<Trace> {
    let [first, second] = fragments(family, 46_000, 0x4343);
    let in_order = fragments(family, 46_002, 0x4242).to_vec();
    let in_order = family.trace(
        "two fragments in order",
        vec![family.step(Way::Out, in_order)],
    );
    let reverse = family.trace(
        "two fragments in reverse",
        vec![family.step(Way::Out, vec![second, first])],
    );
    let reset = family.trace(
        "a reset of an unknown connection",
        vec![family.out(&tcp(46_001, 443, flag::RST))],
    );
    let broken = family.trace(
        "SCTP with a wrong checksum",
        vec![family.out(&Body::Sctp(46_003, 9, INIT.to_vec()))],
    );
    let reply = if family.world.is_ipv4() { 0 } else { 129 };
    let reply = Body::Icmp(reply, 0, [18, 38, 0, 1], vec![9; 24]);
    let answer = family.trace("an echo reply without a request", vec![family.out(&reply)]);
    let quoted = frame(family.world, family.pod, &udp(46_010, 46_011, "unheard of"));
    let unreachable = if family.world.is_ipv4() {
        (3, 3)
    } else {
        (1, 4)
    };
    let complaint = Body::Icmp(unreachable.0, unreachable.1, [0; 4], quoted.packet());
    let complaint = family.trace(
        "an error about an unknown packet",
        vec![family.out(&complaint)],
    );
    let unanswerable = "for connection tracking it is invalid, and leaves with the pod's address";
    vec![
        answer.differs(unanswerable),
        complaint.differs(unanswerable),
        // Connection tracking refragments an IPv4 packet with its original identification.
        if family.world.is_ipv4() {
            in_order
        } else {
            in_order.differs("connection tracking gives fragments a new identification")
        },
        reverse
            .differs("connection tracking puts packets together; we need the first fragment first"),
        broken.differs("for connection tracking it is invalid, and leaves with the pod's address"),
        reset.differs("for connection tracking it is invalid, and leaves with the pod's address"),
    ]
}

impl Trace {
    /// Sets the documented reason for a different outcome.
    fn differs(mut self, why: &'static str) -> Self {
        self.explained = Some(why);
        self
    }
}

/// Returns a packet as text, field by field. An ICMP error is shown without the fields that each
/// node chooses itself (identification, flow label), and with the validity of its own checksums
/// instead of their values.
pub(crate) fn fields(packet: &[u8]) -> String {
    let four = packet[0] >> 4 == 4;
    let (at, number, hops) = if four {
        (usize::from(packet[0] & 0xf) * 4, packet[9], packet[8])
    } else {
        (40, packet[6], packet[7])
    };
    let (header, payload) = packet.split_at(at);
    let (addresses, rest) = if four {
        let rest = [&header[..8], &header[9..12], &header[20..]].map(hex);
        let addresses = format!("{} > {}", v4(&header[12..16]), v4(&header[16..20]));
        (addresses, rest.join(" "))
    } else {
        let addresses = format!("{} > {}", v6(&header[8..24]), v6(&header[24..40]));
        (addresses, hex(&header[..7]))
    };
    let is_error = match (number, payload.first()) {
        (1, Some(kind)) => [3, 4, 11, 12].contains(kind),
        (58, Some(kind)) => (1..=4).contains(kind),
        _ => false,
    };
    if is_error {
        let right = !four || sum(header) == 0xffff;
        let shown = error(header, payload);
        return format!("{addresses} hops {hops} header right {right}: {shown}");
    }
    format!("{addresses} hops {hops} {rest}: {}", hex(payload))
}

fn error(header: &[u8], message: &[u8]) -> String {
    let mut covered = Vec::new();
    if header.len() == 40 {
        covered.extend(&header[8..40]);
        covered.extend(u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
        covered.extend([0, 0, 0, 58]);
    }
    covered.extend(message);
    let verdict = if sum(&covered) == 0xffff {
        "right"
    } else {
        "wrong"
    };
    let (kind, rest) = (hex(&message[..2]), hex(&message[4..8]));
    format!(
        "{kind} checksum {verdict} {rest} about {}",
        hex(&message[8..])
    )
}

/// Returns the Internet checksum sum (RFC 1071) of `bytes`: all ones if they include a valid
/// checksum.
fn sum(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|pair| {
            let low = pair.get(1).copied().unwrap_or(0);
            u32::from(u16::from_be_bytes([pair[0], low]))
        })
        .fold(0, |sum, word| {
            let sum = sum + word;
            (sum & 0xffff) + (sum >> 16)
        })
}

fn v4(bytes: &[u8]) -> String {
    <[u8; 4]>::try_from(bytes).map_or_else(|_| hex(bytes), |v4| IpAddr::from(v4).to_string())
}

fn v6(bytes: &[u8]) -> String {
    <[u8; 16]>::try_from(bytes).map_or_else(|_| hex(bytes), |v6| IpAddr::from(v6).to_string())
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .concat()
}
