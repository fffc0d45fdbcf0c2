//! Packets below the transport: sending what no ordinary socket would send, and hearing exactly what arrives.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{Machine, deadline};

/// The protocol number of sockets whose users write the IP header themselves (raw(7)).
const WHOLE_PACKETS: i32 = 255;

/// A raw socket of one family.
#[derive(Debug)]
pub struct Raw {
    // Sending, receiving and waiting is all that is asked of it, which works alike on raw sockets.
    socket: UdpSocket,
    six: bool,
}

/// What a raw socket has heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The packet's source address.
    pub from: IpAddr,
    /// The packet from the transport header on.
    pub payload: Vec<u8>,
}

impl Raw {
    /// Sends whole packets, IP header included, of the family of `like`.
    pub fn sender(machine: &Machine, like: IpAddr) -> Result<Self> {
        Self::open(machine, like, WHOLE_PACKETS)
    }

    /// Hears a copy of each packet of this protocol that is for the machine.
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
        // Room for bursts, whatever the machine's limit for ordinary users.
        setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20))?;
        Ok(Self {
            socket: socket.into(),
            six: like.is_ipv6(),
        })
    }

    /// Sends a packet (see [`Raw::sender`]) or a payload (see [`Raw::listener`]).
    pub fn send(&self, bytes: &[u8], to: IpAddr) -> Result<()> {
        self.socket
            .send_to(bytes, SocketAddr::new(to, 0))
            .with_context(|| format!("cannot send a raw packet to {to}"))
            .map(drop)
    }

    /// Waits for a packet that is as `wanted`, and returns it; others are passed over.
    pub fn hear(&self, what: &str, wanted: impl Fn(&Heard) -> bool) -> Result<Heard> {
        let mut heard = self.hear_up_to(what, wanted)?;
        heard.pop().context("it ends with the one that was wanted")
    }

    /// Waits for a packet that is as `last`, and returns everything heard until then, it included.
    pub fn hear_up_to(&self, what: &str, last: impl Fn(&Heard) -> bool) -> Result<Vec<Heard>> {
        let start = Instant::now();
        let mut all = Vec::new();
        self.socket
            .set_read_timeout(Some(Duration::from_millis(200)))?;
        let mut buffer = vec![0; 1 << 16];
        while start.elapsed() < deadline() {
            let Ok((length, from)) = self.socket.recv_from(&mut buffer) else {
                continue;
            };
            let heard = self.heard(&buffer[..length], from.ip());
            let found = last(&heard);
            all.push(heard);
            if found {
                return Ok(all);
            }
        }
        bail!("waited in vain for {what}; heard {all:02x?}")
    }

    /// Raw sockets hand out the IPv4 header, but not that of IPv6 (raw(7), ipv6(7)).
    fn heard(&self, bytes: &[u8], from: IpAddr) -> Heard {
        let header = if self.six {
            0
        } else {
            bytes.first().map_or(0, |byte| usize::from(byte & 0xf) * 4)
        };
        Heard {
            from,
            payload: bytes.get(header..).unwrap_or_default().to_vec(),
        }
    }
}
