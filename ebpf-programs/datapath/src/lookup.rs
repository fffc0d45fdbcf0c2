//! Sockets of the node, found by the addresses and ports of a packet.

use core::ffi::c_void;
use core::ptr;

use aya_ebpf::bindings::{__sk_buff, bpf_sock};
use aya_ebpf::helpers;
use verdict::Socket;

const CURRENT_NETNS: u64 = u64::MAX;
const TCP_LISTEN: u32 = 10;

/// The socket of a tuple laid out as `struct bpf_sock_tuple`.
#[inline(always)]
pub(crate) fn socket<const N: usize>(
    skb: *mut __sk_buff,
    mut tuple: [u32; N],
    tcp: bool,
) -> Socket {
    let (context, length) = (skb.cast::<c_void>(), (N * 4) as u32);
    let tuple = tuple.as_mut_ptr().cast();
    if tcp {
        // SAFETY: the helper reads `length` bytes of `tuple`.
        let socket =
            unsafe { helpers::bpf_skc_lookup_tcp(context, tuple, length, CURRENT_NETNS, 0) };
        // SAFETY: `socket` is what a lookup returned, and the state of a TCP socket of any kind may be read.
        unsafe {
            release(socket, |socket| {
                ptr::read_volatile(&raw const (*socket).state) != TCP_LISTEN
            })
        }
    } else {
        // SAFETY: the helper reads `length` bytes of `tuple`.
        let socket =
            unsafe { helpers::bpf_sk_lookup_udp(context, tuple, length, CURRENT_NETNS, 0) };
        // SAFETY: `socket` is what a lookup returned, and its peer's port may be read.
        unsafe {
            release(socket, |socket| {
                ptr::read_volatile(&raw const (*socket).dst_port) != 0
            })
        }
    }
}

/// Asks a socket whether it is connected, and gives the reference back.
///
/// # Safety
/// `socket` must be what a socket lookup returned, and null or not released yet.
#[inline(always)]
unsafe fn release(
    socket: *mut bpf_sock,
    is_connected: impl FnOnce(*mut bpf_sock) -> bool,
) -> Socket {
    if socket.is_null() {
        return Socket::None;
    }
    let connected = is_connected(socket);
    // SAFETY: the caller's promise.
    unsafe { helpers::bpf_sk_release(socket.cast()) };
    if connected {
        Socket::Connected
    } else {
        Socket::Open
    }
}
