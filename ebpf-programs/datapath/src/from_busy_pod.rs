//! TCX ingress of a high-traffic pod's veth, in front of [`crate::from_pod`]: ends packets of
//! established flows, and passes all others on.
//!
//! It decides nothing and makes no cache entry, so its absence changes nothing but the cost: see
//! decision 75.

use abi::DropHook;
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use verdict::{Packet as _, Verdict, stages};

use crate::action;
use crate::kernel::Kernel;
use crate::stages::PerCpuScratch;

#[classifier]
#[inline(always)]
fn from_busy_pod(context: TcContext) -> i32 {
    let skb = context.skb.skb;
    let kernel = &mut Kernel::in_place(skb);
    let interface = kernel.hook_interface();
    let verdict = stages::find_cached_redirect(kernel, &mut PerCpuScratch, interface);
    action::apply(skb, DropHook::FromPod, verdict.unwrap_or(Verdict::Pass))
}
