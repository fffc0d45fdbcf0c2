//! Notice that something about links, addresses, routes or rules has changed. Not what: whoever is told looks again.

use std::io;

use nix::errno::Errno;
use nix::libc::MSG_DONTWAIT;
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

    /// Waits until there was a change since the last call, however many. Safe to cancel.
    pub async fn next(&mut self) -> io::Result<()> {
        self.buffer.clear();
        match self.socket.recv(&mut self.buffer).await {
            Err(error) if !is_loss(&error) => return Err(error),
            _ => {}
        }
        drain(self.socket.socket_ref(), &mut self.buffer)
    }
}

/// Reads all that is there.
fn drain(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<()> {
    loop {
        buffer.clear();
        match socket.recv(buffer, MSG_DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if !is_loss(&error) => return Err(error),
            _ => {}
        }
    }
}

/// Some notifications did not fit: all the more a change.
fn is_loss(error: &io::Error) -> bool {
    is(error, Errno::ENOBUFS)
}
