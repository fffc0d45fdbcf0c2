//! From when on the bridge forwards what a port sends.
//!
//! A veth has a carrier as soon as both its ends are up, but queues and bridge hear of it from a thread of the kernel's
//! (`net/core/link_watch.c`): until then what comes by it is thrown away. That thread tells when it is done with an end. It
//! begins with the host's, which is the last to be set up, and holds the lock of all links until it is done with the pod's
//! as well: whoever gets the lock then may be sure of both. To ask for the lock alone would not do, since the thread may not have
//! begun, nor to ask for a link, by which Linux does that thread's work at once: mostly the thread is faster, and later the
//! lock is held for long, while what IPv6 has a pod say first is flooded to all others.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's vocabulary is open: what we do not know is skipped"
)]

use std::io;

use nix::errno::Errno;
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, State};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use rtnetlink::sys::Socket;

use crate::error::is;
use crate::links::{indexed, set_up_message};
use crate::netlink::{Netlink, decode, messages, open_listener, receive};

/// The multicast group of links.
const LINKS: u32 = MulticastGroup::Link as u32;

/// Sets the host's end of this index, which is down, up. Returns when the port works (behaviour R5), or at once where the
/// pod's end is down.
pub(crate) fn set_up(netlink: &mut Netlink, index: u32) -> io::Result<()> {
    let listener = open_listener(&[LINKS])?;
    netlink.change(set_up_message(index), 0)?;
    // That it is up is told before the change is acknowledged: something is there to be read.
    await_carrier(&listener, index)?;
    // Nothing is changed: what it takes is the lock.
    netlink.change(Message::SetLink(indexed(index).build()), 0)
}

fn await_carrier(listener: &Socket, index: u32) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        match receive(listener, &mut buffer) {
            Ok(()) => {}
            // More was told than there is room for. Whoever changes so many links has other packets to miss.
            Err(error) if is(&error, Errno::ENOBUFS) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(Errno::ETIMEDOUT.into());
            }
            Err(error) => return Err(error),
        }
        let mut news = messages(&buffer).filter_map(|bytes| end(bytes, index));
        if let Some(end) = news.next() {
            return end;
        }
    }
}

/// How waiting ends, if it does by this message: the link works, it is up and has no carrier, or it is gone.
fn end(bytes: &[u8], index: u32) -> Option<io::Result<()>> {
    match decode(bytes).ok()? {
        NetlinkPayload::InnerMessage(Message::NewLink(link)) if link.header.index == index => {
            let flags = link.header.flags;
            let waits = flags.contains(LinkFlags::LowerUp) && !works(&link);
            (flags.contains(LinkFlags::Up) && !waits).then_some(Ok(()))
        }
        NetlinkPayload::InnerMessage(Message::DelLink(link)) if link.header.index == index => {
            // A port that leaves its bridge is told of in the bridge's words.
            let is_gone = link.header.interface_family != AddressFamily::Bridge;
            is_gone.then(|| Err(Errno::ENODEV.into()))
        }
        _ => None,
    }
}

fn works(link: &LinkMessage) -> bool {
    let up = LinkAttribute::OperState(State::Up);
    link.attributes.contains(&up)
}
