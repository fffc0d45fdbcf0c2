//! Route lookups (`bpf_fib_lookup`): programs do not get the route that the kernel has taken.

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
/// A packet length that fits every route. With a length of 0, the kernel looks up the route's link
/// again to read its MTU, and assumes that it exists. While a link is being removed it does not,
/// and the node panics (decision 55).
const FITS: u16 = 1;

/// Returns the next hop of an IPv4 packet that came by the bridge `from` and leaves by `interface`;
/// its destination where none is known.
///
/// The packet's own ingress interface is the pod's veth where it bypassed the bridge, but routing
/// rules match the bridge.
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

/// Returns the link by which the kernel would forward a packet that came in by the link `from`; 0
/// where it would not. Writes the next hop, and the route's MTU, 0 where the kernel does not report
/// one.
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
    // The field is also the input length, which some kernels leave there while the neighbour is
    // unresolved.
    *mtu = if reported > FITS {
        u32::from(reported)
    } else {
        0
    };
    route.ifindex
}

/// Returns the next hop of an IPv4 packet's route at the interface `at`, if the route leaves by
/// `interface`.
#[inline(always)]
fn hop(skb: *mut __sk_buff, at: u32, interface: u32, tuple: &Tuple, flags: u32) -> Option<Address> {
    let route = look_up(skb, at, tuple, flags)?;
    (route.family == AF_INET && route.ifindex == interface).then(|| next(&route))
}

/// Looks up the route of a packet at the interface `at`.
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
    // SAFETY: the context is valid for as long as the program runs. Where the kernel has the flag,
    // it reads the mark at the first word of the MAC addresses, which it writes only afterwards.
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
        // Kernels before 6.10 reject the mark flag, some the neighbour flag, and have not changed
        // `route`.
        let flags = flags & FIB_OUTPUT;
        // SAFETY: as above.
        result = unsafe { helpers::bpf_fib_lookup(context, &raw mut route, length, flags) };
    }
    (result == FIB_SUCCESS || result == FIB_NO_NEIGHBOUR).then_some(route)
}

/// Returns the next hop of a route: the family is that of the hop.
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
