//! Probes whether `bpf_redirect_peer` scrubs packets when it moves them to the pod's namespace.
//!
//! Linux 6.15, and older kernels with the same fix, calls `skb_scrub_packet` in
//! `net/core/filter.c`. It resets metadata that must not cross namespaces, among it the packet type
//! `PACKET_OTHERHOST`. Without it, the pod's stack drops a packet whose type says that it is for
//! another host. The probe sends a frame through a veth between two new namespaces and reads the
//! packet type that arrives.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, bind, recvfrom, send, setsockopt,
    socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkMessage};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};
use steps::Hook;

use crate::bpf::instructions::{CALL, EXIT, MOVE, instruction};
use crate::netlink::clsact;
use crate::netlink::links::{QUEUES, set_up_message};
use crate::netlink::socket::Netlink;
use crate::pod::netns::{OwnThread, run_on_own_thread};
use crate::syscall;

/// Indexes of the veth's ends, which no other link of a new namespace has. The near end has the
/// program; the frame leaves and returns by the far end.
const NEAR: u32 = 1001;
const FAR: u32 = 1002;

/// Ethertype for experiments (IEEE 802); nothing else in a new namespace uses it.
const ETHERTYPE: u16 = 0x88b5;

/// Ethernet address for documentation (RFC 7042); no link has it.
const UNUSED_MAC: [u8; 6] = [0, 0, 0x5e, 0, 0x53, 1];

/// Receive timeout in milliseconds. Mostly the frame has arrived before it is read.
const TIMEOUT_MS: i64 = 200;

/// `PACKET_HOST` and `PACKET_OUTGOING` (packet(7)).
const HOST: u8 = 0;
const OUTGOING: u8 = 4;

/// Returns `Ok` where the kernel scrubs redirected packets.
pub(crate) fn probe() -> io::Result<()> {
    // Closing a packet socket takes some 10 ms, so the other thread does it.
    let packet_type = run_on_own_thread(|thread| {
        let mut probe = Probe::new(thread)?;
        Ok((probe.packet_type()?, probe))
    });
    if packet_type? == HOST {
        Ok(())
    } else {
        let why = "bpf_redirect_peer keeps the packet type PACKET_OTHERHOST";
        Err(io::Error::other(why))
    }
}

/// Two new namespaces, and a packet socket in the far one.
struct Probe {
    near: Side,
    far: Side,
    frames: OwnedFd,
}

struct Side {
    namespace: File,
    netlink: Netlink,
}

impl Side {
    fn new(thread: &OwnThread) -> io::Result<Self> {
        Ok(Self {
            namespace: thread.enter_new()?,
            netlink: Netlink::open()?,
        })
    }
}

impl Probe {
    fn new(thread: &OwnThread) -> io::Result<Self> {
        let far = Side::new(thread)?;
        let cloexec = SockFlag::SOCK_CLOEXEC;
        let frames = socket(AddressFamily::Packet, SockType::Raw, cloexec, None)?;
        Ok(Self {
            near: Side::new(thread)?,
            far,
            frames,
        })
    }

    /// Returns the packet type of a redirected frame that was addressed to another host.
    fn packet_type(&mut self) -> io::Result<u8> {
        self.connect()?;
        self.send()?;
        self.receive()
    }

    /// Creates the veth, and attaches a program to the near end that redirects to the far one.
    fn connect(&mut self) -> io::Result<()> {
        let pair = Message::NewLink(pair(&self.far.namespace));
        let near = &mut self.near.netlink;
        near.change(pair, NLM_F_CREATE | NLM_F_EXCL)?;
        let program = syscall::load_classifier(&redirect_to_far_end())?;
        clsact::attach(near, NEAR, &[(Hook::FromPod, program.as_raw_fd())])?;
        // Set up last: this end has a carrier at once and can send.
        self.far.netlink.change(set_up_message(FAR), 0)
    }

    fn send(&self) -> io::Result<()> {
        let frames = self.frames.as_raw_fd();
        bind(frames, &syscall::link_address(FAR, ETHERTYPE)?)?;
        send(frames, &frame(), MsgFlags::empty())?;
        Ok(())
    }

    fn receive(&self) -> io::Result<u8> {
        let timeout = TimeVal::milliseconds(TIMEOUT_MS);
        setsockopt(&self.frames, sockopt::ReceiveTimeout, &timeout)?;
        loop {
            match recvfrom::<LinkAddr>(self.frames.as_raw_fd(), &mut [0; 64]) {
                Ok((_, Some(from))) if from.pkttype() != OUTGOING => return Ok(from.pkttype()),
                // A packet socket for all frames receives outgoing frames as well.
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Err(Errno::ETIMEDOUT.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Makes the message that creates the veth, with the near end up.
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
fn redirect_to_far_end() -> [u64; 4] {
    const REDIRECT_PEER: u64 = 155;
    [
        instruction(MOVE, 1, NEAR.into()),
        instruction(MOVE, 2, 0),
        instruction(CALL, 0, REDIRECT_PEER),
        instruction(EXIT, 0, 0),
    ]
}

/// Returns the shortest Ethernet frame, from and to an unused address.
fn frame() -> [u8; 60] {
    let mut frame = [0; 60];
    let (addresses, rest) = frame.split_at_mut(12);
    addresses.copy_from_slice([UNUSED_MAC; 2].as_flattened());
    rest[..2].copy_from_slice(&ETHERTYPE.to_be_bytes());
    frame
}
