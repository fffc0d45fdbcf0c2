//! A socket that asks for an address, as the kernel shows it to a program on a cgroup.
//!
//! The one file that reads and writes such a context. Fields are read and written one by one and whole: the verifier
//! knows no others, and the compiler must not merge them.

use core::ptr;

use abi::{Address, Port};
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers;
use aya_ebpf::programs::SockAddrContext;
use verdict::hostport_from_node::SocketRequest;

/// A socket, and the address that it asks for.
#[derive(Clone, Copy)]
pub(crate) struct Socket {
    context: *mut bpf_sock_addr,
}

impl Socket {
    /// The socket that a program was called for.
    #[inline(always)]
    pub(crate) const fn new(context: &SockAddrContext) -> Self {
        Self {
            context: context.sock_addr,
        }
    }

    /// Never the same for two sockets.
    #[inline(always)]
    pub(crate) fn cookie(self) -> u64 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { helpers::bpf_get_socket_cookie(self.context.cast()) }
    }

    /// `SO_MARK`.
    #[inline(always)]
    pub(crate) fn mark(self) -> u32 {
        // SAFETY: as above; a program of this type always has a socket.
        unsafe {
            let socket = ptr::read_volatile(&raw const (*self.context).__bindgen_anon_1.sk);
            ptr::read_volatile(&raw const (*socket).mark)
        }
    }

    /// What it asks for, by IPv4.
    #[inline(always)]
    pub(crate) fn request4(self) -> SocketRequest {
        // SAFETY: as above.
        let word = unsafe { ptr::read_volatile(&raw const (*self.context).user_ip4) };
        self.request(Address::from_v4_word(word))
    }

    /// What it asks for, by IPv6, which may be an IPv4 address.
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

    /// Answers with another IPv4 address and port.
    #[inline(always)]
    pub(crate) fn set_address4(self, address: &Address, port: Port) {
        let [_, _, _, word] = address.words();
        // SAFETY: as above.
        unsafe { ptr::write_volatile(&raw mut (*self.context).user_ip4, word) }
        self.set_port(port);
    }

    /// Answers with another IPv6 address, which may be an IPv4 one, and port.
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
