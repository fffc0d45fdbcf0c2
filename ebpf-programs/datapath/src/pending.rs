//! The pending counters of all CPUs: a packet may be judged on another CPU than the packets before
//! it.
//!
//! Read for segments with FIN or RST only. A function of its own, so that the loop is verified
//! once.

use core::ffi::c_void;
use core::ptr;

use abi::PendingCounters;
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::bpf_for_each_map_elem;
use verdict::PendingSearch;
use verdict::flow_cache::WAYS;

use crate::flow_cache;
use crate::kernel::Kernel;
use crate::maps::{self, CPUS, PENDING, Scratch};

const CONTINUE: i64 = 0;
const STOP: i64 = 1;

/// Returns the least distance of `sequence` from an acknowledgment number that a CPU has stored in
/// the bucket for the flow with this id; [`u32::MAX`] where there is none.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn distance(
    skb: *mut __sk_buff,
    bucket: u64,
    flow_id: u64,
    sequence: u64,
) -> u64 {
    Kernel::new(skb).touch_context();
    let Some(work) = maps::work(Scratch::Packet) else {
        return u64::from(u32::MAX);
    };
    work.pending.bucket = bucket as u32;
    work.pending.flow_id = flow_id as u32;
    work.pending.sequence = sequence as u32;
    work.pending.least = u32::MAX;
    // SAFETY: the callback has the signature that the helper calls.
    unsafe {
        let cpus = (&raw const CPUS).cast_mut().cast();
        bpf_for_each_map_elem(cpus, visit as *mut c_void, ptr::null_mut(), 0);
    }
    match maps::work(Scratch::Packet) {
        Some(work) => u64::from(work.pending.least),
        None => u64::from(u32::MAX),
    }
}

/// Compares the counters of all keys of the bucket, of one CPU.
extern "C" fn visit(_: *mut c_void, cpu: *const u32, _: *mut u32, _: *mut c_void) -> i64 {
    let Some(work) = maps::work(Scratch::Packet) else {
        return STOP;
    };
    let search = &mut work.pending;
    // SAFETY: the kernel calls this with the index of an element.
    let first = unsafe { *cpu }.wrapping_mul(flow_cache::capacity());
    let Some(bucket) = flow_cache::bucket(first.wrapping_add(search.bucket)) else {
        return STOP;
    };
    for way in 0..WAYS {
        if let Some(counters) = PENDING.get_ptr(first.wrapping_add(bucket.entry(way))) {
            compare(search, counters);
        }
    }
    CONTINUE
}

/// Compares the counters of one key.
#[inline(always)]
fn compare(search: &mut PendingSearch, counters: *const PendingCounters) {
    // SAFETY: the element exists for as long as the map. Another CPU may write it meanwhile: each
    // field is a number that is read whole.
    let (flow_id, packets, acknowledged) = unsafe {
        (
            ptr::read_volatile(&raw const (*counters).flow_id),
            ptr::read_volatile(&raw const (*counters).packets),
            ptr::read_volatile(&raw const (*counters).acknowledged),
        )
    };
    let distance = search.sequence.wrapping_sub(acknowledged);
    if flow_id == search.flow_id && packets != 0 && distance < search.least {
        search.least = distance;
    }
}
