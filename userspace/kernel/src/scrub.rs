//! Whether the kernel makes what is handed to the other end of a veth (`bpf_redirect_peer`) a packet for whoever is there.
//!
//! From Linux 6.15 on, and in older ones with the same fix, it takes off such a packet what one namespace does not tell another
//! (`skb_scrub_packet`, called in `net/core/filter.c`), and with it that the packet was for somebody else. Before, that
//! stays, and whoever gets the packet throws it away. A frame tells: it is sent through a veth between two new namespaces,
//! and comes back with a word for whose it is.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, bind, recvfrom, send, setsockopt,
    socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use planner::Hook;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkMessage};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

use crate::instructions::{CALL, EXIT, MOVE, word};
use crate::links::{QUEUES, set_up_message};
use crate::netlink::Netlink;
use crate::netns::{Aside, aside};
use crate::{filters, raw};

/// The end of the veth that has the program, and the one by which the frame leaves and comes back: indexes that no other
/// link of a new namespace has.
const NEAR: u32 = 1001;
const FAR: u32 = 1002;

/// For experiments (IEEE 802): nothing else in a new namespace speaks so.
const ETHERTYPE: u16 = 0x88b5;

/// For documentation (RFC 7042): no link has this address.
const NOBODY: [u8; 6] = [0, 0, 0x5e, 0, 0x53, 1];

/// In milliseconds. Mostly the frame is back before it is asked for.
const PATIENCE: i64 = 200;

/// Whose a packet is (packet(7)).
const HOST: u8 = 0;
const OUTGOING: u8 = 4;

/// Succeeds where the kernel does it.
pub(crate) fn of_peers() -> io::Result<()> {
    // To close a packet socket takes the kernel some 10 ms: nobody is to wait for that.
    let whose = aside(|thread| {
        let mut trial = Trial::new(thread)?;
        Ok((trial.whose()?, trial))
    });
    if whose? == HOST {
        Ok(())
    } else {
        let why = "what is handed to the other end of a veth stays somebody else's";
        Err(io::Error::other(why))
    }
}

/// Two new namespaces, and a socket that is in the far one.
struct Trial {
    near: Side,
    far: Side,
    frames: OwnedFd,
}

struct Side {
    namespace: File,
    netlink: Netlink,
}

impl Side {
    fn new(thread: &Aside) -> io::Result<Self> {
        Ok(Self {
            namespace: thread.enter_new()?,
            netlink: Netlink::open()?,
        })
    }
}

impl Trial {
    fn new(thread: &Aside) -> io::Result<Self> {
        let far = Side::new(thread)?;
        let cloexec = SockFlag::SOCK_CLOEXEC;
        let frames = socket(AddressFamily::Packet, SockType::Raw, cloexec, None)?;
        Ok(Self {
            near: Side::new(thread)?,
            far,
            frames,
        })
    }

    /// Whose the kernel thinks that a frame for nobody is which was handed over.
    fn whose(&mut self) -> io::Result<u8> {
        self.connect()?;
        self.send()?;
        self.receive()
    }

    /// Makes the veth, and has the near end hand over to the far one what comes by it.
    fn connect(&mut self) -> io::Result<()> {
        let pair = Message::NewLink(pair(&self.far.namespace));
        let near = &mut self.near.netlink;
        near.change(pair, NLM_F_CREATE | NLM_F_EXCL)?;
        let program = raw::load_classifier(&hand_over())?;
        filters::attach(near, NEAR, &[(Hook::FromPod, program.as_raw_fd())])?;
        // The last to be up is the first to have a carrier, and may send at once.
        self.far.netlink.change(set_up_message(FAR), 0)
    }

    fn send(&self) -> io::Result<()> {
        let frames = self.frames.as_raw_fd();
        bind(frames, &raw::link_address(FAR, ETHERTYPE)?)?;
        send(frames, &frame(), MsgFlags::empty())?;
        Ok(())
    }

    fn receive(&self) -> io::Result<u8> {
        let patience = TimeVal::milliseconds(PATIENCE);
        setsockopt(&self.frames, sockopt::ReceiveTimeout, &patience)?;
        loop {
            match recvfrom::<LinkAddr>(self.frames.as_raw_fd(), &mut [0; 64]) {
                Ok((_, Some(from))) if from.pkttype() != OUTGOING => return Ok(from.pkttype()),
                // What leaves is shown as well, to those who ask for all.
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The veth, with the near end up.
fn pair(far: &File) -> LinkMessage {
    let mut peer = LinkUnspec::new_with_name("far")
        .index(FAR)
        .setns_by_fd(far.as_raw_fd())
        .build();
    peer.attributes.extend(QUEUES);
    let mut veth = LinkMessageBuilder::<LinkVeth>::new("near", "far")
        .index(NEAR)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .up()
        .build();
    veth.attributes.extend(QUEUES);
    veth
}

/// `return bpf_redirect_peer(NEAR, 0)`.
fn hand_over() -> [u64; 4] {
    const REDIRECT_PEER: u64 = 155;
    [
        word(MOVE, 1, NEAR.into()),
        word(MOVE, 2, 0),
        word(CALL, 0, REDIRECT_PEER),
        word(EXIT, 0, 0),
    ]
}

/// From nobody to nobody, as short as a frame may be.
fn frame() -> [u8; 60] {
    let mut frame = [0; 60];
    let (addresses, rest) = frame.split_at_mut(12);
    addresses.copy_from_slice([NOBODY; 2].as_flattened());
    rest[..2].copy_from_slice(&ETHERTYPE.to_be_bytes());
    frame
}
