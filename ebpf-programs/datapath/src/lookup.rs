//! Socket lookups of the node, by the addresses and ports of a packet.

use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr;

use abi::{Address, Tuple};
use aya_ebpf::bindings::{__sk_buff, bpf_sock};
use aya_ebpf::helpers;
use verdict::Socket;

use crate::memory::load;

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

/// Returns whether the packet's own socket has this tuple. A socket whose packets netfilter has
/// translated has another one. A forwarded packet has no socket.
#[inline(always)]
pub(crate) fn is_sent_by_socket(skb: *mut __sk_buff, tuple: &Tuple) -> bool {
    // SAFETY: the context is valid for as long as the program runs, and so is the packet's socket:
    // the verifier allows reads of it after the check.
    unsafe {
        let socket = ptr::read_volatile(&raw const (*skb).__bindgen_anon_2.sk);
        if socket.is_null() {
            return false;
        }
        let source_port = ptr::read_volatile(&raw const (*socket).src_port);
        let destination_port = ptr::read_volatile(&raw const (*socket).dst_port);
        if source_port != u32::from(tuple.source_port.number()) {
            return false;
        }
        let from = source(socket, tuple.source.is_v4());
        let to = destination(socket, tuple.source.is_v4());
        let is_bound = from[0] | from[1] | from[2] | from[3] != 0;
        let is_connected = destination_port != 0;
        (!is_bound || from == low_words(&tuple.source))
            && (!is_connected
                || destination_port == tuple.destination_port.raw()
                    && to == low_words(&tuple.destination))
    }
}

/// Returns the words of an address; of an IPv4 address the last one, and zeros.
#[inline(always)]
const fn low_words(address: &Address) -> [u32; 4] {
    let words = address.words();
    if address.is_v4() {
        [0, 0, 0, words[3]]
    } else {
        words
    }
}

/// Returns the socket's own address; of an IPv4 address the last word, and zeros.
///
/// # Safety
/// `socket` must be the current packet's, and not null.
#[inline(always)]
unsafe fn source(socket: *mut bpf_sock, is_v4: bool) -> [u32; 4] {
    const V4: i32 = offset_of!(bpf_sock, src_ip4) as i32;
    const V6: i32 = offset_of!(bpf_sock, src_ip6) as i32;
    let at = socket as usize;
    // SAFETY: the caller's promise. Not by `ptr`: the compiler would join loads of two fields, and
    // the verifier refuses computed offsets.
    unsafe {
        if is_v4 {
            return [0, 0, 0, load::<V4>(at)];
        }
        [
            load::<V6>(at),
            load::<{ V6 + 4 }>(at),
            load::<{ V6 + 8 }>(at),
            load::<{ V6 + 12 }>(at),
        ]
    }
}

/// As [`source`], for the address that the socket is connected to.
///
/// # Safety
/// As for [`source`].
#[inline(always)]
unsafe fn destination(socket: *mut bpf_sock, is_v4: bool) -> [u32; 4] {
    const V4: i32 = offset_of!(bpf_sock, dst_ip4) as i32;
    const V6: i32 = offset_of!(bpf_sock, dst_ip6) as i32;
    let at = socket as usize;
    // SAFETY: as in `source`.
    unsafe {
        if is_v4 {
            return [0, 0, 0, load::<V4>(at)];
        }
        [
            load::<V6>(at),
            load::<{ V6 + 4 }>(at),
            load::<{ V6 + 8 }>(at),
            load::<{ V6 + 12 }>(at),
        ]
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
