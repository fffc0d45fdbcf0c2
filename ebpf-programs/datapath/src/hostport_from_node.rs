//! Redirects the node's own sockets from hostports to pods: see [`verdict::hostport_from_node`].
//!
//! Sockets are connected to the pod before the kernel looks up a route. `getpeername` and `recvmsg`
//! report the address that the socket has requested.

use abi::{Dialled, DialledKey};
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use verdict::hostport_from_node::{self, ConnectTarget, SocketRequest};

use crate::kernel::Kernel;
use crate::maps::DIALLED;
use crate::socket::Socket;

const ALLOW: i32 = 1;

#[cgroup_sock_addr(connect4)]
fn connect4(context: SockAddrContext) -> i32 {
    connect_ipv4(Socket::new(&context))
}

#[cgroup_sock_addr(connect6)]
fn connect6(context: SockAddrContext) -> i32 {
    connect_ipv6(Socket::new(&context))
}

#[cgroup_sock_addr(sendmsg4)]
fn sendmsg4(context: SockAddrContext) -> i32 {
    connect_ipv4(Socket::new(&context))
}

#[cgroup_sock_addr(sendmsg6)]
fn sendmsg6(context: SockAddrContext) -> i32 {
    connect_ipv6(Socket::new(&context))
}

#[cgroup_sock_addr(recvmsg4)]
fn recvmsg4(context: SockAddrContext) -> i32 {
    report_peer_ipv4(Socket::new(&context))
}

#[cgroup_sock_addr(recvmsg6)]
fn recvmsg6(context: SockAddrContext) -> i32 {
    report_peer_ipv6(Socket::new(&context))
}

#[cgroup_sock_addr(getpeername4)]
fn getpeername4(context: SockAddrContext) -> i32 {
    report_peer_ipv4(Socket::new(&context))
}

#[cgroup_sock_addr(getpeername6)]
fn getpeername6(context: SockAddrContext) -> i32 {
    report_peer_ipv6(Socket::new(&context))
}

#[inline(always)]
fn connect_ipv4(socket: Socket) -> i32 {
    if let Some(to) = redirect(socket, &socket.request4()) {
        socket.set_address4(&to.address, to.port);
    }
    ALLOW
}

#[inline(always)]
fn connect_ipv6(socket: Socket) -> i32 {
    if let Some(to) = redirect(socket, &socket.request6()) {
        socket.set_address6(&to.address, to.port);
    }
    ALLOW
}

#[inline(always)]
fn report_peer_ipv4(socket: Socket) -> i32 {
    if let Some(requested) = requested_address(socket, &socket.request4()) {
        socket.set_address4(&requested.address, requested.port);
    }
    ALLOW
}

#[inline(always)]
fn report_peer_ipv6(socket: Socket) -> i32 {
    if let Some(requested) = requested_address(socket, &socket.request6()) {
        socket.set_address6(&requested.address, requested.port);
    }
    ALLOW
}

/// Returns the pod that the socket is to be connected to, and stores the requested address.
#[inline(always)]
fn redirect(socket: Socket, request: &SocketRequest) -> Option<ConnectTarget> {
    let to = hostport_from_node::redirect(&tables(), request)?;
    let key = key(socket, request.protocol, &to);
    // SAFETY: values of this map are plain numbers that stay readable until the program ends.
    let stored = unsafe { DIALLED.get(&key) };
    if stored != Some(&to.requested) {
        // Without an entry, `getpeername` reports the pod's address, and the connection still
        // works.
        let _ = DIALLED.insert(&key, &to.requested, 0);
    }
    Some(to)
}

#[inline(always)]
fn key(socket: Socket, protocol: u8, to: &ConnectTarget) -> DialledKey {
    DialledKey {
        socket: socket.cookie(),
        address: to.address,
        port: to.port,
        protocol,
        reserved: [0; 5],
    }
}

/// Returns the address that the socket has requested, if it is connected to `peer`.
#[inline(always)]
fn requested_address(socket: Socket, peer: &SocketRequest) -> Option<Dialled> {
    if !hostport_from_node::is_of_node(&tables(), peer.netns) {
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

/// Returns the node's tables, without a packet.
#[inline(always)]
pub(crate) const fn tables() -> Kernel {
    Kernel::new(core::ptr::null_mut())
}
