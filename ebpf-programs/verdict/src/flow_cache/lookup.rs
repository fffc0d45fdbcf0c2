//! Lookup, application and recording of cache entries.

use abi::{Direction, DropReason, EndpointFlags, protocol};

use super::cache_key::{ParsedHeaders, parse_v4, parse_v6};
use super::uplink_handoff::{SkbTag, clear_skb_tag, propagate, tag_offloaded};
use super::{
    CacheEntry, CacheHit, CacheLookup, CachePlace, FlowCache, LEAST_LEFT, MAX_AGE, MAX_REPORT_AGE,
    RewriteTemplate, ScratchProvider, Steps, shard,
};
use crate::bypass::{self, decrement_hop_limit};
use crate::node::Node;
use crate::offload;
use crate::outcome::{Code as _, Verdict};
use crate::packet::Packet;
use crate::parse::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use crate::sender::ETHERNET;
use crate::shape::Shaper;
use crate::work::{Hook, Work};

/// Looks up the packet's entry, counts the packet in its flow, and applies the entry, unless the
/// pod-side entry must be updated from it first ([`CacheLookup::Propagate`]).
#[inline(always)]
pub(crate) fn find<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    interface: u32,
    hook: Hook,
) -> CacheLookup {
    // Always cleared first: a pod, or another program, may have set `tc_index` itself.
    let skb_tag = match hook {
        Hook::FromPod => {
            clear_skb_tag(env);
            SkbTag::NONE
        }
        Hook::UplinkOut => clear_skb_tag(env),
        Hook::UplinkIn => SkbTag::NONE,
    };
    if skb_tag == SkbTag::DONE {
        return CacheLookup::Done(Verdict::Pass.code());
    }
    match env.ethertype() {
        // Uplink programs return before this point for frames with a VLAN tag.
        _ if hook == Hook::FromPod && env.is_tagged() => uncacheable(scratch),
        ETHERTYPE_IPV4 => {
            let parsed = parse_v4(env, interface, hook);
            find_parsed(env, scratch, parsed, skb_tag)
        }
        ETHERTYPE_IPV6 => {
            let parsed = parse_v6(env, interface, hook);
            find_parsed(env, scratch, parsed, skb_tag)
        }
        _ => uncacheable(scratch),
    }
}

/// Looks up parsed headers. Instantiated once per family, because IPv4 headers are much shorter.
#[inline(always)]
fn find_parsed<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    parsed: Option<ParsedHeaders>,
    skb_tag: u32,
) -> CacheLookup {
    let Some(parsed) = parsed else {
        return uncacheable(scratch);
    };
    let found = search(env, scratch, &parsed, skb_tag == SkbTag::PROPAGATE);
    if found == CacheLookup::Miss
        && let Some(work) = scratch.work()
    {
        start_recording(env, work, &parsed, skb_tag);
    }
    found
}

/// Ends the lookup for a packet that can have no cache entry.
#[inline(always)]
fn uncacheable(scratch: &mut impl ScratchProvider) -> CacheLookup {
    if let Some(work) = scratch.work() {
        work.limited = 0;
        work.recorder.steps = 0;
        work.recorder.mark_uncacheable();
    }
    CacheLookup::Miss
}

/// Applies the cached verdict of a pod's packet if it is a redirect. Makes no entry and decides
/// nothing: on `None`, [`crate::hooks::from_pod`] must run.
#[inline(always)]
pub(crate) fn find_redirect<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    interface: u32,
) -> Option<Verdict> {
    clear_skb_tag(env);
    if env.is_tagged() {
        return None;
    }
    match env.ethertype() {
        ETHERTYPE_IPV4 => {
            let parsed = parse_v4(env, interface, Hook::FromPod)?;
            redirect_parsed(env, scratch, &parsed)
        }
        ETHERTYPE_IPV6 => {
            let parsed = parse_v6(env, interface, Hook::FromPod)?;
            redirect_parsed(env, scratch, &parsed)
        }
        _ => None,
    }
}

#[inline(always)]
fn redirect_parsed<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    parsed: &ParsedHeaders,
) -> Option<Verdict> {
    let redirects = |valid: &ValidEntry<E::EntryRef>| valid.1.verdict != Verdict::Pass.code();
    let valid = valid_entry(env, parsed, 0).filter(redirects)?;
    let pod = valid.1.pod;
    let CacheLookup::Done(number) = apply_entry(env, scratch, valid, parsed, false) else {
        return None;
    };
    let verdict = Verdict::from_cached_code(number);
    if let Verdict::Drop(reason) = verdict {
        env.count_dropped(reason, pod, Direction::Egress, parsed.bytes);
    }
    Some(verdict)
}

#[inline(always)]
fn search<E: Packet + Node + Shaper + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    parsed: &ParsedHeaders,
    propagate: bool,
) -> CacheLookup {
    let left = if propagate { LEAST_LEFT } else { 0 };
    match valid_entry(env, parsed, left) {
        Some(valid) => apply_entry(env, scratch, valid, parsed, propagate),
        None => CacheLookup::Miss,
    }
}

/// A valid entry and its index.
type ValidEntry<K> = (u32, K);

/// Returns the packet's entry, if this CPU has one that is valid for more than `left` jiffies.
#[inline(always)]
fn valid_entry<E: Shaper + FlowCache>(
    env: &E,
    parsed: &ParsedHeaders,
    left: u64,
) -> Option<ValidEntry<E::EntryRef>> {
    let (place, now) = (parsed.key.place(), env.jiffies());
    let bucket = env.cache_bucket(bucket_index(env, place));
    let index = env.first_cache_index() + bucket.entry(place.find(bucket)?);
    let entry = env.cache_entry(index)?;
    is_valid(env, &entry, parsed, now + left).then_some((index, entry))
}

/// Returns the index of a place's bucket on this CPU.
#[inline(always)]
fn bucket_index<E: FlowCache>(env: &E, place: CachePlace) -> u32 {
    env.first_cache_index() + place.within(env.cache_capacity())
}

/// Counts the packet in its flow and applies the entry, unless the pod-side entry must be updated
/// first.
#[inline(always)]
fn apply_entry<E: Packet + Node + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    (index, entry): ValidEntry<E::EntryRef>,
    parsed: &ParsedHeaders,
    propagate: bool,
) -> CacheLookup {
    let hit = CacheHit {
        index,
        bytes: parsed.bytes,
    };
    // Counting comes first: it fails where the counters belong to another flow, and the packet then
    // takes the slow path unchanged.
    let counts = entry.steps & Steps::FLOW != 0;
    let (bytes, acknowledgment) = (parsed.bytes, parsed.acknowledgment);
    if counts && !env.count_pending(index, entry.flow_id, bytes, acknowledgment) {
        CacheLookup::Miss
    } else if propagate {
        CacheLookup::Propagate(hit)
    } else if entry.steps & Steps::REWRITTEN != 0 {
        CacheLookup::Done(rewrite(env, scratch, entry, parsed.bytes).code())
    } else {
        end_unchanged(env, scratch, (index, entry), parsed)
    }
}

#[inline(always)]
fn is_valid<E: Shaper + FlowCache>(
    env: &E,
    entry: &CacheEntry,
    parsed: &ParsedHeaders,
    at: u64,
) -> bool {
    parsed.key.matches(&entry.key)
        && entry.epoch == env.epoch(entry.shard)
        && at < entry.expires_at
        && parsed.is_within(env, entry.max_length)
}

/// Starts recording a packet on the slow path, for a cache entry.
#[inline(always)]
fn start_recording<E: Shaper + FlowCache>(
    env: &E,
    work: &mut Work,
    parsed: &ParsedHeaders,
    skb_tag: u32,
) {
    work.limited = 0;
    work.recorder.cacheable = 1;
    work.recorder.steps = 0;
    work.recorder.key = parsed.key;
    work.recorder.length = parsed.length(env);
    work.recorder.recorded_at = env.jiffies();
    work.recorder.shard = shard(&parsed.key.tuple());
    work.recorder.epoch = env.epoch(work.recorder.shard);
    work.recorder.propagate = u32::from(skb_tag == SkbTag::PROPAGATE);
    work.recorder.is_redirected = u32::from(skb_tag != SkbTag::NONE);
}

/// Ends a packet that needs no rewrite but the TTL, and counts it.
#[inline(always)]
fn end_unchanged<E: Packet + Node + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    (index, entry): ValidEntry<E::EntryRef>,
    parsed: &ParsedHeaders,
) -> CacheLookup {
    if let Verdict::RedirectNeigh(_) = Verdict::from_cached_code(entry.verdict)
        && let Some(work) = scratch.work()
    {
        work.hop = entry.hop;
        tag_offloaded(env, entry.steps);
        request_propagation(env, work, index, entry.steps);
    }
    if entry.steps & Steps::TTL_DECREMENTED != 0 {
        let version = if parsed.key.is_v6() { 6 } else { 4 };
        if decrement_hop_limit(env, version, ETHERNET) != Ok(true) {
            return CacheLookup::Miss;
        }
    }
    count(env, &entry, parsed.bytes);
    CacheLookup::Done(entry.verdict)
}

/// As [`rewrite`], for a hit by index.
#[inline(always)]
pub(crate) fn apply_hit<E: Packet + Node + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    hit: CacheHit,
) -> Verdict {
    match env.cache_entry(hit.index) {
        Some(entry) => rewrite(env, scratch, entry, hit.bytes),
        None => Verdict::Drop(DropReason::RewriteFailed),
    }
}

/// Rewrites a packet as the entry says, and counts it unless the rewrite fails.
#[inline(always)]
fn rewrite<E: Packet + Node + FlowCache>(
    env: &mut E,
    scratch: &mut impl ScratchProvider,
    entry: E::EntryRef,
    bytes: u32,
) -> Verdict {
    let verdict = Verdict::from_cached_code(entry.verdict);
    if let Verdict::RedirectNeigh(_) = verdict
        && let Some(work) = scratch.work()
    {
        work.hop = entry.hop;
        tag_offloaded(env, entry.steps);
    }
    if let Verdict::Redirect(_) = verdict {
        env.set_skb_tag(SkbTag::DONE);
    }
    let written = entry.rewrite.apply(env, entry.key.kind, entry.steps);
    if let Err(reason) = written {
        return drop_packet(scratch, &entry, bytes, reason);
    }
    count(env, &entry, bytes);
    verdict
}

/// Drops a packet whose rewrite failed; leaves pod and length in the scratch memory for the drop
/// counters.
#[inline(always)]
fn drop_packet(
    scratch: &mut impl ScratchProvider,
    entry: &CacheEntry,
    bytes: u32,
    reason: DropReason,
) -> Verdict {
    if let Some(work) = scratch.work() {
        work.pod = entry.pod;
        work.headers.version = 0;
        work.headers.length = bytes;
    }
    Verdict::Drop(reason)
}

/// Counts a packet for the sending and the receiving pod.
#[inline(always)]
fn count<E: Node>(env: &mut E, entry: &CacheEntry, bytes: u32) {
    env.count_passed(entry.from, Direction::Egress, bytes);
    env.count_passed(entry.to, Direction::Ingress, bytes);
}

/// Tags the packet so that the uplink's program completes this pod-side entry, if the entry has no
/// translation yet.
#[inline(always)]
fn request_propagation<E: FlowCache>(env: &mut E, work: &mut Work, index: u32, steps: u32) {
    if steps & (Steps::FLOW | Steps::FOREIGN_NAT) == 0 && env.hands_off_to_uplink() {
        work.recorder.pod_entry = index;
        env.set_skb_tag(SkbTag::PROPAGATE);
    }
}

/// Writes the cache entry of a packet that has gone through the slow path, if its outcome is valid
/// for later packets.
///
/// The verdict is passed and stored as its code: copying an enum copies the unused bytes of a
/// variant as well, which the verifier rejects.
#[inline(always)]
pub(crate) fn record<E: Node + FlowCache>(env: &mut E, work: &mut Work, hook: Hook, number: u64) {
    let verdict = Verdict::from_code(number);
    let redirects = verdict != Verdict::Pass;
    // While the bypass is allowed, each packet of a flow may or may not bypass the stack: `Pass` is
    // then cached at the uplink's egress only.
    let is_stable = hook == Hook::UplinkOut || redirects || !bypass::is_allowed(env);
    let has_flow = work.recorder.has_flow();
    let is_known = hook == Hook::FromPod || has_flow || work.recorder.is_untracked();
    let is_new = has_flow && work.recorder.packets_before < env.cache_threshold();
    // Without an Ethernet header, the key was parsed at the wrong offset.
    let is_recorded = work.recorder.cacheable != 0 && work.headers.l3 == ETHERNET;
    if hook == Hook::UplinkOut && is_recorded && is_known && !is_new && !redirects {
        offload::report_left(env, work);
        // Reported by chance, not when an entry ends.
        if !has_flow && work.recorder.is_redirected == 0 && offload::is_on(env) {
            return;
        }
    }
    if !is_recorded || !is_stable || !is_known || is_new || matches!(verdict, Verdict::Drop(_)) {
        return;
    }
    let to = match verdict {
        Verdict::RedirectPeer(_) => work.endpoint.pod,
        Verdict::Pass
        | Verdict::Drop(_)
        | Verdict::RedirectNeigh(_)
        | Verdict::Redirect(_)
        | Verdict::Consume => 0,
    };
    let limited =
        work.limited != 0 || (to != 0 && work.endpoint.flags & EndpointFlags::LIMITED != 0);
    if limited {
        return;
    }
    if work.recorder.has_translation() {
        work.recorder.steps |= RewriteTemplate::steps(&work.headers.tuple, &work.translated);
    }
    let Some(index) = take_entry(env, work) else {
        return;
    };
    if has_flow {
        env.reset_pending(index, &work.headers.tuple, work.recorder.flow_id);
    }
    let lifetime = lifetime_of(env, work, hook, redirects);
    fill_entry(work, hook, number, to, lifetime);
    let steps = work.recorder.steps;
    env.store_cache_entry(index, &work.cache_entry);
    if let Verdict::RedirectNeigh(_) = verdict {
        request_propagation(env, work, index, steps);
    }
    if work.recorder.propagate != 0 {
        propagate(env, work, index);
    }
}

/// Returns the jiffies for which the entry of a packet is valid. A packet that takes the stack may
/// bypass it as soon as the agent has decided so, and is reported to it again when its entry ends.
#[inline(always)]
fn lifetime_of<E: Node>(env: &E, work: &Work, hook: Hook, redirects: bool) -> u64 {
    let lifetime = work.rows.lifetime;
    if redirects || work.recorder.is_redirected != 0 || !offload::is_on(env) {
        lifetime
    } else if hook == Hook::UplinkOut {
        lifetime.min(MAX_REPORT_AGE)
    } else {
        MAX_AGE
    }
}

/// Returns the index of the entry to write: the one that the key has, else the next of the ring,
/// which its bucket then refers to; none while the entries of this CPU are in use.
///
/// Pending counters are added to their flows where the key in the bucket, or the entry, is
/// replaced: no packet is counted there any more.
#[inline(always)]
fn take_entry<E: Node + FlowCache>(env: &mut E, work: &mut Work) -> Option<u32> {
    let (place, now) = (work.recorder.key.place(), work.recorder.recorded_at);
    let (first, at) = (env.first_cache_index(), bucket_index(env, place));
    let bucket = env.cache_bucket(at);
    let way = place.choose(bucket, now);
    let replaced = first + bucket.entry(way);
    let is_own = |entry: E::EntryRef| entry.key.matches(&work.recorder.key);
    if place.find(bucket).is_some() && env.cache_entry(replaced).is_some_and(is_own) {
        flush_counters(env, replaced, work.recorder.flow_id);
        return Some(replaced);
    }
    let is_in_use = |entry: u32| {
        let entry = env.cache_entry(first + entry);
        entry.is_some_and(|entry| entry.expires_at > now)
    };
    let entry = (work.cache_ring).take(now, env.cache_capacity(), is_in_use)?;
    flush_counters(env, replaced, work.recorder.flow_id);
    flush_counters(env, first + entry, work.recorder.flow_id);
    env.store_cache_bucket(at, bucket.with(way, place, entry));
    Some(first + entry)
}

/// Fills [`Work::cache_entry`] from the recorder. Field by field: a whole struct would be built on
/// the stack.
#[inline(always)]
fn fill_entry(work: &mut Work, hook: Hook, number: u64, to: u32, lifetime: u64) {
    let redirects = Verdict::from_code(number) != Verdict::Pass;
    let (recorder, entry) = (&work.recorder, &mut work.cache_entry);
    entry.key = recorder.key;
    // The stack checks the MTU of packets that are passed to it.
    entry.max_length = if redirects { recorder.length } else { u32::MAX };
    entry.steps = recorder.steps;
    entry.epoch = recorder.epoch;
    entry.expires_at = recorder.recorded_at + lifetime;
    entry.verdict = number;
    entry.hop = work.hop;
    let original = &work.headers.tuple;
    let rewritten = if recorder.has_translation() {
        &work.translated
    } else {
        original
    };
    entry
        .rewrite
        .fill(original, rewritten, recorder.mac_addresses);
    entry.flow_id = recorder.flow_id;
    entry.shard = recorder.shard;
    entry.pod = work.pod;
    entry.from = if hook == Hook::FromPod { work.pod } else { 0 };
    entry.to = to;
}

/// Adds the pending counters at an index to the flow's entry, unless that entry is gone or another
/// flow's, and clears them. `current` is the id of the current packet's flow, whose entry has a
/// later acknowledgment number already.
#[inline(always)]
pub(super) fn flush_counters<E: Node + FlowCache>(env: &mut E, index: u32, current: u32) {
    let Some(pending) = env.pending_counters(index) else {
        return;
    };
    let (packets, bytes, flow_id) = (pending.packets, pending.bytes, pending.flow_id);
    let (acknowledged, is_tcp) = (pending.acknowledged, pending.key.protocol == protocol::TCP);
    if packets == 0 {
        return;
    }
    let found = env.flow(&pending.key);
    env.clear_pending(index);
    let Some(entry) = found else {
        return;
    };
    let flow = env.read(entry);
    if flow.flow_id != flow_id {
        return;
    }
    env.credit(entry, packets, bytes);
    let is_later = acknowledged.wrapping_sub(flow.acknowledged).cast_signed() > 0;
    if is_tcp && is_later && flow_id != current {
        env.set_acknowledged(entry, acknowledged);
    }
}
