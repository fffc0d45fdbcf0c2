//! The datapath log: records of aya-log at the seams of the slow path (decision 170).
//!
//! The level is a constant of the loader, so the verifier removes the records that it excludes,
//! with the calls of their functions. Each record is written by a function of its own: it is
//! verified once, and its stack counts only while it runs. Tuples are written as bytes, since
//! formatted addresses would need more stack than the programs have left. The agent decodes them
//! (`kernel/src/bpf/datapath_log/record.rs`).

use abi::{DropHook, DropReason, LoggedVerdict, Tuple};
use aya_ebpf::bindings::__sk_buff;
use aya_log_ebpf::macro_support::{Level, level_enabled};
use aya_log_ebpf::{debug, info, log, trace};
use verdict::{Code as _, Hook, Verdict, Work};
use zerocopy::IntoBytes as _;

use crate::kernel::Kernel;
use crate::maps::{self, Scratch};

const TARGET: &str = "datapath";

/// Logs the flow that was inserted: [`Work::pair`].
#[inline(always)]
pub(crate) fn flow_opened(skb: *mut __sk_buff) {
    if level_enabled(Level::Debug) {
        log_flow_opened(skb);
    }
}

/// Logs that a flow of the pod in `slot` was evicted, and for which new one: [`Work::pair`].
#[inline(always)]
pub(crate) fn flow_evicted(skb: *mut __sk_buff, slot: u32) {
    if level_enabled(Level::Info) {
        log_flow_evicted(skb, u64::from(slot));
    }
}

/// Logs a packet that a hook drops. `hook` is a [`abi::DropHook`].
#[inline(always)]
pub(crate) fn packet_dropped(skb: *mut __sk_buff, hook: u64, reason: u64) {
    if level_enabled(Level::Error) {
        log_packet_dropped(skb, hook, reason);
    }
}

/// Logs the verdict of a packet without a cache entry, given as its code. A dropped packet has a
/// record already.
#[inline(always)]
pub(crate) fn verdict(skb: *mut __sk_buff, hook: Hook, number: u64) {
    if level_enabled(Level::Trace) {
        log_verdict(skb, hook.code(), number);
    }
}

/// Returns this packet's scratch memory. The verifier requires that the function uses the context.
#[inline(always)]
fn work_of(skb: *mut __sk_buff) -> Option<&'static Work> {
    Kernel::new(skb).touch_context();
    maps::work(Scratch::Packet).map(|work| &*work)
}

#[inline(always)]
fn generation_of(slot: u32) -> u32 {
    maps::PODS.get(slot).map_or(0, |pod| pod.generation)
}

/// Returns the tuple of the packet, or zeros if its headers were not parsed.
#[inline(always)]
fn parsed(work: &Work) -> &[u8] {
    let tuple: &Tuple = &work.headers.tuple;
    tuple.as_bytes()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn log_flow_opened(skb: *mut __sk_buff) -> u64 {
    let Some(work) = work_of(skb) else {
        return 0;
    };
    let (original, reply) = (&work.pair.original, &work.pair.reply);
    debug!(
        skb,
        target: TARGET,
        "flow opened: slot={} generation={} interface={} tuple={:x} reply={:x}",
        original.flow.pod,
        original.flow.generation,
        work.interface,
        original.key.as_bytes(),
        reply.key.as_bytes()
    );
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn log_flow_evicted(skb: *mut __sk_buff, slot: u64) -> u64 {
    let Some(work) = work_of(skb) else {
        return 0;
    };
    info!(
        skb,
        target: TARGET,
        "flow evicted: slot={} generation={} newcomer={:x}",
        slot as u32,
        generation_of(slot as u32),
        work.pair.original.key.as_bytes()
    );
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn log_packet_dropped(skb: *mut __sk_buff, hook: u64, reason: u64) -> u64 {
    let Some(work) = work_of(skb) else {
        return 0;
    };
    let is_shortage = DropReason::from_number(reason as u32).is_some_and(DropReason::is_shortage);
    let level = if is_shortage {
        Level::Error
    } else {
        Level::Warn
    };
    log!(
        skb,
        target: TARGET,
        level,
        "packet dropped: slot={} generation={} interface={} hook={} reason={} version={} tuple={:x}",
        work.pod,
        generation_of(work.pod),
        work.interface,
        hook as u32,
        reason as u32,
        work.headers.version,
        parsed(work)
    );
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn log_verdict(skb: *mut __sk_buff, hook: u64, number: u64) -> u64 {
    let Some(work) = work_of(skb) else {
        return 0;
    };
    let hook = match Hook::from_code(hook) {
        Hook::FromPod => DropHook::FromPod,
        Hook::UplinkIn => DropHook::UplinkIn,
        Hook::UplinkOut => DropHook::UplinkOut,
    };
    let (verdict, output) = match Verdict::from_code(number) {
        Verdict::Pass => (LoggedVerdict::Pass, 0),
        Verdict::Drop(_) => return 0,
        Verdict::RedirectPeer(interface) => (LoggedVerdict::RedirectPeer, interface),
        Verdict::RedirectNeigh(interface) => (LoggedVerdict::RedirectNeigh, interface),
        Verdict::Redirect(interface) => (LoggedVerdict::Redirect, interface),
        Verdict::Consume => (LoggedVerdict::Consume, 0),
    };
    trace!(
        skb,
        target: TARGET,
        "verdict: slot={} generation={} interface={} hook={} verdict={} output={} version={} tuple={:x}",
        work.pod,
        generation_of(work.pod),
        work.interface,
        hook as u32,
        verdict as u32,
        output,
        work.headers.version,
        parsed(work)
    );
    0
}
