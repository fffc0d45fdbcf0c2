//! Finds the host's end of a pod's interface by index: for interfaces of other plugins, whose
//! results may not name it.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "netlink's enums are open: unknown values are skipped"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use model::IfName;
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::packet_route::nsid::{NsidAttribute, NsidMessage};

use crate::netlink::links;
use crate::netlink::socket::{Netlink, Request};
use crate::pod::interface::peer;
use crate::pod::netns::OpenNetns;

/// Returns the index of the other end of a pod's veth in the namespace of the calling thread;
/// `None` where the other end is in another namespace.
pub(crate) fn find(netns: &OpenNetns, ifname: &IfName) -> io::Result<Option<u32>> {
    let home = File::open("/proc/thread-self/ns/net")?;
    let mut netlink = netns.run(Netlink::open)?;
    let Some(message) = links::find_message(&mut netlink, ifname)? else {
        return Ok(None);
    };
    let mut attributes = message.attributes.iter();
    let of_peer = attributes.find_map(|attribute| match attribute {
        LinkAttribute::LinkNetNsId(id) => Some(*id),
        _ => None,
    });
    // An index means nothing in any other namespace.
    let is_at_home = of_peer.is_some() && of_peer == namespace_id(&mut netlink, &home)?;
    Ok(peer(&message).filter(|_| is_at_home))
}

/// Returns the number by which the namespace of the socket knows another one; `None` without one.
fn namespace_id(netlink: &mut Netlink, other: &File) -> io::Result<Option<i32>> {
    let mut query = NsidMessage::default();
    let descriptor = u32::try_from(other.as_raw_fd()).map_err(io::Error::other)?;
    query.attributes.push(NsidAttribute::Fd(descriptor));
    let Some(Message::NewNsId(answer)) = netlink.request(Request::get(Message::GetNsId(query)))?
    else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let mut attributes = answer.attributes.into_iter();
    Ok(attributes.find_map(|attribute| match attribute {
        NsidAttribute::Id(id) => Some(id).filter(|id| *id >= 0),
        _ => None,
    }))
}
