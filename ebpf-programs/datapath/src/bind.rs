//! Refuses `bind` of the node's sockets to hostports, with the error of a port that is in use.
//!
//! So a hostport stays its pod's while the agent is dead and its own sockets on the port are gone.

use core::ffi::c_void;
use core::ptr;

use abi::{Address, HOLDER_MARK, Port};
use aya_ebpf::helpers::{bpf_for_each_map_elem, bpf_get_current_pid_tgid, bpf_set_retval};
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use verdict::hostport_from_node::{self, SocketRequest};

use crate::hostport_from_node::tables;
use crate::maps::LOCALS;
use crate::socket::Socket;

/// Whether the kernel has `bpf_set_retval` for these programs; 0 if not. Without it, the error is
/// `EPERM`. The loader probes the kernel and sets it.
#[unsafe(no_mangle)]
static HAS_SET_RETVAL: u64 = 1;

const ALLOW: i32 = 1;
const REFUSE: i32 = 0;
const ADDRESS_IN_USE: i32 = -98;
const NEXT: i64 = 0;
const STOP: i64 = 1;

#[cgroup_sock_addr(bind4)]
fn bind4(context: SockAddrContext) -> i32 {
    let socket = Socket::new(&context);
    bind(socket, socket.request4())
}

#[cgroup_sock_addr(bind6)]
fn bind6(context: SockAddrContext) -> i32 {
    let socket = Socket::new(&context);
    bind(socket, socket.request6())
}

#[inline(always)]
fn bind(socket: Socket, request: SocketRequest) -> i32 {
    // The agent's own reservation sockets are exempt, and a runtime that binds the ports of its
    // container itself.
    let exempt = request.port == Port::NONE || socket.mark() == HOLDER_MARK;
    if exempt || !hostport_from_node::is_of_node(&tables(), request.netns) {
        return ALLOW;
    }
    let process = (bpf_get_current_pid_tgid() >> 32) as u32;
    let everywhere = hostport_from_node::is_unspecified(&request.address);
    if hostport_from_node::conflicts_with_hostport(&tables(), &request, process)
        || (everywhere && conflicts_somewhere(request, process))
    {
        // SAFETY: a static that only the loader writes, before the object is loaded; volatile,
        // because the compiler must not use the initial value. The helper takes a number.
        unsafe {
            if ptr::read_volatile(&raw const HAS_SET_RETVAL) != 0 {
                bpf_set_retval(ADDRESS_IN_USE);
            }
        }
        return REFUSE;
    }
    ALLOW
}

/// State of the walk over the node's addresses.
struct AddressSearch {
    request: SocketRequest,
    process: u32,
    found: bool,
}

/// Returns whether the requested port of any address of the node is a hostport that `process` may
/// not bind.
#[inline(always)]
fn conflicts_somewhere(request: SocketRequest, process: u32) -> bool {
    let mut search = AddressSearch {
        request,
        process,
        found: false,
    };
    // SAFETY: the callback has the signature that the helper calls for a hash map, and `search`
    // outlives the call.
    unsafe {
        bpf_for_each_map_elem(
            (&raw const LOCALS).cast_mut().cast(),
            visit as *mut c_void,
            (&raw mut search).cast(),
            0,
        );
    }
    search.found
}

extern "C" fn visit(
    _: *mut c_void,
    address: *const Address,
    _: *mut c_void,
    search: *mut AddressSearch,
) -> i64 {
    // SAFETY: the kernel calls this with a key of the table and with what `conflicts_somewhere`
    // gave.
    let (address, search) = unsafe { (*address, &mut *search) };
    if hostport_from_node::covers(&search.request, &address)
        && hostport_from_node::is_hostport_at(&tables(), &address, &search.request, search.process)
    {
        search.found = true;
        return STOP;
    }
    NEXT
}
