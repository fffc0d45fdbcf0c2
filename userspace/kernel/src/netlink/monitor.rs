//! Notifications of changes to links, addresses, routes, rules, filters, and the sysctls of links
//! that rtnetlink notifies (netconf).
//!
//! They do not say what has changed: the receiver observes the node again.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd as _;

use nix::errno::Errno;
use nix::libc::{self, MSG_DONTWAIT};
use rtnetlink::MulticastGroup;
use rtnetlink::sys::Socket;
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::error::is;
use crate::netlink::socket;

const GROUPS: [MulticastGroup; 10] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
    MulticastGroup::Tc,
    // Forwarding and reverse path filters.
    MulticastGroup::Ipv4Netconf,
    MulticastGroup::Ipv6Netconf,
];

/// Kind of a change. The more urgent ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A link, a route, a rule, a qdisc, a filter, or an address of link scope.
    Other,
    /// An address of the node: flows may have lost their SNAT source address.
    Address,
    /// The first route through a link: until our programs are attached to the link, pods' packets
    /// cannot leave through it.
    EgressRoute,
}

/// Receives the notifications of the namespace that it was opened in.
pub struct Changes {
    socket: Socket,
    buffer: Vec<u8>,
    /// Indexes of links through which a route is known.
    routed: BTreeSet<u32>,
}

impl Changes {
    /// Subscribes, in the namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket::join_groups(&mut socket, GROUPS.map(|group| group as u32))?;
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(16 * 1024),
            routed: BTreeSet::new(),
        })
    }

    /// Waits until there was a change since the last call, and returns the most urgent one. Safe to
    /// cancel; must be called inside of a tokio runtime.
    pub async fn next(&mut self) -> io::Result<Change> {
        loop {
            if let Some(change) = self.drain()? {
                return Ok(change);
            }
            self.wait().await?;
        }
    }

    /// Waits until the socket is readable. It is registered with the runtime only for this call:
    /// otherwise each of the dozen changes of an ADD would wake the runtime.
    #[expect(
        unsafe_code,
        reason = "tokio has no safe function to register a borrowed descriptor"
    )]
    async fn wait(&self) -> io::Result<()> {
        // SAFETY: the borrow of the socket outlives the registration, which ends with this call.
        let socket =
            unsafe { AsyncFd::register_with_interest(self.socket.as_fd(), Interest::READABLE)? };
        let _ready = socket.readable().await?;
        Ok(())
    }

    /// Reads all queued notifications and returns the most urgent change; `None` where there is
    /// none.
    fn drain(&mut self) -> io::Result<Option<Change>> {
        let mut change = None;
        loop {
            self.buffer.clear();
            let read = match self.socket.recv(&mut self.buffer, MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(change),
                Err(error) if !is_loss(&error) => return Err(error),
                Err(_) => Change::EgressRoute,
                Ok(_) => kind(&self.buffer, &mut self.routed),
            };
            change = change.max(Some(read));
        }
    }
}

/// Classifies a notification, of which the kernel sends one for each datagram: `struct nlmsghdr`,
/// then a structure of the type. Link-scope addresses and `fe80::/10` routes of every veth are
/// [`Change::Other`]: they are never SNAT sources or egress routes.
fn kind(message: &[u8], routed: &mut BTreeSet<u32>) -> Change {
    const TYPE: usize = 4;
    const BODY: usize = 16;
    /// Offset of `ifa_scope` in `struct ifaddrmsg`.
    const SCOPE: usize = BODY + 3;
    const LINK: u8 = 253;
    let number = message
        .get(TYPE..TYPE + 2)
        .map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    match number {
        libc::RTM_NEWADDR | libc::RTM_DELADDR
            if message.get(SCOPE).is_some_and(|scope| *scope < LINK) =>
        {
            Change::Address
        }
        libc::RTM_NEWLINK | libc::RTM_DELLINK => {
            if number == libc::RTM_DELLINK || !is_up(message) {
                // The kernel has removed its routes; the next one counts as the first.
                routed.retain(|link| Some(*link) != word(message, BODY + 4));
            }
            Change::Other
        }
        libc::RTM_NEWROUTE if egress_link(message).is_some_and(|link| routed.insert(link)) => {
            Change::EgressRoute
        }
        _ => Change::Other,
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let mut routed = BTreeSet::new();
    kind(bytes, &mut routed);
}

/// Whether the link is up (`IFF_UP` in `ifi_flags` of `struct ifinfomsg`).
fn is_up(message: &[u8]) -> bool {
    const FLAGS: usize = 16 + 8;
    const UP: u32 = 1;
    word(message, FLAGS).is_some_and(|flags| flags & UP != 0)
}

/// Returns the link of an egress route: a unicast route (`struct rtmsg`) with one next hop, outside
/// of the local table and of `fe80::/10`.
fn egress_link(message: &[u8]) -> Option<u32> {
    const TABLE: usize = 16 + 4;
    const TYPE: usize = 16 + 7;
    const LOCAL: u8 = 255;
    const UNICAST: u8 = 1;
    let is_egress = *message.get(TABLE)? != LOCAL && *message.get(TYPE)? == UNICAST;
    let destination = attribute(message, libc::RTA_DST);
    let is_link_local = destination.is_some_and(|bytes| bytes.starts_with(&[0xfe, 0x80]));
    if !is_egress || is_link_local {
        return None;
    }
    word(attribute(message, libc::RTA_OIF)?, 0)
}

/// Returns the value of a route's attribute: `struct rtattr` and its data, after `struct rtmsg`.
fn attribute(message: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut rest = message.get(16 + 12..)?;
    loop {
        let header = word(rest, 0)?.to_ne_bytes();
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        if u16::from_ne_bytes([header[2], header[3]]) == wanted {
            return rest.get(4..length);
        }
        // A length below the header's size would loop forever.
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn word(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_ne_bytes(*bytes))
}

/// Whether notifications were lost because the receive buffer was full (`ENOBUFS`).
fn is_loss(error: &io::Error) -> bool {
    is(error, Errno::ENOBUFS)
}
