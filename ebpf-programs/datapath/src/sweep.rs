//! The sweep: removes dead flows, and fragments whose first one has not arrived, in the kernel.
//! Between check and removal of an entry there are only a few lookups, so a flow that becomes
//! active meanwhile is not lost.
//!
//! Not attached anywhere: the agent runs it periodically.

use core::ffi::c_void;

use abi::{Flow, HeldFragment, HeldKey, Swept, Tuple};
use aya_ebpf::helpers::bpf_for_each_map_elem;
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use verdict::flow::FlowState;
use verdict::{Node, Sweep, fragment, remove_dead};

use crate::kernel::Kernel;
use crate::maps::{self, FLOWS, HELD, SWEPT, Scratch};

const CONTINUE: i64 = 0;

/// Walks the flow table once. Returns how many flows were removed; details are in `SWEPT`.
#[classifier]
fn sweep(context: TcContext) -> i32 {
    let kernel = Kernel::new(context.skb.skb);
    let (Some(work), Some(swept)) = (maps::work(Scratch::Sweep), SWEPT.get_ptr_mut(0)) else {
        return 0;
    };
    work.now = kernel.now();
    // SAFETY: the element exists for as long as the map, and only one sweep runs at a time.
    unsafe { *swept = Swept::default() };
    // SAFETY: the callback has the signature that the helper calls for a hash map.
    unsafe {
        bpf_for_each_map_elem(
            (&raw const FLOWS).cast_mut().cast(),
            visit as *mut c_void,
            core::ptr::null_mut(),
            0,
        );
        bpf_for_each_map_elem(
            (&raw const HELD).cast_mut().cast(),
            visit_held as *mut c_void,
            core::ptr::null_mut(),
            0,
        );
        ((*swept).timed_out + (*swept).stale + (*swept).address_gone) as i32
    }
}

/// Checks one entry, and removes it if it is dead. Counters are in a map's value: on the stack they
/// would make the verifier walk every count.
extern "C" fn visit(_: *mut c_void, key: *const Tuple, flow: *const Flow, _: *mut c_void) -> i64 {
    let (Some(work), Some(swept)) = (maps::work(Scratch::Sweep), SWEPT.get_ptr_mut(0)) else {
        return CONTINUE;
    };
    // No packet: stages that need one are not called here.
    let mut kernel = Kernel::new(core::ptr::null_mut());
    // SAFETY: the kernel calls this with an entry of the table, which stays readable until the
    // program ends.
    unsafe { work.headers.tuple = *key };
    if !is_in_table(&work.headers.tuple, flow) {
        return CONTINUE;
    }
    // SAFETY: as above.
    let flow = unsafe { *flow };
    let opposite = &mut work.translated;
    let outcome = remove_dead(&mut kernel, &work.headers.tuple, &flow, opposite, work.now);
    // SAFETY: as in `sweep`.
    unsafe {
        match outcome {
            Sweep::Kept | Sweep::Removed(FlowState::Alive) => (*swept).kept += 1,
            Sweep::Removed(FlowState::TimedOut) => (*swept).timed_out += 1,
            Sweep::Removed(FlowState::Stale) => (*swept).stale += 1,
            Sweep::Removed(FlowState::AddressGone) => (*swept).address_gone += 1,
        }
    }
    CONTINUE
}

/// Checks one part of a held fragment, and removes it if the fragment has expired. The first part
/// counts the drop.
extern "C" fn visit_held(
    _: *mut c_void,
    key: *const HeldKey,
    held: *const HeldFragment,
    _: *mut c_void,
) -> i64 {
    let Some(work) = maps::work(Scratch::Sweep) else {
        return CONTINUE;
    };
    let mut kernel = Kernel::new(core::ptr::null_mut());
    // SAFETY: as in `visit`.
    unsafe {
        work.fragment.place = *key;
        work.fragment.held = (*held).header;
    }
    if !fragment::has_expired(&work.fragment.held, work.now) {
        return CONTINUE;
    }
    // If the hook has taken the fragment meanwhile, nothing is removed, and nothing was lost.
    if HELD.remove(work.fragment.place).is_ok() && work.fragment.place.part == 0 {
        fragment::count_lost(&mut kernel, &work.fragment.held);
    }
    CONTINUE
}

/// Returns whether an entry that the walk has reached is still in the table. The other direction of
/// a flow that was just removed may be the next of its bucket: the walk has its pointer from before
/// the removal, and its memory may be another flow's by now (`kernel/bpf/hashtab.c`,
/// `bpf_for_each_hash_elem`).
fn is_in_table(key: &Tuple, flow: *const Flow) -> bool {
    FLOWS
        .get_ptr(key)
        .is_some_and(|entry| core::ptr::eq(entry, flow))
}
