//! From a verdict to what the traffic control hook returns.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers;
use verdict::Verdict;

/// Go on with whoever is behind us: `TC_ACT_OK` would end the packet's way through the filters of others.
pub(crate) const NEXT: i32 = -1;
const SHOT: i32 = 2;
const PACKET_HOST: u32 = 0;

/// Carries a verdict out, and says what the hook returns for it.
#[inline(always)]
pub(crate) fn of(skb: *mut __sk_buff, verdict: Verdict) -> i32 {
    match verdict {
        Verdict::Pass => NEXT,
        Verdict::Drop(_) => SHOT,
        Verdict::Deliver(interface) => {
            // SAFETY: both helpers check what they are given. A type that cannot be changed is that of a packet for
            // this host already.
            unsafe {
                helpers::bpf_skb_change_type(skb, PACKET_HOST);
                helpers::bpf_redirect_peer(interface, 0) as i32
            }
        }
    }
}
