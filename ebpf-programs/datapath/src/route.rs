//! The route that the kernel took for a packet, looked up once more: a program is not told.

use core::mem;
use core::ptr;

use abi::{Address, Tuple};
use aya_ebpf::bindings::{__sk_buff, bpf_fib_lookup};
use aya_ebpf::helpers;

const AF_INET: u8 = 2;
const INVALID: i64 = -22;
const FIB_OUTPUT: u32 = 1 << 1;
const FIB_MARK: u32 = 1 << 5;
const FIB_SUCCESS: i64 = 0;
const FIB_NO_NEIGHBOUR: i64 = 7;
const FIB_TOO_LONG: i64 = 8;

/// The next hop of an IPv4 packet that leaves by `interface`; its destination, where none is known.
#[inline(always)]
pub(crate) fn next_hop(skb: *mut __sk_buff, interface: u32, tuple: &Tuple) -> Address {
    // SAFETY: the context is valid for as long as the program runs.
    let from = unsafe { ptr::read_volatile(&raw const (*skb).ingress_ifindex) };
    // As the kernel routed it: with the interface that it came by, for rules may ask for that.
    if from != 0
        && let Some(hop) = look_up(skb, from, interface, tuple, 0)
    {
        return hop;
    }
    match look_up(skb, interface, interface, tuple, FIB_OUTPUT) {
        Some(hop) => hop,
        None => tuple.destination,
    }
}

/// The next hop of the route that the kernel finds for a packet at the interface `at`, if it leads out by `interface`.
#[inline(always)]
fn look_up(
    skb: *mut __sk_buff,
    at: u32,
    interface: u32,
    tuple: &Tuple,
    flags: u32,
) -> Option<Address> {
    // SAFETY: zeros are a valid value of the helper's parameters.
    let mut route: bpf_fib_lookup = unsafe { mem::zeroed() };
    route.family = AF_INET;
    route.l4_protocol = tuple.protocol;
    route.sport = tuple.source_port.raw();
    route.dport = tuple.destination_port.raw();
    route.ifindex = at;
    route.__bindgen_anon_3.ipv4_src = tuple.source.words()[3];
    route.__bindgen_anon_4.ipv4_dst = tuple.destination.words()[3];
    // SAFETY: the context is valid for as long as the program runs; where the kernel knows the flag, it reads the
    // mark at the first word of the Ethernet addresses, which it writes only behind that.
    unsafe {
        let mark = ptr::read_volatile(&raw const (*skb).mark);
        (&raw mut route.smac).cast::<u32>().write_unaligned(mark);
    }
    let length = size_of::<bpf_fib_lookup>() as i32;
    let context = skb.cast();
    // SAFETY: the helper reads and writes `route` within the length given.
    let mut result =
        unsafe { helpers::bpf_fib_lookup(context, &raw mut route, length, flags | FIB_MARK) };
    if result == INVALID {
        // Kernels before 6.10 do not know about marks, and have not touched `route`.
        // SAFETY: as above.
        result = unsafe { helpers::bpf_fib_lookup(context, &raw mut route, length, flags) };
    }
    let found = result == FIB_SUCCESS || result == FIB_NO_NEIGHBOUR || result == FIB_TOO_LONG;
    // SAFETY: for this family the helper leaves the IPv4 next hop here.
    let hop = Address::from_v4_word(unsafe { route.__bindgen_anon_4.ipv4_dst });
    (found && route.family == AF_INET && route.ifindex == interface).then_some(hop)
}
