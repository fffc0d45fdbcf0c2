//! The hand-off from `from_pod` to `uplink_out`: packet tags, and completion of pod-side cache
//! entries.
//!
//! A packet that leaves the node past the stack passes the uplink's program next, on the same CPU.
//! Its tag (`skb->tc_index`) says what is left to do there. A tag that a pod has set itself is
//! cleared at the pod's hook.
//!
//! The uplink's outcome (NAT rewrite, MAC addresses that the kernel has written) is added to the
//! pod-side entry. From then on `from_pod` applies all of it by itself and tags the packet as done.
//! For flows that are too new for cache entries, `from_pod` looks up the flow's entry itself.

use super::lookup::flush_counters;
use super::{CacheEntry, FlowCache, Steps};
use crate::flow;
use crate::node::Node;
use crate::outcome::{Code as _, Verdict};
use crate::work::{Hook, Work};

/// The bits of [`super::CacheKey::kind`] without the hook.
const FAMILY_AND_PROTOCOL: u32 = 0xffff;

/// Tags on packets between two hooks. The numbers are the same in all versions: programs are
/// replaced one by one.
#[derive(Clone, Copy, Debug)]
pub(super) struct SkbTag;

impl SkbTag {
    /// No tag.
    pub(super) const NONE: u32 = 0;
    /// The packet is finished: `uplink_out` passes it without a lookup.
    pub(super) const DONE: u32 = 0x5644;
    /// The outcome at the uplink is to be added to the entry [`super::CacheRecorder::pod_entry`] of
    /// this CPU, if that is the same packet's.
    pub(super) const PROPAGATE: u32 = 0x564c;
    /// The packet has bypassed netfilter by the agent's decision about its connection: it is no
    /// evidence for the next decision.
    pub(super) const OFFLOADED: u32 = 0x564f;
}

/// Tags a packet that is redirected past rules of other software. The other tags, which may follow,
/// imply that as well.
#[inline(always)]
pub(crate) fn tag_offloaded<E: FlowCache>(env: &mut E, steps: u32) {
    if steps & Steps::OFFLOADED != 0 {
        env.set_skb_tag(SkbTag::OFFLOADED);
    }
}

/// Clears the packet's tag, and returns it.
#[inline(always)]
pub(super) fn clear_skb_tag<E: FlowCache>(env: &mut E) -> u32 {
    let skb_tag = env.skb_tag();
    if skb_tag != SkbTag::NONE {
        env.set_skb_tag(SkbTag::NONE);
    }
    skb_tag
}

/// Looks up the flow of a packet that leaves past the stack by this uplink, if the flow is too new
/// for cache entries. On a hit, the caller must translate the packet, and `uplink_out` does not
/// parse it again.
#[inline(always)]
pub(crate) fn find_uplink_flow<E: Node + FlowCache>(
    env: &mut E,
    work: &mut Work,
    uplink: u32,
) -> bool {
    if !env.hands_off_to_uplink() {
        return false;
    }
    // The lookup bills the flow's pod and compares the flow's uplink: both are restored for
    // `from_pod`.
    let (pod, interface) = (work.pod, work.interface);
    work.interface = uplink;
    let found = flow::find_new(env, work, Hook::UplinkOut);
    (work.pod, work.interface) = (pod, interface);
    if found {
        env.set_skb_tag(SkbTag::DONE);
    }
    found
}

/// Adds the uplink-side entry at `index` to the pod-side entry of the same packet.
#[inline(always)]
pub(crate) fn propagate<E: Node + FlowCache>(env: &mut E, work: &mut Work, index: u32) {
    let at = work.recorder.pod_entry;
    let (Some(pod_entry), Some(uplink_entry)) = (env.cache_entry(at), env.cache_entry(index))
    else {
        return;
    };
    if !are_of_one_packet(&pod_entry, &uplink_entry) {
        return;
    }
    work.cache_entry = *pod_entry;
    merge_uplink_entry(&mut work.cache_entry, &uplink_entry);
    // Flush before reset: the counters at this index may still hold packets of another flow.
    flush_counters(env, at, work.recorder.flow_id);
    let tuple = work.cache_entry.key.tuple();
    env.reset_pending(at, &tuple, work.cache_entry.flow_id);
    env.store_cache_entry(at, &work.cache_entry);
}

/// Returns whether both entries are from the same packet. A change in between needs no check: the
/// pod-side entry then has an old epoch, and is invalid whatever is merged into it.
#[inline(always)]
fn are_of_one_packet(pod_entry: &CacheEntry, uplink_entry: &CacheEntry) -> bool {
    let (from, at) = (&pod_entry.key, &uplink_entry.key);
    pod_entry.verdict == Verdict::RedirectNeigh(at.interface).code()
        && from.mark == at.mark
        && from.ports == at.ports
        && from.kind & FAMILY_AND_PROTOCOL == at.kind & FAMILY_AND_PROTOCOL
        && from.source == at.source
        && from.destination == at.destination
}

/// Merges the uplink's rewrite into the pod-side entry, and keeps the earlier expiry of the two.
#[inline(always)]
fn merge_uplink_entry(pod_entry: &mut CacheEntry, uplink_entry: &CacheEntry) {
    pod_entry.verdict = Verdict::Redirect(uplink_entry.key.interface).code();
    pod_entry.steps |= uplink_entry.steps | Steps::MAC_ADDRESSES;
    pod_entry.rewrite = uplink_entry.rewrite;
    pod_entry.rewrite.mac_addresses = uplink_entry.key.mac_addresses;
    pod_entry.flow_id = uplink_entry.flow_id;
    if uplink_entry.expires_at < pod_entry.expires_at {
        pod_entry.expires_at = uplink_entry.expires_at;
    }
}
