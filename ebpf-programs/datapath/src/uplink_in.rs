//! Ingress of an uplink: see [`verdict::hooks::uplink_in`].

use core::ptr;

use aya_ebpf::bindings::__sk_buff;
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
    // The frame is for a VLAN interface on top of this one, which has hooks of its own.
    if has_vlan_id(skb) {
        return action::NEXT;
    }
    action::apply(skb, hooks::uplink_in(&mut Stages::new(skb)))
}

/// Returns whether the frame belongs to a VLAN. A tag with VLAN id 0 only carries a priority (IEEE
/// 802.1Q, "priority-tagged"); some network cards report one on every frame.
#[inline(always)]
fn has_vlan_id(skb: *mut __sk_buff) -> bool {
    const VLAN_ID: u32 = 0xfff;
    // SAFETY: the context is valid for as long as the program runs.
    let tag = unsafe { ptr::read_volatile(&raw const (*skb).vlan_tci) };
    Kernel::new(skb).is_tagged() && tag & VLAN_ID != 0
}
