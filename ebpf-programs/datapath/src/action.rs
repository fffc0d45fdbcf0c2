//! From a verdict to what the traffic control hook returns.

use core::mem;
use core::ptr;

use aya_ebpf::bindings::{__sk_buff, bpf_redir_neigh};
use aya_ebpf::helpers;
use verdict::Verdict;

use crate::maps::{self, Scratch};

/// Go on with whoever is behind us: `TC_ACT_OK` would end the packet's way through the filters of others.
pub(crate) const NEXT: i32 = -1;
const SHOT: i32 = 2;
const PACKET_HOST: u32 = 0;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;

/// Whether the kernel makes what is handed to a pod a packet for this host by itself, or 0: the loader tries it and says.
#[unsafe(no_mangle)]
static REDIRECT_PEER_SCRUBS: u64 = 0;

/// Carries a verdict out, and says what the hook returns for it.
#[inline(always)]
pub(crate) fn apply(skb: *mut __sk_buff, verdict: Verdict) -> i32 {
    match verdict {
        Verdict::Pass => NEXT,
        Verdict::Drop(_) => SHOT,
        Verdict::RedirectNeigh(interface) => redirect_neigh(interface),
        // SAFETY: the helper checks what it is given.
        Verdict::Redirect(interface) => unsafe { helpers::bpf_redirect(interface, 0) as i32 },
        Verdict::RedirectPeer(interface) => {
            // SAFETY: the context is valid for as long as the program runs; both helpers check what they are given. A type
            // that cannot be changed is that of a packet for this host already.
            unsafe {
                if is_for_another(skb) {
                    helpers::bpf_skb_change_type(skb, PACKET_HOST);
                }
                helpers::bpf_redirect_peer(interface, 0) as i32
            }
        }
    }
}

/// Whether whoever is handed the packet would take it for somebody else's.
#[inline(always)]
fn is_for_another(skb: *mut __sk_buff) -> bool {
    // SAFETY: a static that only the loader writes, before the object is loaded; volatile, because the compiler must not
    // take the value it sees here for the one it will have. The context is valid for as long as the program runs.
    unsafe {
        ptr::read_volatile(&raw const REDIRECT_PEER_SCRUBS) == 0
            && ptr::read_volatile(&raw const (*skb).pkt_type) != PACKET_HOST
    }
}

/// Sends the packet to the next hop that the stages have left; whoever listens on that interface sees it leave.
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
