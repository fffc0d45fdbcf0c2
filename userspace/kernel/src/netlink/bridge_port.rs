//! Sets up a bridge port, and waits until the bridge forwards its packets.
//!
//! A veth has a carrier as soon as both of its ends are up, but the kernel activates the port's
//! queue and its bridge port from the linkwatch thread (`net/core/link_watch.c`). Until then
//! packets from the port are dropped. The thread sends a notification when it has handled a link.
//! It handles the host's end first, which is set up last, and keeps the RTNL lock until it has
//! handled the pod's end as well. So after the notification, a request that takes the lock returns
//! when both are done.
//!
//! Neither the lock nor a link request alone would do. The thread may not have started when the
//! lock is taken. A request for a link makes Linux do the thread's work at once: mostly the thread
//! is faster, and later the lock is held for long, while the first IPv6 packets of a pod are
//! flooded to all others.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]

use std::io;

use nix::errno::Errno;
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, State};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use rtnetlink::sys::Socket;

use crate::error::is;
use crate::netlink::links::{indexed, set_up_message};
use crate::netlink::socket::{Netlink, decode, messages, open_listener, receive};

/// `RTNLGRP_LINK`.
const LINKS: u32 = MulticastGroup::Link as u32;

/// Sets the host's end with this index, which is down, up. Returns when the port forwards
/// (behaviour R5), or at once where the pod's end is down.
pub(crate) fn set_up(netlink: &mut Netlink, index: u32) -> io::Result<()> {
    let listener = open_listener(&[LINKS])?;
    netlink.change(set_up_message(index), 0)?;
    // The notification is queued before the change is acknowledged, so there is a message to read.
    await_carrier(&listener, index)?;
    // Changes nothing: the request waits for the RTNL lock.
    netlink.change(Message::SetLink(indexed(index).build()), 0)
}

fn await_carrier(listener: &Socket, index: u32) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        match receive(listener, &mut buffer) {
            Ok(()) => {}
            // Notifications were lost. On a node that changes so many links at once, the first
            // packets of this pod may be lost as well.
            Err(error) if is(&error, Errno::ENOBUFS) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(Errno::ETIMEDOUT.into());
            }
            Err(error) => return Err(error),
        }
        let mut results = messages(&buffer).filter_map(|bytes| end(bytes, index));
        if let Some(end) = results.next() {
            return end;
        }
    }
}

/// Returns the result of waiting, if this message ends it: the port is active, the link is up
/// without a carrier, or the link is gone.
fn end(bytes: &[u8], index: u32) -> Option<io::Result<()>> {
    match decode(bytes).ok()? {
        NetlinkPayload::InnerMessage(Message::NewLink(link)) if link.header.index == index => {
            let flags = link.header.flags;
            let is_pending = flags.contains(LinkFlags::LowerUp) && !is_active(&link);
            (flags.contains(LinkFlags::Up) && !is_pending).then_some(Ok(()))
        }
        NetlinkPayload::InnerMessage(Message::DelLink(link)) if link.header.index == index => {
            // A port that leaves its bridge is reported with family `AF_BRIDGE`.
            let is_gone = link.header.interface_family != AddressFamily::Bridge;
            is_gone.then(|| Err(Errno::ENODEV.into()))
        }
        _ => None,
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    messages(bytes).for_each(|part| drop(end(part, 1)));
}

fn is_active(link: &LinkMessage) -> bool {
    let up = LinkAttribute::OperState(State::Up);
    link.attributes.contains(&up)
}
