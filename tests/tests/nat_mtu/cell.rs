//! A path of UDP datagrams on which a sender's packets meet a smaller MTU, and what both ends must
//! see.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use abi::Address;
use anyhow::{Context as _, Result, ensure};
use e2e::{Machine, RawSocket, patient, udp_bound, udp_socket, until};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage, recvmsg, setsockopt,
    sockopt,
};
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, ip_mtu, ipv6_mtu, set_ip_mtu_discover,
    set_ipv6_mtu_discover,
};
use verdict::simulator::frame::{Body, Frame};

/// MTU of the sender's own link, in bytes.
pub(crate) const WIDE: u32 = 1500;
/// Number of packets after which a flow is in the flow cache.
const ESTABLISHED: u32 = 24;

/// A UDP sender whose packets meet a smaller MTU on their way, and the receiver.
pub(crate) struct Cell {
    machine: Machine,
    pub(crate) sender: UdpSocket,
    receiver: UdpSocket,
    /// The source of errors.
    router: IpAddr,
}

impl Cell {
    /// A client that sends to `to`, which leads to the server `at`.
    pub(crate) fn request(
        client: &Machine,
        to: SocketAddr,
        server: &Machine,
        at: SocketAddr,
        router: IpAddr,
    ) -> Result<Self> {
        let receiver = udp_bound(server, at)?;
        let sender = client.run(|| udp_socket(0, to))?;
        Self::open(client, sender, receiver, router)
    }

    /// The server `at`, to which the client's `to` leads, and which sends to the client.
    pub(crate) fn reply(
        client: &Machine,
        to: SocketAddr,
        server: &Machine,
        at: SocketAddr,
        router: IpAddr,
    ) -> Result<Self> {
        let sender = udp_bound(server, at)?;
        sender.set_read_timeout(Some(Duration::from_millis(200)))?;
        let receiver = client.run(|| udp_socket(0, to))?;
        let peer = until("the request arrives", || {
            receiver.send(b"?")?;
            Ok(sender.recv_from(&mut [0; 16]).ok().map(|(_, peer)| peer))
        })?;
        sender.connect(peer)?;
        // More requests may have arrived.
        while sender.recv(&mut [0; 16]).is_ok() {}
        Self::open(server, sender, receiver, router)
    }

    fn open(
        machine: &Machine,
        sender: UdpSocket,
        receiver: UdpSocket,
        router: IpAddr,
    ) -> Result<Self> {
        receiver.set_read_timeout(Some(patient(Duration::from_secs(1))))?;
        if router.is_ipv4() {
            setsockopt(&sender, sockopt::Ipv4RecvErr, &true)?;
        } else {
            setsockopt(&sender, sockopt::Ipv6RecvErr, &true)?;
        }
        forget_path_mtu(machine)?;
        Ok(Self {
            machine: machine.clone(),
            sender,
            receiver,
            router,
        })
    }

    /// Bytes of the headers before the payload of a datagram.
    fn headers(&self) -> usize {
        if self.router.is_ipv4() { 28 } else { 48 }
    }

    /// Returns the payload of a datagram that is a packet of `length` bytes.
    pub(crate) fn payload(&self, length: u32) -> Vec<u8> {
        pattern(length as usize - self.headers())
    }

    /// Never fragments in the sender, and reports errors.
    pub(crate) fn discover(&self) -> Result<()> {
        if self.router.is_ipv4() {
            set_ip_mtu_discover(&self.sender, Ipv4PathMtuDiscovery::DO)?;
        } else {
            set_ipv6_mtu_discover(&self.sender, Ipv6PathMtuDiscovery::DO)?;
        }
        Ok(())
    }

    /// Sends packets as long as the own link takes, without "don't fragment", whatever the path
    /// MTU.
    fn ignore_path_mtu(&self) -> Result<()> {
        if self.router.is_ipv4() {
            set_ip_mtu_discover(&self.sender, Ipv4PathMtuDiscovery::OMIT)?;
        } else {
            set_ipv6_mtu_discover(&self.sender, Ipv6PathMtuDiscovery::WANT)?;
        }
        Ok(())
    }

    pub(crate) fn path_mtu(&self) -> Result<u32> {
        Ok(if self.router.is_ipv4() {
            ip_mtu(&self.sender)?
        } else {
            ipv6_mtu(&self.sender)?
        })
    }

    /// Empties the error queue: the next call on the socket would fail with an error in it.
    fn discard_errors(&self) -> Result<()> {
        while queued_error(&self.sender)?.is_some() {}
        Ok(())
    }

    /// Expects the next datagram to have this payload. Requests that were sent more than once are
    /// no payload.
    pub(crate) fn expect_arrival(&self, payload: &[u8]) -> Result<()> {
        let mut buffer = vec![0; 1 << 16];
        let length = self.receiver.recv(&mut buffer).context("no datagram")?;
        ensure!(
            buffer[..length] == *payload,
            "{length} bytes instead of {}",
            payload.len()
        );
        Ok(())
    }

    /// One datagram is enough to learn the path MTU; those that fit it arrive, and only those.
    pub(crate) fn check_discovery(&self, mtu: u32) -> Result<()> {
        self.discover()?;
        // The flow is in the flow cache then.
        for _ in 0..ESTABLISHED {
            self.sender.send(b"small")?;
            self.expect_arrival(b"small").context("a small datagram")?;
        }
        self.sender.send(&self.payload(WIDE)).context("too long")?;
        let error = until("an error of a router", || queued_error(&self.sender))?;
        let expected = QueuedError {
            mtu,
            router: self.router,
            to: self.sender.peer_addr()?,
        };
        ensure!(error == expected, "{error:?} instead of {expected:?}");
        let path_mtu = self.path_mtu()?;
        ensure!(path_mtu == mtu, "the socket's path MTU is {path_mtu}");
        let again = self.sender.send(&self.payload(mtu + 1));
        let refused = again.err().and_then(|error| error.raw_os_error());
        ensure!(refused == Some(nix::libc::EMSGSIZE), "{refused:?}");
        self.discard_errors()?;
        let fits = self.payload(mtu);
        self.sender.send(&fits)?;
        self.expect_arrival(&fits).context("a datagram that fits")
    }

    /// Without "don't fragment", IPv4 datagrams arrive whole; IPv6 ones once the sender knows the
    /// MTU.
    pub(crate) fn check_fragmentation(&self) -> Result<()> {
        forget_path_mtu(&self.machine)?;
        self.ignore_path_mtu()?;
        self.discard_errors()?;
        for length in [WIDE as usize - 28, 4000, 9000] {
            let payload = pattern(length);
            if self.router.is_ipv4() {
                self.sender.send(&payload)?;
                self.expect_arrival(&payload)?;
                continue;
            }
            until("a large datagram arrives", || {
                self.discard_errors()?;
                self.sender.send(&payload)?;
                match self.expect_arrival(&payload) {
                    Err(error) if timed_out(&error) => Ok(None),
                    arrived => arrived.map(Some),
                }
            })?;
        }
        Ok(())
    }

    /// Errors quote packets as they were sent: whole ones, and fragments.
    fn check_quotes(&self, mtu: u32) -> Result<()> {
        let (from, to) = (self.sender.local_addr()?, self.sender.peer_addr()?);
        let frame = |length: u32| {
            let body = Body::Udp(from.port(), to.port(), self.payload(length));
            let mut frame = Frame::new(abi(from.ip()), abi(to.ip()), body);
            frame.ethernet = None;
            frame
        };
        self.expect_quote(&frame(WIDE).packet(), mtu)?;
        for (name, options) in options(from.ip()) {
            let length: usize = options.iter().map(|(_, bytes)| bytes.len()).sum();
            let of_numbers = if from.is_ipv4() { 0 } else { 2 * options.len() };
            let mut packet = frame(WIDE - u32::try_from(length + of_numbers)?);
            packet.options = options;
            self.expect_quote(&packet.packet(), mtu).context(name)?;
        }
        if !from.is_ipv4() {
            let [first, second] = frame(2 * 1448 + 40).fragments(0x77, 1448);
            self.expect_quote(&first, mtu).context("first fragment")?;
            self.expect_quote(&second, mtu).context("later fragment")?;
        }
        Ok(())
    }

    fn expect_quote(&self, packet: &[u8], mtu: u32) -> Result<()> {
        let (own, to) = (
            self.sender.local_addr()?.ip(),
            self.sender.peer_addr()?.ip(),
        );
        let (protocol, kind) = if own.is_ipv4() {
            (1, [3, 4])
        } else {
            (58, [2, 0])
        };
        let listener = RawSocket::listener(&self.machine, own, protocol)?;
        forget_path_mtu(&self.machine)?;
        RawSocket::sender(&self.machine, own)?.send(packet, to)?;
        let error = listener.receive("an error", |heard| heard.payload.starts_with(&kind))?;
        ensure!(error.from == self.router, "from {}", error.from);
        let (header, quote) = error.payload.split_at(8);
        ensure!(header[4..] == mtu.to_be_bytes(), "{header:x?}");
        ensure!(
            quote.len() >= 96 && packet.starts_with(quote),
            "quoted {quote:02x?}\nof {packet:02x?}"
        );
        Ok(())
    }

    pub(crate) fn check(&self, mtu: u32) -> Result<()> {
        self.check_discovery(mtu).context("path MTU discovery")?;
        self.check_quotes(mtu).context("quotes")?;
        self.check_fragmentation().context("fragmentation")
    }
}

/// IPv4 options or IPv6 extension headers, as in [`Frame::options`].
type Options = Vec<(u8, Vec<u8>)>;

/// Returns options that no router changes, with their names.
fn options(like: IpAddr) -> Vec<(&'static str, Options)> {
    if like.is_ipv4() {
        let nothing = vec![1; 4];
        // RFC 2113.
        let router_alert = vec![0x94, 4, 0, 0];
        return vec![
            ("options without meaning", vec![(0, nothing.clone())]),
            ("two options", vec![(0, nothing), (0, router_alert)]),
        ];
    }
    // PadN of RFC 8200.
    let padding = || vec![1, 4, 0, 0, 0, 0];
    vec![
        ("destination options", vec![(60, padding())]),
        ("hop-by-hop options", vec![(0, padding()), (60, padding())]),
    ]
}

fn timed_out(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<std::io::Error>();
    cause.is_some_and(|cause| matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

pub(crate) fn forget_path_mtu(machine: &Machine) -> Result<()> {
    machine.call("ip route flush cache")?;
    machine.call("ip -6 route flush cache").map(drop)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..=250).cycle().take(length).collect()
}

pub(crate) fn abi(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => Address::v4(v4.octets()),
        IpAddr::V6(v6) => Address::v6(v6.octets()),
    }
}

/// An ICMP error in the error queue of a socket.
#[derive(Debug, PartialEq, Eq)]
struct QueuedError {
    mtu: u32,
    router: IpAddr,
    /// The destination of the quoted packet.
    to: SocketAddr,
}

/// Returns the oldest ICMP error in the queue, without those of the own kernel.
fn queued_error(socket: &UdpSocket) -> Result<Option<QueuedError>> {
    loop {
        let mut space = nix::cmsg_space!([u8; 256]);
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let mut data = [0; 64];
        let mut iov = [std::io::IoSliceMut::new(&mut data)];
        let read =
            recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut iov, Some(&mut space), flags);
        let Ok(message) = read else {
            return Ok(None);
        };
        let to = message.address.as_ref().and_then(socket_address);
        for note in message.cmsgs()? {
            let error = if let ControlMessageOwned::Ipv4RecvErr(error, Some(from)) = note {
                (error.ee_info, IpAddr::V4(SockaddrIn::from(from).ip()))
            } else if let ControlMessageOwned::Ipv6RecvErr(error, Some(from)) = note {
                (error.ee_info, IpAddr::V6(SockaddrIn6::from(from).ip()))
            } else {
                continue;
            };
            let (mtu, router) = error;
            if let (Some(to), false) = (to, router.is_unspecified()) {
                return Ok(Some(QueuedError { mtu, router, to }));
            }
        }
    }
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address
        .as_sockaddr_in()
        .map(|v4| SocketAddr::from((v4.ip(), v4.port())));
    v4.or_else(|| {
        let v6 = address.as_sockaddr_in6()?;
        Some(SocketAddr::from((v6.ip(), v6.port())))
    })
}
