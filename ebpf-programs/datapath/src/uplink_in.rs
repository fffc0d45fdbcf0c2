//! What enters the node by an uplink: see [`verdict::hooks::uplink_in`].

use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use verdict::hooks;

use crate::action;
use crate::kernel::Kernel;
use crate::stages::Stages;

#[classifier]
fn uplink_in(context: TcContext) -> i32 {
    if Kernel::new(context.skb.skb).is_tagged() {
        return action::NEXT;
    }
    let skb = context.skb.skb;
    action::of(skb, hooks::uplink_in(&mut Stages::<true>::new(skb)))
}
