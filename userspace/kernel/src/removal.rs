//! Removing a link without waiting longer than it takes.
//!
//! `RTM_DELLINK` returns some 20 ms after the link is gone from every table, because the kernel waits for its last
//! readers before it frees the memory. The notification comes at once. So a thread of its own makes the call, and the
//! answer is whatever comes first on the socket: the notification, or the kernel's refusal.

use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage as Message};
use rtnetlink::sys::Socket;

use crate::error::{is, is_gone};
use crate::links::indexed;
use crate::netlink::{decode, encode_change, messages, open_listener, receive};

/// Removes the link of an index; that it is already gone is success.
pub(crate) fn delete(index: u32) -> io::Result<()> {
    let socket = Arc::new(open_listener(&[MulticastGroup::Link as u32])?);
    let request = encode_change(Message::DelLink(indexed(index).build()));
    let sender = Arc::clone(&socket);
    let send = move || {
        // A failed call is seen by the receiver as a socket without an answer.
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
            // Notifications were lost, but never the answer.
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
                    if is_last_word(&gone, index) =>
                {
                    return Ok(());
                }
                _ => {}
            }
        }
    }
}

/// A bridge says `RTM_DELLINK` of a port that leaves it, too, in its own family.
fn is_last_word(message: &LinkMessage, index: u32) -> bool {
    message.header.interface_family == AddressFamily::Unspec && message.header.index == index
}
