//! The route that the kernel took for a packet, looked up once more: a program is not told.

use core::mem;
use core::ptr;

use abi::{Address, Tuple};
use aya_ebpf::bindings::{__sk_buff, bpf_fib_lookup};
use aya_ebpf::helpers;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const INVALID: i64 = -22;
const FIB_OUTPUT: u32 = 1 << 1;
const FIB_SKIP_NEIGHBOUR: u32 = 1 << 2;
const FIB_MARK: u32 = 1 << 5;
const FIB_SUCCESS: i64 = 0;
const FIB_NO_NEIGHBOUR: i64 = 7;
/// A length that every route takes. Where none is given, the kernel looks the route's link up once more to ask it, and
/// takes for granted that it is there: of a link that is being removed it is not, and the node panics (decision 55).
const FITS: u16 = 1;

/// The next hop of an IPv4 packet that came by the bridge `from` and leaves by `interface`; its destination, where none
/// is known.
///
/// The packet itself remembers the interface that it was taken from, which is the pod's veth where it went past the
/// bridge; rules ask for the bridge.
#[inline(always)]
pub(crate) fn next_hop(skb: *mut __sk_buff, from: u32, interface: u32, tuple: &Tuple) -> Address {
    if from != 0
        && let Some(hop) = hop(skb, from, interface, tuple, 0)
    {
        return hop;
    }
    match hop(skb, interface, interface, tuple, FIB_OUTPUT) {
        Some(hop) => hop,
        None => tuple.destination,
    }
}

/// The link that the kernel would send a packet out by that came in by the link `from`, the next hop there, and the MTU of
/// the way, 0 where the kernel does not say; no link, 0, where it would not.
#[inline(always)]
pub(crate) fn egress_route(
    skb: *mut __sk_buff,
    from: u32,
    tuple: &Tuple,
    hop: &mut Address,
    mtu: &mut u32,
) -> u32 {
    let Some(route) = look_up(skb, from, tuple, FIB_SKIP_NEIGHBOUR) else {
        return 0;
    };
    *hop = next(&route);
    // SAFETY: a plain number.
    let reported = unsafe { route.__bindgen_anon_1.mtu_result };
    // It is in the place of the length that was given, which some kernels leave there while no neighbour is known.
    *mtu = if reported > FITS { u32::from(reported) } else { 0 };
    route.ifindex
}

/// The next hop of the route that the kernel finds for an IPv4 packet at the interface `at`, if it leads out by
/// `interface`.
#[inline(always)]
fn hop(skb: *mut __sk_buff, at: u32, interface: u32, tuple: &Tuple, flags: u32) -> Option<Address> {
    let route = look_up(skb, at, tuple, flags)?;
    (route.family == AF_INET && route.ifindex == interface).then(|| next(&route))
}

/// The route that the kernel finds for a packet at the interface `at`.
#[inline(always)]
fn look_up(skb: *mut __sk_buff, at: u32, tuple: &Tuple, flags: u32) -> Option<bpf_fib_lookup> {
    // SAFETY: zeros are a valid value of the helper's parameters.
    let mut route: bpf_fib_lookup = unsafe { mem::zeroed() };
    route.l4_protocol = tuple.protocol;
    route.sport = tuple.source_port.raw();
    route.dport = tuple.destination_port.raw();
    route.__bindgen_anon_1.tot_len = FITS;
    route.ifindex = at;
    if tuple.source.is_v4() {
        route.family = AF_INET;
        route.__bindgen_anon_3.ipv4_src = tuple.source.words()[3];
        route.__bindgen_anon_4.ipv4_dst = tuple.destination.words()[3];
    } else {
        route.family = AF_INET6;
        route.__bindgen_anon_3.ipv6_src = tuple.source.words();
        route.__bindgen_anon_4.ipv6_dst = tuple.destination.words();
    }
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
        // Kernels before 6.10 do not know about marks, some not about neighbours, and have not touched `route`.
        let flags = flags & FIB_OUTPUT;
        // SAFETY: as above.
        result = unsafe { helpers::bpf_fib_lookup(context, &raw mut route, length, flags) };
    }
    (result == FIB_SUCCESS || result == FIB_NO_NEIGHBOUR).then_some(route)
}

/// The next hop in an answer: the family is that of the hop.
#[inline(always)]
fn next(route: &bpf_fib_lookup) -> Address {
    // SAFETY: both are plain numbers, and the helper has written the family's.
    unsafe {
        if route.family == AF_INET {
            Address::from_v4_word(route.__bindgen_anon_4.ipv4_dst)
        } else {
            Address::from_words(route.__bindgen_anon_4.ipv6_dst)
        }
    }
}
