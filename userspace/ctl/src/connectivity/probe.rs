//! Sends the packets of a cell and waits for the answer. Sockets are opened in the namespace where
//! the connection begins; waiting takes place outside.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use kernel::Namespace;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, ip_mtu, ipv6_mtu, set_ip_mtu_discover,
    set_ipv6_mtu_discover,
};
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, TYPE};
use socket2::{Domain, Protocol, Socket, Type};

use super::finding::Finding;
use super::plan::{Cell, Probe};
use super::server;

/// Time within which an answer must arrive.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time after which a packet is sent again.
const AGAIN: Duration = Duration::from_millis(250);
/// Length of an IPv4 header without options, of an IPv6 header, and of a UDP or ICMP header.
const HEADERS: [u32; 3] = [20, 40, 8];
/// Shortest MTU of IPv4 and of IPv6 links, in bytes.
const SHORTEST: [u32; 2] = [576, 1280];
/// Types of echo request and reply, of ICMP and ICMPv6.
const ECHO: [[u8; 2]; 2] = [[8, 0], [128, 129]];
/// Payload of small probes.
const PAYLOAD: &[u8] = b"viaductctl test";

/// Where a connection begins; `None` is the namespace of this process.
pub(super) type Place<'a> = Option<&'a Namespace>;

/// Identifier of the next echo request.
static IDENTIFIER: AtomicU16 = AtomicU16::new(1);

/// Runs the probe of a cell until it is answered, fails, its time is over, or `stop` is set.
pub(super) fn run(cell: &Cell, place: Place<'_>, stop: &AtomicBool) -> Finding {
    let started = Instant::now();
    let result = match &cell.probe {
        Probe::Tcp => echoed(cell.to, place).map(|()| true),
        Probe::Connect => connect(cell.to, place).map(|_| true),
        Probe::Udp => Exchange::udp(cell.to, place).and_then(|it| it.small(stop)),
        Probe::Icmp => Exchange::icmp(cell.to, place).and_then(|it| it.small(stop)),
        Probe::LargeUdp(bytes) => return large(Exchange::udp(cell.to, place), *bytes, stop),
        Probe::LargeIcmp(bytes) => return large(Exchange::icmp(cell.to, place), *bytes, stop),
        Probe::Dns(name) => return resolve(name, cell.to, place, stop),
    };
    match result {
        Ok(true) => Finding::Answered(started.elapsed()),
        Ok(false) => lost(stop),
        Err(error) if is_timeout(&error) => lost(stop),
        Err(error) => Finding::Refused(error.to_string()),
    }
}

fn lost(stop: &AtomicBool) -> Finding {
    if stop.load(Ordering::Relaxed) {
        Finding::Interrupted
    } else {
        Finding::Lost { fits: None }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

/// Runs `work` where the connection begins.
pub(super) fn within<T>(place: Place<'_>, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    match place {
        Some(namespace) => namespace.run(work),
        None => work(),
    }
}

/// Connects to a server.
pub(super) fn connect(to: SocketAddr, place: Place<'_>) -> io::Result<TcpStream> {
    let stream = within(place, || TcpStream::connect_timeout(&to, PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Connects to a server of this test, and requires that it echoes bytes.
fn echoed(to: SocketAddr, place: Place<'_>) -> io::Result<()> {
    let mut stream = connect(to, place)?;
    stream.write_all(&[server::ECHO])?;
    stream.write_all(PAYLOAD)?;
    let mut answer = [0; PAYLOAD.len()];
    stream.read_exact(&mut answer)?;
    if answer == PAYLOAD {
        Ok(())
    } else {
        Err(io::Error::other("another server answered"))
    }
}

/// A socket whose packets are answered by packets of the same length.
struct Exchange {
    socket: Socket,
    to: SocketAddr,
    /// Identifier of echo requests; `None` for UDP.
    identifier: Option<u16>,
}

impl Exchange {
    fn udp(to: SocketAddr, place: Place<'_>) -> io::Result<Self> {
        let any = match to.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        within(place, || {
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(to)?;
            Ok(Self {
                socket: socket.into(),
                to,
                identifier: None,
            })
        })
    }

    /// Opens a raw socket, because the group range of ping sockets is empty in new namespaces.
    fn icmp(to: SocketAddr, place: Place<'_>) -> io::Result<Self> {
        let (domain, protocol) = match to.ip() {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        within(place, || {
            let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
            socket.connect(&to.into())?;
            Ok(Self {
                socket,
                to,
                identifier: Some(IDENTIFIER.fetch_add(1, Ordering::Relaxed)),
            })
        })
    }

    /// Sends a short packet until it is answered.
    fn small(&self, stop: &AtomicBool) -> io::Result<bool> {
        self.answered(PAYLOAD, PATIENCE, stop)
    }

    /// Forbids fragments, whatever the known MTU of the path is.
    fn forbid_fragments(&self) -> io::Result<()> {
        if self.to.is_ipv4() {
            set_ip_mtu_discover(&self.socket, Ipv4PathMtuDiscovery::PROBE)?;
        } else {
            set_ipv6_mtu_discover(&self.socket, Ipv6PathMtuDiscovery::PROBE)?;
        }
        Ok(())
    }

    fn path_mtu(&self) -> io::Result<u32> {
        Ok(if self.to.is_ipv4() {
            ip_mtu(&self.socket)?
        } else {
            ipv6_mtu(&self.socket)?
        })
    }

    /// Sends a packet of `bytes`, IP header included, until it is answered.
    fn whole(&self, bytes: u32, patience: Duration, stop: &AtomicBool) -> io::Result<bool> {
        let header = HEADERS[usize::from(!self.to.is_ipv4())] + HEADERS[2];
        let length = bytes.saturating_sub(header).max(1);
        let payload = vec![0x56; usize::try_from(length).unwrap_or(1)];
        self.answered(&payload, patience, stop)
    }

    fn answered(&self, payload: &[u8], patience: Duration, stop: &AtomicBool) -> io::Result<bool> {
        let packet = self.packet(payload);
        self.socket.set_read_timeout(Some(AGAIN.min(patience)))?;
        let end = Instant::now() + patience;
        let mut buffer = vec![0; 1 << 16];
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            (&self.socket).write_all(&packet)?;
            let again = Instant::now() + AGAIN;
            while Instant::now() < again.min(end) {
                match (&self.socket).read(&mut buffer) {
                    Ok(length) if self.is_answer(&buffer[..length], payload) => return Ok(true),
                    Ok(_) => {}
                    Err(error) if is_timeout(&error) => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(false)
    }

    fn packet(&self, payload: &[u8]) -> Vec<u8> {
        let Some(identifier) = self.identifier else {
            return payload.to_vec();
        };
        let [request, _] = ECHO[usize::from(!self.to.is_ipv4())];
        echo_request(request, identifier, payload)
    }

    fn is_answer(&self, received: &[u8], payload: &[u8]) -> bool {
        let Some(identifier) = self.identifier else {
            return received == payload;
        };
        let [_, reply] = ECHO[usize::from(!self.to.is_ipv4())];
        // A raw socket of IPv4 returns the IP header too.
        let skipped = match received.first() {
            Some(first) if self.to.is_ipv4() => usize::from(first & 0xf) * 4,
            _ => 0,
        };
        let message = received.get(skipped..).unwrap_or_default();
        message.first() == Some(&reply)
            && message.get(4..6) == Some(identifier.to_be_bytes().as_slice())
            && message.get(8..) == Some(payload)
    }
}

/// Returns an echo request with its checksum (RFC 1071). For ICMPv6 the kernel overwrites it.
fn echo_request(kind: u8, identifier: u16, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend(identifier.to_be_bytes());
    message.extend([0, 1]);
    message.extend(payload);
    let mut sum: u32 = message
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [.., high, low] = (!sum).to_be_bytes();
    message[2..4].copy_from_slice(&[high, low]);
    message
}

/// Sends a packet of `bytes`. If it gets lost, looks for the longest one that does not.
fn large(exchange: io::Result<Exchange>, bytes: u32, stop: &AtomicBool) -> Finding {
    let started = Instant::now();
    let probe = |exchange: &Exchange| {
        exchange.forbid_fragments()?;
        exchange.whole(bytes, PATIENCE, stop)
    };
    let exchange = match exchange {
        Ok(exchange) => exchange,
        Err(error) => return Finding::Refused(error.to_string()),
    };
    match probe(&exchange) {
        Ok(true) => return Finding::Answered(started.elapsed()),
        Ok(false) => {}
        Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EMSGSIZE as i32) => {
            return match exchange.path_mtu() {
                Ok(mtu) => Finding::TooLong(mtu),
                Err(error) => Finding::Refused(error.to_string()),
            };
        }
        Err(error) => return Finding::Refused(error.to_string()),
    }
    if stop.load(Ordering::Relaxed) {
        return Finding::Interrupted;
    }
    let shortest = SHORTEST[usize::from(!exchange.to.is_ipv4())];
    let fits = longest(shortest, bytes, |bytes| {
        exchange.whole(bytes, AGAIN, stop).unwrap_or(false)
    });
    Finding::Lost { fits }
}

/// Returns the longest packet that `fits`, which may not be `bytes`; `None` if not even the
/// shortest one does.
fn longest(shortest: u32, bytes: u32, mut fits: impl FnMut(u32) -> bool) -> Option<u32> {
    let (mut low, mut high) = (shortest, bytes);
    if low >= high || !fits(low) {
        return None;
    }
    while high - low > 1 {
        let middle = u32::midpoint(low, high);
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low)
}

/// Queries the addresses of a name.
fn resolve(name: &str, server: SocketAddr, place: Place<'_>, stop: &AtomicBool) -> Finding {
    let mut addresses = Vec::new();
    for kind in [TYPE::A, TYPE::AAAA] {
        match query(name, kind, server, place, stop) {
            Ok(Some(found)) => addresses.extend(found),
            Ok(None) => return lost(stop),
            Err(error) => return Finding::Refused(error.to_string()),
        }
    }
    Finding::Resolved(addresses)
}

fn query(
    name: &str,
    kind: TYPE,
    server: SocketAddr,
    place: Place<'_>,
    stop: &AtomicBool,
) -> io::Result<Option<Vec<String>>> {
    let identifier = IDENTIFIER.fetch_add(1, Ordering::Relaxed);
    let mut packet = Packet::new_query(identifier);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).map_err(io::Error::other)?;
    packet
        .questions
        .push(Question::new(name, kind.into(), CLASS::IN.into(), false));
    let bytes = packet.build_bytes_vec().map_err(io::Error::other)?;
    let exchange = Exchange::udp(server, place)?;
    exchange.socket.set_read_timeout(Some(AGAIN))?;
    let end = Instant::now() + PATIENCE;
    let mut buffer = [0; 4096];
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        (&exchange.socket).write_all(&bytes)?;
        let received = match (&exchange.socket).read(&mut buffer) {
            Ok(length) => &buffer[..length],
            Err(error) if is_timeout(&error) => continue,
            Err(error) => return Err(error),
        };
        if let Some(answer) = answer(received, identifier)? {
            return Ok(Some(answer));
        }
    }
    Ok(None)
}

/// Returns the addresses in an answer; `None` for a packet that answers another query.
fn answer(bytes: &[u8], identifier: u16) -> io::Result<Option<Vec<String>>> {
    let packet = Packet::parse(bytes).map_err(io::Error::other)?;
    if packet.id() != identifier {
        return Ok(None);
    }
    if packet.rcode() != RCODE::NoError {
        let text = format!("the DNS server answered {:?}", packet.rcode());
        return Err(io::Error::other(text));
    }
    let addresses = packet.answers.iter().filter_map(|record| {
        if let RData::A(a) = &record.rdata {
            Some(Ipv4Addr::from(a.address).to_string())
        } else if let RData::AAAA(aaaa) = &record.rdata {
            Some(Ipv6Addr::from(aaaa.address).to_string())
        } else {
            None
        }
    });
    Ok(Some(addresses.collect()))
}

#[cfg(test)]
mod tests {
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::A;

    use super::*;

    #[test]
    fn the_longest_packet_that_fits_is_found_for_every_mtu() {
        for mtu in 576..1500 {
            assert_eq!(longest(576, 1500, |bytes| bytes <= mtu), Some(mtu));
        }
        assert_eq!(longest(576, 1500, |_| false), None);
        assert_eq!(longest(1280, 1280, |_| true), None);
    }

    #[test]
    fn an_echo_request_has_a_checksum_that_sums_up_to_all_ones() {
        for payload in [b"".as_slice(), b"odd", b"even", &[0xff; 1473]] {
            let message = echo_request(8, 0xfffe, payload);
            let sum: u64 = message
                .chunks(2)
                .map(|it| u64::from(it[0]) << 8 | u64::from(it.get(1).copied().unwrap_or(0)))
                .sum();
            assert_eq!(sum % 0xffff, 0, "{payload:?}");
            assert_eq!(message.len(), payload.len() + 8);
        }
    }

    #[test]
    fn a_dns_answer_to_another_query_is_no_answer() {
        let mut reply = Packet::new_reply(7);
        let name = Name::new_unchecked("example.org");
        let address = u32::from(Ipv4Addr::new(192, 0, 2, 7));
        let data = RData::A(A { address });
        reply
            .answers
            .push(ResourceRecord::new(name, CLASS::IN, 30, data));
        let bytes = reply.build_bytes_vec().unwrap();
        assert_eq!(answer(&bytes, 8).unwrap(), None);
        assert_eq!(
            answer(&bytes, 7).unwrap(),
            Some(vec!["192.0.2.7".to_owned()])
        );
        assert!(answer(&bytes[..11], 7).is_err());
        *reply.rcode_mut() = RCODE::NameError;
        let error = answer(&reply.build_bytes_vec().unwrap(), 7).unwrap_err();
        assert!(error.to_string().contains("NameError"), "{error}");
    }
}
