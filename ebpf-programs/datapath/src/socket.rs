//! The context of a cgroup address program: a socket and the address that it requests.
//!
//! The only file that reads and writes such a context. Fields are accessed one by one and whole:
//! the verifier allows nothing else, and the compiler must not merge the accesses.

use core::ptr;

use abi::{Address, Port};
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers;
use aya_ebpf::programs::SockAddrContext;
use verdict::hostport_from_node::SocketRequest;

/// A socket, and the address that it requests.
#[derive(Clone, Copy)]
pub(crate) struct Socket {
    context: *mut bpf_sock_addr,
}

impl Socket {
    /// Returns the socket that a program was called for.
    #[inline(always)]
    pub(crate) const fn new(context: &SockAddrContext) -> Self {
        Self {
            context: context.sock_addr,
        }
    }

    /// Returns the socket's cookie, which is unique on the node.
    #[inline(always)]
    pub(crate) fn cookie(self) -> u64 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { helpers::bpf_get_socket_cookie(self.context.cast()) }
    }

    /// Returns the socket's `SO_MARK`.
    #[inline(always)]
    pub(crate) fn mark(self) -> u32 {
        // SAFETY: as above; a program of this type always has a socket.
        unsafe {
            let socket = ptr::read_volatile(&raw const (*self.context).__bindgen_anon_1.sk);
            ptr::read_volatile(&raw const (*socket).mark)
        }
    }

    /// Returns the request of an IPv4 socket.
    #[inline(always)]
    pub(crate) fn request4(self) -> SocketRequest {
        // SAFETY: as above.
        let word = unsafe { ptr::read_volatile(&raw const (*self.context).user_ip4) };
        self.request(Address::from_v4_word(word))
    }

    /// Returns the request of an IPv6 socket, whose address may be IPv4-mapped.
    #[inline(always)]
    pub(crate) fn request6(self) -> SocketRequest {
        // SAFETY: as above.
        let words = unsafe {
            let words = &raw const (*self.context).user_ip6;
            [
                ptr::read_volatile(&raw const (*words)[0]),
                ptr::read_volatile(&raw const (*words)[1]),
                ptr::read_volatile(&raw const (*words)[2]),
                ptr::read_volatile(&raw const (*words)[3]),
            ]
        };
        self.request(Address::from_words(words))
    }

    #[inline(always)]
    fn request(self, address: Address) -> SocketRequest {
        // SAFETY: as above.
        unsafe {
            SocketRequest {
                netns: helpers::bpf_get_netns_cookie(self.context.cast()),
                protocol: ptr::read_volatile(&raw const (*self.context).protocol) as u8,
                address,
                port: Port::from_raw(
                    ptr::read_volatile(&raw const (*self.context).user_port) as u16
                ),
            }
        }
    }

    /// Replaces the requested IPv4 address and port.
    #[inline(always)]
    pub(crate) fn set_address4(self, address: &Address, port: Port) {
        let [_, _, _, word] = address.words();
        // SAFETY: as above.
        unsafe { ptr::write_volatile(&raw mut (*self.context).user_ip4, word) }
        self.set_port(port);
    }

    /// Replaces the requested IPv6 address, which may become an IPv4-mapped one, and port.
    #[inline(always)]
    pub(crate) fn set_address6(self, address: &Address, port: Port) {
        let [a, b, c, d] = address.words();
        // SAFETY: as above.
        unsafe {
            let words = &raw mut (*self.context).user_ip6;
            ptr::write_volatile(&raw mut (*words)[0], a);
            ptr::write_volatile(&raw mut (*words)[1], b);
            ptr::write_volatile(&raw mut (*words)[2], c);
            ptr::write_volatile(&raw mut (*words)[3], d);
        }
        self.set_port(port);
    }

    #[inline(always)]
    fn set_port(self, port: Port) {
        // SAFETY: as above.
        unsafe { ptr::write_volatile(&raw mut (*self.context).user_port, u32::from(port.raw())) }
    }
}
