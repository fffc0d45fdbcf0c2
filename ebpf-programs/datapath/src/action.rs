//! Applies verdicts: helper calls, and the return code of the traffic control hook.

use core::mem;
use core::ptr;

use abi::DropHook;
use aya_ebpf::bindings::{__sk_buff, bpf_redir_neigh};
use aya_ebpf::helpers;
use verdict::Verdict;

use crate::drop_log::report_drop;
use crate::maps::{self, Scratch};

/// Continue with the next program (`TCX_NEXT`, `TC_ACT_UNSPEC`). `TC_ACT_OK` would skip the filters
/// of other software.
pub(crate) const NEXT: i32 = -1;
const SHOT: i32 = 2;
const PACKET_HOST: u32 = 0;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;

/// Whether `bpf_redirect_peer` itself sets the packet type to `PACKET_HOST`; 0 if not. The loader
/// probes the kernel and sets it.
#[unsafe(no_mangle)]
static REDIRECT_PEER_SCRUBS: u64 = 0;

/// Applies a verdict at a hook, reports a drop, and returns the hook's return code.
#[inline(always)]
pub(crate) fn apply(skb: *mut __sk_buff, hook: DropHook, verdict: Verdict) -> i32 {
    match verdict {
        Verdict::Pass => NEXT,
        Verdict::Drop(reason) => {
            report_drop(skb, hook as u64, u64::from(reason as u32));
            SHOT
        }
        // `TCX_NEXT` would follow `TC_ACT_STOLEN`: TCX links know no other code that ends a packet.
        Verdict::Consume => SHOT,
        Verdict::RedirectNeigh(interface) => redirect_neigh(interface),
        // SAFETY: the helper checks its arguments.
        Verdict::Redirect(interface) => unsafe { helpers::bpf_redirect(interface, 0) as i32 },
        Verdict::RedirectPeer(interface) => {
            // SAFETY: the context is valid for as long as the program runs; both helpers check
            // their arguments. Where the type cannot be changed, it is that of a packet for this
            // host already.
            unsafe {
                if is_for_other_host(skb) {
                    helpers::bpf_skb_change_type(skb, PACKET_HOST);
                }
                helpers::bpf_redirect_peer(interface, 0) as i32
            }
        }
    }
}

/// Returns whether the receiver would drop the packet as one for another host (`PACKET_OTHERHOST`
/// and others).
#[inline(always)]
fn is_for_other_host(skb: *mut __sk_buff) -> bool {
    // SAFETY: a static that only the loader writes, before the object is loaded; volatile, because
    // the compiler must not use the initial value. The context is valid for as long as the program
    // runs.
    unsafe {
        ptr::read_volatile(&raw const REDIRECT_PEER_SCRUBS) == 0
            && ptr::read_volatile(&raw const (*skb).pkt_type) != PACKET_HOST
    }
}

/// Sends the packet to the next hop that the stages have left in the scratch memory. Packet sockets
/// on that interface see it leave.
#[inline(always)]
fn redirect_neigh(interface: u32) -> i32 {
    let Some(work) = maps::work(Scratch::Packet) else {
        return NEXT;
    };
    // SAFETY: zeros are a valid value of the helper's parameters.
    let mut hop: bpf_redir_neigh = unsafe { mem::zeroed() };
    if work.hop.is_v4() {
        hop.nh_family = AF_INET;
        hop.__bindgen_anon_1.ipv4_nh = work.hop.words()[3];
    } else {
        hop.nh_family = AF_INET6;
        hop.__bindgen_anon_1.ipv6_nh = work.hop.words();
    }
    let length = size_of::<bpf_redir_neigh>() as i32;
    // SAFETY: the helper reads `length` bytes of `hop`.
    unsafe { helpers::bpf_redirect_neigh(interface, &raw mut hop, length, 0) as i32 }
}
