//! Notice that something about links, addresses, routes or rules has changed. Not what: whoever is told looks again.

use std::io;

use nix::errno::Errno;
use nix::libc::{self, MSG_DONTWAIT};
use rtnetlink::MulticastGroup;
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{AsyncSocket as _, AsyncSocketExt as _, Socket, SocketAddr, TokioSocket};

use crate::error::is;

const GROUPS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// What has changed, as far as it decides how soon to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A link, a route, a rule, or an address that is only for its link.
    Other,
    /// An address of the node: flows may have lost theirs.
    Address,
}

/// Changes of the namespace that it was opened in.
pub struct Changes {
    socket: TokioSocket,
    buffer: Vec<u8>,
}

impl Changes {
    /// Begins to listen, in the namespace of the calling thread; must be called inside of a tokio runtime.
    pub fn open() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        let inner = socket.socket_mut();
        inner.bind(&SocketAddr::new(0, 0))?;
        for group in GROUPS {
            inner.add_membership(group as u32)?;
        }
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(16 * 1024),
        })
    }

    /// Waits until there was a change since the last call, and tells the most urgent of all that there were. Safe to
    /// cancel.
    pub async fn next(&mut self) -> io::Result<Change> {
        self.buffer.clear();
        let change = match self.socket.recv(&mut self.buffer).await {
            Err(error) if !is_loss(&error) => return Err(error),
            Err(_) => Change::Address,
            Ok(()) => kind(&self.buffer),
        };
        let more = drain(self.socket.socket_ref(), &mut self.buffer)?;
        Ok(change.max(more))
    }
}

/// Reads all that is there.
fn drain(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<Change> {
    let mut change = Change::Other;
    loop {
        buffer.clear();
        match socket.recv(buffer, MSG_DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(change),
            Err(error) if !is_loss(&error) => return Err(error),
            Err(_) => change = Change::Address,
            Ok(_) => change = change.max(kind(buffer)),
        }
    }
}

/// The kind of a notification, of which the kernel sends one at a time: `struct nlmsghdr`, and behind it
/// `struct ifaddrmsg`. Every veth has addresses for its link, which nobody is masqueraded with.
fn kind(message: &[u8]) -> Change {
    const TYPE: usize = 4;
    const SCOPE: usize = 16 + 3;
    const LINK: u8 = 253;
    let number = message.get(TYPE..TYPE + 2);
    let number = number.map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    let of_address = number == libc::RTM_NEWADDR || number == libc::RTM_DELADDR;
    if of_address && message.get(SCOPE).is_some_and(|scope| *scope < LINK) {
        Change::Address
    } else {
        Change::Other
    }
}

/// Some notifications did not fit: all the more a change.
fn is_loss(error: &io::Error) -> bool {
    is(error, Errno::ENOBUFS)
}
