//! ICMP echo: round-trip times, and the source address that the destination sees.

use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::{Machine, patient};

/// Timeout of a reply.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Round-trip times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rtt {
    /// The shortest.
    pub min: Duration,
    /// The mean.
    pub mean: Duration,
}

/// Sends `count` echo requests; a missing reply is an error.
pub fn ping(machine: &Machine, to: IpAddr, count: u32) -> Result<Rtt> {
    let timeout = patient(TIMEOUT).as_secs();
    let line = format!("ping -n -q -c {count} -i 0.005 -W {timeout} {to}");
    let printed = machine.call(&line)?;
    let mut times = printed
        .lines()
        .find_map(|line| line.strip_prefix("rtt min/avg/max/mdev = "))
        .with_context(|| format!("ping printed {printed}"))?
        .split(['/', ' '])
        .map_while(|time| time.parse::<f64>().ok())
        .map(|milliseconds| Duration::from_secs_f64(milliseconds / 1000.0));
    Ok(Rtt {
        min: times.next().context("no shortest time")?,
        mean: times.next().context("no mean time")?,
    })
}

/// Sends one echo request from the address `own` of `machine`; a missing reply is an error.
pub fn ping_from(machine: &Machine, own: IpAddr, to: IpAddr) -> Result<()> {
    let timeout = patient(TIMEOUT).as_secs();
    let line = format!("ping -n -q -c 1 -W {timeout} -I {own} {to}");
    machine.call(&line).map(drop)
}

/// Sends one echo request from `machine` to `to`, an address of `other`, and returns the source
/// address that `other` sees.
pub fn ping_source(machine: &Machine, other: &Machine, to: IpAddr) -> Result<IpAddr> {
    let listener = other.run(|| listen(to))?;
    ping(machine, to, 1)?;
    let mut buffer = [0; 2048];
    loop {
        let (length, peer) = listener
            .recv_from(&mut buffer)
            .context("no echo request arrived")?;
        if is_request(&buffer[..length], to) {
            return Ok(peer.ip());
        }
    }
}

/// Opens a raw socket that gets a copy of each ICMP message to the machine.
fn listen(to: IpAddr) -> Result<UdpSocket> {
    let (family, protocol) = if to.is_ipv4() {
        (AddressFamily::Inet, SockProtocol::Icmp)
    } else {
        (AddressFamily::Inet6, SockProtocol::IcmpV6)
    };
    let raw: OwnedFd = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    // It is used only for `recvfrom`, which works on a raw socket as on a UDP socket.
    let socket = UdpSocket::from(raw);
    socket.set_read_timeout(Some(patient(TIMEOUT)))?;
    Ok(socket)
}

/// Returns whether a message is an echo request. Raw sockets return the IPv4 header, but not the
/// IPv6 header (raw(7), ipv6(7)).
fn is_request(message: &[u8], to: IpAddr) -> bool {
    const ECHO_REQUEST: [u8; 2] = [8, 128];
    let (offset, kind) = match to {
        IpAddr::V4(_) => {
            let header = message
                .first()
                .map_or(0, |byte| usize::from(byte & 0xf) * 4);
            (header, ECHO_REQUEST[0])
        }
        IpAddr::V6(_) => (0, ECHO_REQUEST[1]),
    };
    message.get(offset) == Some(&kind)
}
