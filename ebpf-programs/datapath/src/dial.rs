//! Sockets of the node that dial hostports: see [`verdict::dial`]. They are connected to the pod before the kernel looks
//! for a route, and are told of the address that they have dialled whenever they ask who their peer is.

use abi::{Dialled, DialledKey};
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use verdict::dial::{self, Dial, Redirected};

use crate::kernel::Kernel;
use crate::maps::DIALLED;
use crate::socket::Socket;

const GO_ON: i32 = 1;

#[cgroup_sock_addr(connect4)]
fn connect4(context: SockAddrContext) -> i32 {
    dial4(Socket::new(&context))
}

#[cgroup_sock_addr(connect6)]
fn connect6(context: SockAddrContext) -> i32 {
    dial6(Socket::new(&context))
}

#[cgroup_sock_addr(sendmsg4)]
fn sendmsg4(context: SockAddrContext) -> i32 {
    dial4(Socket::new(&context))
}

#[cgroup_sock_addr(sendmsg6)]
fn sendmsg6(context: SockAddrContext) -> i32 {
    dial6(Socket::new(&context))
}

#[cgroup_sock_addr(recvmsg4)]
fn recvmsg4(context: SockAddrContext) -> i32 {
    peer4(Socket::new(&context))
}

#[cgroup_sock_addr(recvmsg6)]
fn recvmsg6(context: SockAddrContext) -> i32 {
    peer6(Socket::new(&context))
}

#[cgroup_sock_addr(getpeername4)]
fn getpeername4(context: SockAddrContext) -> i32 {
    peer4(Socket::new(&context))
}

#[cgroup_sock_addr(getpeername6)]
fn getpeername6(context: SockAddrContext) -> i32 {
    peer6(Socket::new(&context))
}

#[inline(always)]
fn dial4(socket: Socket) -> i32 {
    if let Some(to) = redirect(socket, &socket.ask4()) {
        socket.answer4(&to.address, to.port);
    }
    GO_ON
}

#[inline(always)]
fn dial6(socket: Socket) -> i32 {
    if let Some(to) = redirect(socket, &socket.ask6()) {
        socket.answer6(&to.address, to.port);
    }
    GO_ON
}

#[inline(always)]
fn peer4(socket: Socket) -> i32 {
    if let Some(dialled) = dialled(socket, &socket.ask4()) {
        socket.answer4(&dialled.address, dialled.port);
    }
    GO_ON
}

#[inline(always)]
fn peer6(socket: Socket) -> i32 {
    if let Some(dialled) = dialled(socket, &socket.ask6()) {
        socket.answer6(&dialled.address, dialled.port);
    }
    GO_ON
}

/// Where the socket is to be connected instead; what it has dialled is remembered.
#[inline(always)]
fn redirect(socket: Socket, dial: &Dial) -> Option<Redirected> {
    let to = dial::redirect(&tables(), dial)?;
    let key = key(socket, dial.protocol, &to);
    // SAFETY: values of this map are plain numbers that stay readable until the program ends.
    let known = unsafe { DIALLED.get(&key) };
    if known != Some(&to.dialled) {
        // Without it the socket is told the pod's address: better than no connection.
        let _ = DIALLED.insert(&key, &to.dialled, 0);
    }
    Some(to)
}

#[inline(always)]
fn key(socket: Socket, protocol: u8, to: &Redirected) -> DialledKey {
    DialledKey {
        socket: socket.cookie(),
        address: to.address,
        port: to.port,
        protocol,
        reserved: [0; 5],
    }
}

/// What the socket has dialled when it talks to `peer`.
#[inline(always)]
fn dialled(socket: Socket, peer: &Dial) -> Option<Dialled> {
    if !dial::is_of_node(&tables(), peer.netns) {
        return None;
    }
    let key = DialledKey {
        socket: socket.cookie(),
        address: peer.address,
        port: peer.port,
        protocol: peer.protocol,
        reserved: [0; 5],
    };
    // SAFETY: as above.
    unsafe { DIALLED.get(&key) }.copied()
}

/// The node's tables, without a packet.
#[inline(always)]
pub(crate) const fn tables() -> Kernel {
    Kernel::new(core::ptr::null_mut())
}
