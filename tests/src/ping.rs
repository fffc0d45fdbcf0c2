//! ICMP echo: round trips, and as whom the other side sees the sender.

use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::Machine;

/// Round trip times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rtt {
    /// The shortest.
    pub min: Duration,
    /// The mean.
    pub mean: Duration,
}

/// Sends `count` echo requests, each of which must be answered.
pub fn ping(machine: &Machine, to: IpAddr, count: u32) -> Result<Rtt> {
    let printed = machine.call(&format!("ping -n -q -c {count} -i 0.005 -W 3 {to}"))?;
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

/// Sends one echo request from an address of `machine`, which must be answered.
pub fn ping_from(machine: &Machine, own: IpAddr, to: IpAddr) -> Result<()> {
    let line = format!("ping -n -q -c 1 -W 3 -I {own} {to}");
    machine.call(&line).map(drop)
}

/// Sends one echo request from `machine` to `to`, an address of `other`, and returns whose it was to `other`.
pub fn ping_source(machine: &Machine, other: &Machine, to: IpAddr) -> Result<IpAddr> {
    let heard = other.run(|| listen(to))?;
    ping(machine, to, 1)?;
    let mut buffer = [0; 2048];
    loop {
        let (length, peer) = heard
            .recv_from(&mut buffer)
            .context("the other side heard no echo request")?;
        if is_request(&buffer[..length], to) {
            return Ok(peer.ip());
        }
    }
}

/// A raw socket that gets a copy of each ICMP message to the machine.
fn listen(to: IpAddr) -> Result<UdpSocket> {
    let (family, protocol) = if to.is_ipv4() {
        (AddressFamily::Inet, SockProtocol::Icmp)
    } else {
        (AddressFamily::Inet6, SockProtocol::IcmpV6)
    };
    let raw: OwnedFd = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    // Only receiving with a source address is asked of it, which works alike on raw sockets.
    let socket = UdpSocket::from(raw);
    socket.set_read_timeout(Some(Duration::from_secs(3)))?;
    Ok(socket)
}

/// Raw sockets hand out the IPv4 header, but not that of IPv6 (raw(7), ipv6(7)).
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
