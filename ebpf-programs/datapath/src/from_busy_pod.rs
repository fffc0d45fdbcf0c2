//! What a busy pod sends, in front of [`crate::from_pod`]: packets of connections under way end here, all others go on to there.
//!
//! It decides nothing and makes no shortcut, so nothing is lost where it is missing: see decision 75.

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use verdict::{Verdict, stages};

use crate::action;
use crate::kernel::Kernel;
use crate::stages::PerCpuScratch;

#[classifier]
#[inline(always)]
fn from_busy_pod(context: TcContext) -> i32 {
    let skb = context.skb.skb;
    let kernel = &mut Kernel::in_place(skb);
    let interface = kernel.hook();
    let verdict = stages::find_cached_redirect(kernel, &mut PerCpuScratch, interface);
    action::apply(skb, verdict.unwrap_or(Verdict::Pass))
}
