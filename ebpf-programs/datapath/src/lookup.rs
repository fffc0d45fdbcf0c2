//! Socket lookups of the node, by the addresses and ports of a packet.

use core::ffi::c_void;
use core::ptr;

use aya_ebpf::bindings::{__sk_buff, bpf_sock};
use aya_ebpf::helpers;
use verdict::Socket;

const CURRENT_NETNS: u64 = u64::MAX;
const TCP_LISTEN: u32 = 10;

/// Looks up the socket of a tuple that is laid out as `struct bpf_sock_tuple`.
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
        // SAFETY: `socket` is from a lookup, and the state of a TCP socket of any kind may be read.
        unsafe {
            release(socket, |socket| {
                ptr::read_volatile(&raw const (*socket).state) != TCP_LISTEN
            })
        }
    } else {
        // SAFETY: the helper reads `length` bytes of `tuple`.
        let socket =
            unsafe { helpers::bpf_sk_lookup_udp(context, tuple, length, CURRENT_NETNS, 0) };
        // SAFETY: `socket` is from a lookup, and its peer's port may be read.
        unsafe {
            release(socket, |socket| {
                ptr::read_volatile(&raw const (*socket).dst_port) != 0
            })
        }
    }
}

/// Returns whether a socket is connected, and releases the reference.
///
/// # Safety
/// `socket` must be null, or from a socket lookup and not yet released.
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
