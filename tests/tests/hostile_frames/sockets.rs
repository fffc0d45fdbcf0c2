//! The sockets of a receiver: what its kernel accepts, and what reaches its link.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result};
use e2e::Machine;
use nix::errno::Errno;
use nix::sys::socket::{LinkAddr, MsgFlags, recvmsg, setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use super::wire::markers;

/// Port of the UDP sockets of all receivers.
pub(crate) const PORT: u16 = 7000;
/// Port of DHCP clients, and of DHCPv6 clients.
const DHCP_CLIENTS: [u16; 2] = [68, 546];
/// Protocols with a raw socket: ICMP, TCP, UDP, GRE, SCTP, and one for experiments (RFC 3692).
const PROTOCOLS: [[i32; 6]; 2] = [[1, 6, 17, 47, 132, 253], [58, 6, 17, 47, 132, 253]];
/// `ETH_P_ALL` in network byte order (packet(7)).
const ALL: i32 = 0x0003_u16.to_be() as i32;
/// `PACKET_OUTGOING` (packet(7)).
const OUTGOING: u8 = 4;

/// The frame of a cell, as a socket of a receiver got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// Name of the socket.
    pub(crate) by: String,
    /// The source address that the socket returned.
    pub(crate) from: IpAddr,
}

/// What has arrived at a receiver, by cell.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// Frames that the kernel has delivered to a socket.
    pub(crate) accepted: BTreeMap<u16, Vec<Accepted>>,
    /// How many frames of a cell the link of the receiver got.
    pub(crate) on_link: BTreeMap<u16, usize>,
}

/// The sockets of one receiver.
#[derive(Debug)]
pub(crate) struct Sockets {
    named: Vec<(String, UdpSocket)>,
    link: Socket,
}

impl Sockets {
    /// Opens a UDP socket, one for each client of DHCP, a raw socket for each protocol and family,
    /// and a packet socket.
    pub(crate) fn open(machine: &Machine) -> Result<Self> {
        machine
            .run(|| -> Result<Self> {
                let mut named = Vec::new();
                for port in [PORT].into_iter().chain(DHCP_CLIENTS) {
                    named.push((format!("udp port {port}"), UdpSocket::bind(("::", port))?));
                }
                for (domain, protocols) in [Domain::IPV4, Domain::IPV6].into_iter().zip(PROTOCOLS) {
                    for protocol in protocols {
                        let kind = Some(Protocol::from(protocol));
                        let socket = Socket::new(domain, Type::RAW, kind)?;
                        named.push((format!("raw protocol {protocol}"), socket.into()));
                    }
                }
                for (_, socket) in &named {
                    socket.set_nonblocking(true)?;
                    setsockopt(socket, sockopt::RcvBufForce, &(4 << 20))?;
                }
                let link = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(ALL)))?;
                setsockopt(&link, sockopt::RcvBufForce, &(16 << 20))?;
                Ok(Self { named, link })
            })
            .with_context(|| format!("{}: no sockets", machine.name()))
    }

    /// Returns what has arrived since the last call.
    pub(crate) fn drain(&self) -> Result<Arrivals> {
        let mut arrivals = Arrivals::default();
        let mut buffer = vec![0; 1 << 16];
        for (name, socket) in &self.named {
            loop {
                let (length, from) = match socket.recv_from(&mut buffer) {
                    Ok(received) => received,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // An ICMP error about an answer of the kernel.
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                    Err(error) => return Err(error).with_context(|| name.clone()),
                };
                for cell in markers(&buffer[..length]) {
                    arrivals.accepted.entry(cell).or_default().push(Accepted {
                        by: name.clone(),
                        from: from.ip().to_canonical(),
                    });
                }
            }
        }
        self.drain_link(&mut arrivals)?;
        Ok(arrivals)
    }

    fn drain_link(&self, arrivals: &mut Arrivals) -> Result<()> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let mut parts = [std::io::IoSliceMut::new(&mut buffer)];
            let now = MsgFlags::MSG_DONTWAIT;
            let received = recvmsg::<LinkAddr>(self.link.as_raw_fd(), &mut parts, None, now);
            let (length, from) = match received {
                Ok(received) => (received.bytes, received.address),
                Err(Errno::EAGAIN) => return Ok(()),
                Err(error) => return Err(error).context("cannot read a packet socket"),
            };
            if from.is_none_or(|from| from.pkttype() == OUTGOING) {
                continue;
            }
            for cell in markers(&buffer[..length]) {
                *arrivals.on_link.entry(cell).or_default() += 1;
            }
        }
    }
}
