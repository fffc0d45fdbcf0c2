//! What enters the node by an uplink: see [`verdict::hooks::uplink_in`].

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
    // It is for an interface on top of this one, which has hooks itself.
    if is_of_vlan(skb) {
        return action::NEXT;
    }
    action::apply(skb, hooks::uplink_in(&mut Stages::new(skb)))
}

/// Whether the frame is one of a VLAN. A tag with the number 0 says how urgent a frame is, and nothing else (IEEE 802.1Q,
/// "priority-tagged"); some network cards see one on every frame.
#[inline(always)]
fn is_of_vlan(skb: *mut __sk_buff) -> bool {
    const NUMBER: u32 = 0xfff;
    // SAFETY: the context is valid for as long as the program runs.
    let tag = unsafe { ptr::read_volatile(&raw const (*skb).vlan_tci) };
    Kernel::new(skb).is_tagged() && tag & NUMBER != 0
}
