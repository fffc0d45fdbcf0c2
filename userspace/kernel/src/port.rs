//! From when on the bridge forwards what a port sends.
//!
//! A veth has a carrier as soon as both its ends are up, but queues and bridge hear of it from a thread of the kernel's
//! (`net/core/link_watch.c`): until then what comes by it is thrown away. Since Linux 6.8 whoever asks for a link does
//! the thread's work for it (`rtnl_getlink` in `net/core/rtnetlink.c`). To ask at once, in the same call, is to be there
//! before the thread: behind it the lock of all links is held for long, while what IPv6 has a pod say first is flooded to
//! all others.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's vocabulary is open: what we do not know is skipped"
)]

use std::io;
use std::time::{Duration, Instant};

use model::IfName;
use nix::errno::Errno;
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::DefaultNla;
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, State};

use crate::links::{self, find_message, without_statistics};
use crate::netlink::{Answer, Netlink, Request, open_listener, receive};

/// The multicast group of links.
const LINKS: u32 = MulticastGroup::Link as u32;

/// `IFLA_TARGET_NETNSID` (`include/uapi/linux/if_link.h`).
const TARGET_NAMESPACE: u16 = 46;

/// Far more than the bridge plugin waits (BEHAVIOURS R5): the kernel's thread may have much to do.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sets a host's end up by `message`, and returns when the port works, if the pod's end is up. `before` is the link as it
/// was before.
pub(crate) fn set_up(
    netlink: &mut Netlink,
    name: &IfName,
    before: &LinkMessage,
    message: Message,
) -> io::Result<()> {
    let mut requests = vec![
        Request::change(message, 0),
        Request::get(question(before.header.index)),
    ];
    requests.extend(other_end(before).map(Request::get));
    let mut answers = netlink.ask_all(requests)?.into_iter();
    answers.next().transpose()?;
    match answers.next() {
        Some(answer) if waits(&answer) => await_up(netlink, name),
        _ => Ok(()),
    }
}

fn question(index: u32) -> Message {
    Message::GetLink(without_statistics(links::indexed(index).build()))
}

/// The question for the other end of a veth, in the namespace that it is in.
fn other_end(veth: &LinkMessage) -> Option<Message> {
    let mut attributes = veth.attributes.iter();
    let index = attributes.find_map(|attribute| match attribute {
        LinkAttribute::Link(index) => Some(*index),
        _ => None,
    });
    let mut attributes = veth.attributes.iter();
    let namespace = attributes.find_map(|attribute| match attribute {
        LinkAttribute::LinkNetNsId(id) => Some(*id),
        _ => None,
    });
    let mut message = without_statistics(links::indexed(index?).build());
    let namespace: i32 = namespace?;
    let target = DefaultNla::new(TARGET_NAMESPACE, namespace.to_ne_bytes().into());
    message.attributes.push(LinkAttribute::Other(target));
    Some(Message::GetLink(message))
}

/// Whether the link has a carrier and the bridge does not know. A kernel that has not answered is not waited for.
fn waits(answer: &Answer) -> bool {
    match answer {
        Ok(Some(Message::NewLink(link))) => {
            link.header.flags.contains(LinkFlags::LowerUp) && !works(link)
        }
        _ => false,
    }
}

fn works(link: &LinkMessage) -> bool {
    let up = LinkAttribute::OperState(State::Up);
    link.attributes.contains(&up)
}

/// Waits for a kernel that leaves it to its thread.
fn await_up(netlink: &mut Netlink, name: &IfName) -> io::Result<()> {
    let listener = open_listener(&[LINKS])?;
    let end = Instant::now() + PATIENCE;
    let mut buffer = Vec::new();
    while !find_message(netlink, name)?.as_ref().is_some_and(works) {
        if Instant::now() >= end {
            return Err(Errno::ETIMEDOUT.into());
        }
        // What is told of others costs another look.
        receive(&listener, &mut buffer)?;
    }
    Ok(())
}
