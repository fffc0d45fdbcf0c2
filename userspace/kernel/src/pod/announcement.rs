//! Announces the addresses of a pod's interface to its neighbours: gratuitous ARP (RFC 5227, 3) and
//! unsolicited neighbour advertisements (RFC 4861, 7.2.6).
//!
//! The frames leave by the pod's interface, so that bridges and switches learn the MAC address with
//! them, in the VLAN of the pod. They go past the queueing discipline: just after the link has its
//! carrier, a discipline that drops all frames may still be attached.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};
use std::{io, thread};

use model::Mac;
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, sendto, socket};
use steps::Announcement;

use crate::pod::netns::OpenNetns;
use crate::syscall;

const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
/// `ff02::1` (RFC 4291, 2.7.1), and its Ethernet address (RFC 2464, 7).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const BROADCAST: [u8; 6] = [0xff; 6];
const ICMPV6: u8 = 58;

/// Longest wait for the carrier of the link, and pause between two attempts.
const PATIENCE: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_micros(200);

/// Sends the announcement. A failure is logged: neighbours then find out when their probes fail.
pub(crate) fn announce(announcement: &Announcement) {
    if let Err(error) = try_announce(announcement) {
        let Announcement { ifname, netns, .. } = announcement;
        tracing::warn!(%ifname, netns = %netns.path, %error, "cannot announce the addresses of a pod: neighbours may send to their last owner for some seconds");
    }
}

fn try_announce(announcement: &Announcement) -> io::Result<()> {
    let open = OpenNetns::open(&announcement.netns)?;
    let (socket, index) = open.run(|| {
        let kind = (AddressFamily::Packet, SockType::Raw);
        // Without a protocol, the socket receives nothing.
        let socket = socket(kind.0, kind.1, SockFlag::SOCK_CLOEXEC, None)?;
        syscall::bypass_queues(&socket)?;
        Ok((socket, if_nametoindex(announcement.ifname.as_str())?))
    })?;
    let sent = (announcement.addresses.iter()).try_for_each(|address| {
        let (ethertype, frame) = frame(announcement.mac, *address);
        send(&socket, index, ethertype, &frame)
    });
    close_later(socket);
    sent
}

fn send(socket: &OwnedFd, index: u32, ethertype: u16, frame: &[u8]) -> io::Result<()> {
    let to = syscall::link_address(index, ethertype)?;
    let end = Instant::now() + PATIENCE;
    loop {
        match sendto(socket.as_raw_fd(), frame, &to, MsgFlags::empty()) {
            Ok(_) => return Ok(()),
            Err(Errno::ENOBUFS | Errno::ENETDOWN) if Instant::now() < end => thread::sleep(PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Closes a packet socket on another thread: the kernel waits for all CPUs (`packet_release`), for
/// longer than an ADD takes. Without a thread, the wait is here.
fn close_later(socket: OwnedFd) {
    let closed = thread::Builder::new()
        .name("close".to_owned())
        .stack_size(64 * 1024)
        .spawn(move || drop(socket));
    if let Err(error) = closed {
        tracing::debug!(%error, "cannot start a thread that closes a packet socket");
    }
}

/// Returns Ethertype and frame of the announcement of one address.
fn frame(mac: Mac, address: IpAddr) -> (u16, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (ARP, with_header(BROADCAST, mac, ARP, &arp(mac, v4))),
        IpAddr::V6(v6) => (
            IPV6,
            with_header(ALL_NODES_MAC, mac, IPV6, &advertisement(mac, v6)),
        ),
    }
}

fn with_header(to: [u8; 6], from: Mac, ethertype: u16, body: &[u8]) -> Vec<u8> {
    [&to[..], &from.0, &ethertype.to_be_bytes(), body].concat()
}

/// Returns a gratuitous request, as the kernel itself sends it: its sender asks for its own address
/// (RFC 826).
fn arp(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    const ETHERNET_IPV4_REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    let own = address.octets();
    [&ETHERNET_IPV4_REQUEST[..], &mac.0, &own, &[0; 6], &own].concat()
}

/// Returns an unsolicited advertisement that overrides what neighbours have (RFC 4861, 4.4).
fn advertisement(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    const OVERRIDE: u8 = 0x20;
    /// Bytes of header, address and option.
    const LENGTH: u8 = 32;
    const TARGET_LINK_LAYER_ADDRESS: [u8; 2] = [2, 1];
    let own = address.octets();
    let mut message = vec![136, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend(own);
    message.extend(TARGET_LINK_LAYER_ADDRESS);
    message.extend(mac.0);
    let to = ALL_NODES.octets();
    let pseudo = [&own[..], &to, &[0, 0, 0, LENGTH, 0, 0, 0, ICMPV6], &message].concat();
    let checksum = checksum(&pseudo);
    message[2..4].copy_from_slice(&checksum);
    let header = [0x60, 0, 0, 0, 0, LENGTH, ICMPV6, 255];
    [&header[..], &own, &to, &message].concat()
}

/// Returns the Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let halves = bytes.chunks_exact(2);
    let sum: u32 = halves
        .map(|half| u32::from(u16::from_be_bytes([half[0], half[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    let [_, _, checksum @ ..] = (!folded).to_be_bytes();
    checksum
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0x5a, 1, 2, 3, 4]);

    #[test]
    fn an_ipv4_address_is_announced_by_a_request_for_itself() {
        let (ethertype, frame) = frame(MAC, IpAddr::from([10, 1, 0, 2]));
        assert_eq!((ethertype, frame.len()), (ARP, 42));
        assert_eq!(frame[..6], BROADCAST);
        assert_eq!(frame[22..32], [2, 0x5a, 1, 2, 3, 4, 10, 1, 0, 2], "sender");
        assert_eq!(frame[38..], [10, 1, 0, 2], "target");
    }

    #[test]
    fn an_ipv6_address_is_announced_with_a_right_checksum() {
        let (ethertype, frame) = frame(MAC, "fd00:1::2".parse().unwrap());
        assert_eq!((ethertype, frame.len()), (IPV6, 14 + 40 + 32));
        let (header, message) = frame[14..].split_at(40);
        let mut covered = header[8..].to_vec();
        covered.extend([0, 0, 0, 32, 0, 0, 0, ICMPV6]);
        covered.extend(message);
        assert_eq!(checksum(&covered), [0, 0]);
        assert_eq!(message[4], 0x20, "override, not solicited");
        assert_eq!(message[26..], MAC.0);
    }
}
