//! Egress of an uplink: see [`verdict::hooks::uplink_out`].

use abi::DropHook;
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use verdict::{Packet as _, hooks};

use crate::action;
use crate::kernel::Kernel;
use crate::stages::Stages;

#[classifier]
#[inline(always)]
fn uplink_out(context: TcContext) -> i32 {
    // The frame comes from a VLAN interface on top of this one, which has hooks of its own.
    if Kernel::new(context.skb.skb).is_tagged() {
        return action::NEXT;
    }
    let skb = context.skb.skb;
    action::apply(
        skb,
        DropHook::UplinkOut,
        hooks::uplink_out(&mut Stages::new(skb)),
    )
}
