//! Notice that something about links, addresses, routes, rules or filters has changed. Not what: whoever is told looks again.

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
use crate::netlink;

const GROUPS: [MulticastGroup; 8] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
    MulticastGroup::Tc,
];

/// What has changed, as far as it decides how soon to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A link, a route, a rule, a queue, a filter, or an address that is only for its link.
    Other,
    /// An address of the node: flows may have lost theirs.
    Address,
    /// The first route by a link: until our programs are on it, pods' packets cannot leave by it.
    WayOut,
}

/// Changes of the namespace that it was opened in.
pub struct Changes {
    socket: Socket,
    buffer: Vec<u8>,
    /// Indexes of links that a route was seen to lead out by.
    routed: BTreeSet<u32>,
}

impl Changes {
    /// Begins to listen, in the namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        netlink::join(&mut socket, GROUPS.map(|group| group as u32))?;
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(16 * 1024),
            routed: BTreeSet::new(),
        })
    }

    /// Waits until there was a change since the last call, and tells the most urgent of all that there were. Safe to
    /// cancel; must be called inside of a tokio runtime.
    pub async fn next(&mut self) -> io::Result<Change> {
        loop {
            if let Some(change) = self.drain()? {
                return Ok(change);
            }
            self.wait().await?;
        }
    }

    /// Waits until there is something to read. The runtime knows the socket only meanwhile: it would be woken by each of the
    /// dozen changes of an ADD, whoever waits for them.
    #[expect(
        unsafe_code,
        reason = "tokio knows no safe way to wait for what is borrowed"
    )]
    async fn wait(&self) -> io::Result<()> {
        // SAFETY: what is borrowed stays open for as long as the borrow, which ends with the call.
        let socket =
            unsafe { AsyncFd::register_with_interest(self.socket.as_fd(), Interest::READABLE)? };
        let _ready = socket.readable().await?;
        Ok(())
    }

    /// Reads all that is there; `None` where there is nothing.
    fn drain(&mut self) -> io::Result<Option<Change>> {
        let mut change = None;
        loop {
            self.buffer.clear();
            let read = match self.socket.recv(&mut self.buffer, MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(change),
                Err(error) if !is_loss(&error) => return Err(error),
                Err(_) => Change::WayOut,
                Ok(_) => kind(&self.buffer, &mut self.routed),
            };
            change = change.max(Some(read));
        }
    }
}

/// The kind of a notification, of which the kernel sends one at a time: `struct nlmsghdr`, and behind it a structure of
/// the type's own. Every veth has addresses and routes for its link, which nobody is masqueraded with and leaves by.
fn kind(message: &[u8], routed: &mut BTreeSet<u32>) -> Change {
    const TYPE: usize = 4;
    const BODY: usize = 16;
    /// Of `struct ifaddrmsg`.
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
                // Its routes are gone with it; the next one is a first one.
                routed.retain(|link| Some(*link) != word(message, BODY + 4));
            }
            Change::Other
        }
        libc::RTM_NEWROUTE if way_out(message).is_some_and(|link| routed.insert(link)) => {
            Change::WayOut
        }
        _ => Change::Other,
    }
}

/// Whether the link is set up (`ifi_flags` of `struct ifinfomsg`).
fn is_up(message: &[u8]) -> bool {
    const FLAGS: usize = 16 + 8;
    const UP: u32 = 1;
    word(message, FLAGS).is_some_and(|flags| flags & UP != 0)
}

/// The link of a route that packets may leave the node by: of a unicast route (`struct rtmsg`) with one way.
fn way_out(message: &[u8]) -> Option<u32> {
    const TABLE: usize = 16 + 4;
    const TYPE: usize = 16 + 7;
    const LOCAL: u8 = 255;
    const UNICAST: u8 = 1;
    let leads_away = *message.get(TABLE)? != LOCAL && *message.get(TYPE)? == UNICAST;
    let destination = attribute(message, libc::RTA_DST);
    let is_of_link = destination.is_some_and(|bytes| bytes.starts_with(&[0xfe, 0x80]));
    if !leads_away || is_of_link {
        return None;
    }
    word(attribute(message, libc::RTA_OIF)?, 0)
}

/// The value of an attribute of a route: `struct rtattr` and what follows, behind `struct rtmsg`.
fn attribute(message: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut rest = message.get(16 + 12..)?;
    loop {
        let header = word(rest, 0)?.to_ne_bytes();
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        if u16::from_ne_bytes([header[2], header[3]]) == wanted {
            return rest.get(4..length);
        }
        // What is shorter than its own header would never end.
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn word(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_ne_bytes(*bytes))
}

/// Some notifications did not fit: all the more a change.
fn is_loss(error: &io::Error) -> bool {
    is(error, Errno::ENOBUFS)
}
