//! Packet sockets (packet(7)): captures the IP packets that a machine receives, and sends arbitrary
//! Ethernet frames.

use std::io::{self, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{LinkAddr, MsgFlags, recvfrom, recvmsg, sendto, setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{Machine, deadline, ping};

/// `ETH_P_ALL` in network byte order (packet(7)).
const ALL: i32 = 0x0003_u16.to_be() as i32;

/// `PACKET_OUTGOING` (packet(7)): a packet that the machine itself sends, of which the socket also
/// gets a copy.
const OUTGOING: u8 = 4;

/// Opens a packet socket that receives all packets of `machine`.
fn packet_socket(machine: &Machine, kind: Type) -> Result<Socket> {
    let socket = machine
        .run(|| Socket::new(Domain::PACKET, kind, Some(Protocol::from(ALL))))
        .with_context(|| format!("{}: no packet socket", machine.name()))?;
    setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20))?;
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    Ok(socket)
}

/// A packet socket that returns packets from the IP header on (`SOCK_DGRAM`).
#[derive(Debug)]
pub struct Capture(Socket);

impl Capture {
    /// Starts to capture all packets that `machine` receives.
    pub fn start(machine: &Machine) -> Result<Self> {
        packet_socket(machine, Type::DGRAM).map(Self)
    }

    /// Waits for a packet that matches `last`, and returns the packets received before it.
    ///
    /// `what` describes that packet in the error after [`deadline`].
    pub fn until(&self, what: &str, last: impl Fn(&[u8]) -> bool) -> Result<Vec<Vec<u8>>> {
        let start = Instant::now();
        let mut before = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        while start.elapsed() < deadline() {
            let Ok((length, from)) = recvfrom::<LinkAddr>(self.0.as_raw_fd(), &mut buffer) else {
                continue;
            };
            let packet = &buffer[..length];
            if !is_received(packet, from) {
                continue;
            }
            if last(packet) {
                return Ok(before);
            }
            before.push(packet.to_vec());
        }
        bail!("timeout: {what} did not arrive; captured {before:02x?}")
    }

    /// Returns the packets that have arrived, without waiting.
    pub fn drain(&self) -> Result<Vec<Vec<u8>>> {
        let mut packets = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let mut parts = [IoSliceMut::new(&mut buffer)];
            let now = MsgFlags::MSG_DONTWAIT;
            let (length, from) =
                match recvmsg::<LinkAddr>(self.0.as_raw_fd(), &mut parts, None, now) {
                    Ok(received) => (received.bytes, received.address),
                    Err(Errno::EAGAIN) => return Ok(packets),
                    Err(error) => return Err(error).context("cannot read a packet socket"),
                };
            if is_received(&buffer[..length], from) {
                packets.push(buffer[..length].to_vec());
            }
        }
    }
}

/// Returns whether a packet is an IP packet that the machine has not sent itself.
fn is_received(packet: &[u8], from: Option<LinkAddr>) -> bool {
    let is_own = from.is_none_or(|from| from.pkttype() == OUTGOING);
    !is_own && matches!(packet.first().map(|byte| byte >> 4), Some(4 | 6))
}

/// A packet socket that returns whole frames of any protocol from the Ethernet header on
/// (`SOCK_RAW`). The kernel has removed the outer VLAN tag of each.
#[derive(Debug)]
pub struct FrameCapture(Socket);

impl FrameCapture {
    /// Starts to capture all frames that `machine` receives.
    pub fn start(machine: &Machine) -> Result<Self> {
        packet_socket(machine, Type::RAW).map(Self)
    }

    /// Waits for a frame that contains `last`, and returns the frames received before it.
    pub fn until(&self, last: &[u8]) -> Result<Vec<Vec<u8>>> {
        let start = Instant::now();
        let mut before = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        while start.elapsed() < deadline() {
            let Ok((length, from)) = recvfrom::<LinkAddr>(self.0.as_raw_fd(), &mut buffer) else {
                continue;
            };
            let frame = &buffer[..length];
            if from.is_none_or(|from| from.pkttype() == OUTGOING) {
                continue;
            }
            if contains(frame, last) {
                return Ok(before);
            }
            before.push(frame.to_vec());
        }
        bail!("timeout: the last frame did not arrive; captured {before:02x?}")
    }
}

/// Returns whether `bytes` contains `part`.
pub fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// A packet socket that sends Ethernet frames unchanged on one link (`SOCK_RAW`).
#[derive(Debug)]
pub struct FrameSender {
    socket: Socket,
    link: LinkAddr,
}

impl FrameSender {
    /// Opens a socket that sends on `link` of `machine`, packets of the family of `neighbour`,
    /// which must be reachable by that link. The kernel sends packets of other families as well,
    /// but looks for their transport header in the wrong place.
    pub fn new(machine: &Machine, link: &str, neighbour: IpAddr) -> Result<Self> {
        let (socket, index) = machine
            .run(|| {
                let kind = Some(Protocol::from(ALL));
                let socket = Socket::new(Domain::PACKET, Type::RAW, kind)?;
                Ok::<_, io::Error>((socket, if_nametoindex(link)? as usize))
            })
            .with_context(|| format!("{}: no packet socket", machine.name()))?;
        // The link-layer address of the socket comes from a packet that arrives on the link: the
        // answer of the neighbour.
        let protocol: u16 = if neighbour.is_ipv4() { 0x0800 } else { 0x86dd };
        let is_answer =
            |from: &LinkAddr| from.ifindex() == index && from.protocol() == protocol.to_be();
        ping(machine, neighbour, 1)?;
        let start = Instant::now();
        while start.elapsed() < deadline() {
            let (_, from) = recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut [0; 64])?;
            if let Some(link) = from.filter(is_answer) {
                return Ok(Self { socket, link });
            }
        }
        bail!("no packet arrived on {link}")
    }

    /// Sends a frame, Ethernet header included.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        let socket = self.socket.as_raw_fd();
        let sent = sendto(socket, frame, &self.link, MsgFlags::empty())?;
        ensure!(sent == frame.len(), "{sent} of {} bytes", frame.len());
        Ok(())
    }
}
