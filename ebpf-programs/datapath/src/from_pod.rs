//! Ingress of a pod's veth, on the host's end: see [`verdict::hooks::from_pod`].

use abi::DropHook;
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use verdict::hooks;

use crate::action;
use crate::stages::Stages;

#[classifier]
#[inline(always)]
fn from_pod(context: TcContext) -> i32 {
    let skb = context.skb.skb;
    action::apply(
        skb,
        DropHook::FromPod,
        hooks::from_pod(&mut Stages::new(skb)),
    )
}
