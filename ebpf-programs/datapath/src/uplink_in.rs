//! Ingress of an uplink: see [`verdict::hooks::uplink_in`].

use abi::DropHook;
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use verdict::{Packet as _, hooks};

use crate::action;
use crate::kernel::Kernel;
use crate::stages::Stages;

#[classifier]
#[inline(always)]
fn uplink_in(context: TcContext) -> i32 {
    let skb = context.skb.skb;
    // The frame is for a VLAN interface on top of this one, which has hooks of its own. Some
    // network cards report VLAN 0 on every frame, which is none.
    if Kernel::new(skb).vlan_id() != 0 {
        return action::NEXT;
    }
    action::apply(
        skb,
        DropHook::UplinkIn,
        hooks::uplink_in(&mut Stages::new(skb)),
    )
}
