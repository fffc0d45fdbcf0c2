//! Deletes a link and returns as soon as the kernel has removed it.
//!
//! `RTM_DELLINK` returns some 20 ms after the link is gone from every table, because the kernel
//! waits for an RCU grace period before it frees the memory. The notification is sent at once. So
//! the call is made by a separate thread, and the result is the first message on the socket: the
//! notification or the error.

use std::io;
use std::sync::Arc;

use model::IfName;
use nix::errno::Errno;
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use rtnetlink::sys::Socket;

use crate::error::{is, is_gone};
use crate::netlink::links::{get, indexed};
use crate::netlink::socket::{Netlink, decode, encode_change, messages, open_listener, receive};

/// Deletes the link with this index. A link that is already gone is success.
pub(crate) fn delete(index: u32) -> io::Result<()> {
    let socket = Arc::new(open_listener(&[MulticastGroup::Link as u32])?);
    let request = encode_change(Message::DelLink(indexed(index).build()));
    let sender = Arc::clone(&socket);
    let send = move || {
        // The receiver notices a failed call: its read times out.
        if let Err(error) = sender.send(&request, 0) {
            tracing::error!(link = index, %error, "cannot send a request to remove a link");
        }
    };
    std::thread::Builder::new()
        .name("dellink".to_owned())
        .stack_size(128 * 1024)
        .spawn(send)?;
    wait(&socket, index).inspect(|()| crash::point())
}

fn wait(socket: &Socket, index: u32) -> io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        match receive(socket, &mut buffer) {
            Ok(()) => {}
            // Notifications were lost; the kernel never drops the answer to a request.
            Err(error) if is(&error, Errno::ENOBUFS) => continue,
            Err(error) => return Err(error),
        }
        for message in messages(&buffer) {
            match decode(message) {
                Ok(NetlinkPayload::Error(answer)) => {
                    return match answer.code {
                        Some(_) if is_gone(&answer.to_io()) => Ok(()),
                        Some(_) => Err(answer.to_io()),
                        None => Ok(()),
                    };
                }
                Ok(NetlinkPayload::InnerMessage(Message::DelLink(gone)))
                    if is_deletion(&gone, index) =>
                {
                    return Ok(());
                }
                _ => {}
            }
        }
    }
}

/// Whether the message reports the deletion of the link itself. A bridge sends `RTM_DELLINK` with
/// family `AF_BRIDGE` for a port that leaves it, too.
fn is_deletion(message: &LinkMessage, index: u32) -> bool {
    message.header.interface_family == AddressFamily::Unspec && message.header.index == index
}

/// Deletes a link that a failed step has just created.
pub(crate) fn undo_creation(netlink: &mut Netlink, name: &IfName) {
    let undone = get(netlink, name).and_then(|link| delete(link.index));
    if let Err(error) = undone {
        tracing::error!(link = %name, %error, "cannot delete a link after a failed step: it remains without an alias");
    }
}
