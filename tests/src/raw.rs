//! Raw sockets (raw(7)): send arbitrary IP packets, and receive packets from the transport header
//! on.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg, setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{Machine, deadline};

/// `IPPROTO_RAW`: the sender writes the IP header itself (raw(7)).
const WHOLE_PACKETS: i32 = 255;

/// A raw socket of one family.
#[derive(Debug)]
pub struct RawSocket {
    // Only calls are used that work on a raw socket as on a UDP socket.
    socket: UdpSocket,
    six: bool,
}

/// A received packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawPacket {
    /// The packet's source address.
    pub from: IpAddr,
    /// The packet from the transport header on.
    pub payload: Vec<u8>,
}

impl RawSocket {
    /// Opens a socket that sends whole packets, IP header included, in the family of `like`.
    pub fn sender(machine: &Machine, like: IpAddr) -> Result<Self> {
        Self::open(machine, like, WHOLE_PACKETS)
    }

    /// Opens a socket that receives a copy of each packet of this protocol to the machine, in the
    /// family of `like`.
    pub fn listener(machine: &Machine, like: IpAddr, protocol: u8) -> Result<Self> {
        Self::open(machine, like, i32::from(protocol))
    }

    fn open(machine: &Machine, like: IpAddr, protocol: i32) -> Result<Self> {
        let domain = if like.is_ipv4() {
            Domain::IPV4
        } else {
            Domain::IPV6
        };
        let socket = machine
            .run(|| Socket::new(domain, Type::RAW, Some(Protocol::from(protocol))))
            .with_context(|| format!("{}: no raw socket", machine.name()))?;
        // A buffer for bursts, beyond `rmem_max`.
        setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20))?;
        Ok(Self {
            socket: socket.into(),
            six: like.is_ipv6(),
        })
    }

    /// Sends a packet (see [`RawSocket::sender`]) or a payload (see [`RawSocket::listener`]).
    pub fn send(&self, bytes: &[u8], to: IpAddr) -> Result<()> {
        self.socket
            .send_to(bytes, SocketAddr::new(to, 0))
            .with_context(|| format!("cannot send a raw packet to {to}"))
            .map(drop)
    }

    /// Sends packets as [`RawSocket::send`] does, with one system call.
    pub fn send_all(&self, packets: &[Vec<u8>], to: IpAddr) -> Result<()> {
        let address = Some(SockaddrStorage::from(SocketAddr::new(to, 0)));
        let slices: Vec<[IoSlice<'_>; 1]> = packets
            .iter()
            .map(|packet| [IoSlice::new(packet)])
            .collect();
        let sent = sendmmsg(
            self.socket.as_raw_fd(),
            &mut MultiHeaders::preallocate(packets.len(), None),
            &slices,
            vec![address; packets.len()],
            [],
            MsgFlags::empty(),
        )
        .with_context(|| format!("cannot send raw packets to {to}"))?
        .count();
        ensure!(sent == packets.len(), "{sent} of {} packets", packets.len());
        Ok(())
    }

    /// Waits for a packet that matches `wanted`, and returns it. Other packets are ignored.
    ///
    /// `what` describes the packet in the error after [`deadline`].
    pub fn receive(&self, what: &str, wanted: impl Fn(&RawPacket) -> bool) -> Result<RawPacket> {
        let mut packets = self.receive_until(what, wanted)?;
        packets.pop().context("the last packet matches")
    }

    /// Waits for a packet that matches `last`, and returns all packets up to and including it.
    pub fn receive_until(
        &self,
        what: &str,
        last: impl Fn(&RawPacket) -> bool,
    ) -> Result<Vec<RawPacket>> {
        let start = Instant::now();
        let mut all = Vec::new();
        self.socket
            .set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut buffer = vec![0; 1 << 16];
        while start.elapsed() < deadline() {
            let Ok((length, from)) = self.socket.recv_from(&mut buffer) else {
                continue;
            };
            let packet = self.parse(&buffer[..length], from.ip());
            let found = last(&packet);
            all.push(packet);
            if found {
                return Ok(all);
            }
        }
        bail!("timeout: {what} did not arrive; received {all:02x?}")
    }

    /// Strips the IP header. Raw sockets return the IPv4 header, but not the IPv6 header (raw(7),
    /// ipv6(7)).
    fn parse(&self, bytes: &[u8], from: IpAddr) -> RawPacket {
        let header = if self.six {
            0
        } else {
            bytes.first().map_or(0, |byte| usize::from(byte & 0xf) * 4)
        };
        RawPacket {
            from,
            payload: bytes.get(header..).unwrap_or_default().to_vec(),
        }
    }
}
