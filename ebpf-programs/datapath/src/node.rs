//! The node's tables and kernel queries behind `verdict`'s trait.
//!
//! Map values are shared with other CPUs and with the agent. Each field is read and written whole,
//! and counters that several CPUs share are added to atomically.

use core::ptr;

use abi::{
    Address, ClockEntry, Direction, DropReason, Flow, FlowFlags, HeldHeader, Pod, PolicyFlow,
    PolicyRule, Settings, Tuple, protocol,
};
use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers;
use aya_ebpf::maps::lpm_trie::Key;
use verdict::{Hook, Insertion, Lookups, Node, Socket, Touch};

use crate::atomic::{add, fetch_add};
use crate::drop_counters::count_pod_drop;
use crate::drop_log;
use crate::flow_cache;
use crate::kernel::Kernel;
use crate::log;
use crate::lookup;
use crate::maps::{self, Scratch};
use crate::route;

const NANOSECONDS: u64 = 1_000_000_000;
const FILE_EXISTS: i32 = -17;

/// Reads the map of each lookup.
macro_rules! lookups {
    ($($map:ident: $key:tt, $value:tt, $lookup:ident, $rows:ident;)*) => {
        impl Lookups for Kernel {
            $(
                #[inline(always)]
                fn $lookup(&self, key: abi::lookup_key!($key)) -> Option<&abi::layout!($value)> {
                    // SAFETY: values of these maps are plain numbers that stay readable until the
                    // program ends.
                    unsafe { maps::$map.get(key) }
                }
            )*
        }
    };
}
abi::for_each_lookup!(lookups);

impl Node for Kernel {
    type Entry = *mut Flow;

    #[inline(always)]
    fn now(&self) -> u32 {
        // SAFETY: the helper takes nothing.
        (unsafe { helpers::bpf_ktime_get_coarse_ns() } / NANOSECONDS) as u32
    }

    #[inline(always)]
    fn random(&mut self) -> u32 {
        // SAFETY: the helper takes nothing.
        unsafe { helpers::bpf_get_prandom_u32() as u32 }
    }

    #[inline(always)]
    fn settings(&self) -> Option<&Settings> {
        maps::SETTINGS.get(0)
    }

    #[inline(always)]
    fn pod(&self, slot: u32) -> Option<&Pod> {
        maps::PODS.get(slot)
    }

    #[inline(always)]
    fn is_local(&self, address: &Address) -> bool {
        maps::LOCALS.get_ptr(address).is_some()
    }

    #[inline(always)]
    fn prefix_class(&self, address: &Address) -> u32 {
        maps::PREFIXES
            .get(Key::new(128, *address))
            .copied()
            .unwrap_or(0)
    }

    #[inline(always)]
    fn identity(&self, address: &Address) -> u32 {
        maps::IDENTITIES
            .get(Key::new(128, *address))
            .copied()
            .unwrap_or(0)
    }

    #[inline(always)]
    fn policy_rule(&self, key: &PolicyRule) -> bool {
        maps::POLICY_RULES
            .get(Key::new(PolicyRule::BITS, *key))
            .is_some()
    }

    #[inline(always)]
    fn policy_flow(&self, answer: &Tuple) -> Option<PolicyFlow> {
        // SAFETY: numbers, which are only written when an entry is replaced.
        unsafe { maps::POLICY_FLOWS.get(answer) }.copied()
    }

    #[inline(always)]
    fn record_policy_flow(&mut self, answer: &Tuple, flow: &PolicyFlow) {
        // The table evicts its oldest entry where it is full.
        let _ = maps::POLICY_FLOWS.insert(answer, flow, 0);
    }

    #[inline(always)]
    fn flow(&self, key: &Tuple) -> Option<*mut Flow> {
        maps::FLOWS.get_ptr_mut(key)
    }

    #[inline(always)]
    fn read(&self, entry: *mut Flow) -> Flow {
        // SAFETY: an entry stays readable until the program ends, even when it is removed
        // meanwhile.
        unsafe { *entry }
    }

    #[inline(always)]
    fn touch(&mut self, entry: *mut Flow, touch: Touch) {
        // SAFETY: as above; every field is a number, and no reference is made to memory that other
        // CPUs write.
        unsafe {
            let seen = (*entry).seen;
            if seen | touch.seen != seen {
                (*entry).seen = seen | touch.seen;
            }
            if (*entry).last_seen != touch.now {
                (*entry).last_seen = touch.now;
            }
            add(&raw mut (*entry).packets, 1);
            add(&raw mut (*entry).bytes, u64::from(touch.bytes));
        }
    }

    #[inline(always)]
    fn credit(&mut self, entry: *mut Flow, packets: u64, bytes: u64) {
        // SAFETY: as above.
        unsafe {
            add(&raw mut (*entry).packets, packets);
            add(&raw mut (*entry).bytes, bytes);
        }
    }

    #[inline(always)]
    fn set_flags(&mut self, entry: *mut Flow, flags: u32) {
        // SAFETY: as above.
        unsafe { (*entry).flags = flags }
    }

    #[inline(always)]
    fn set_seen(&mut self, entry: *mut Flow, seen: u32) {
        // SAFETY: as above.
        unsafe { (*entry).seen = seen }
    }

    #[inline(always)]
    fn set_acknowledged(&mut self, entry: *mut Flow, acknowledged: u32) {
        // SAFETY: as above.
        unsafe { (*entry).acknowledged = acknowledged }
    }

    #[inline(always)]
    fn set_awaited(&mut self, entry: *mut Flow, awaited: u32) {
        // SAFETY: as above.
        unsafe { (*entry).awaited = awaited }
    }

    #[inline(always)]
    fn insert_flow(&mut self, key: &Tuple, flow: &Flow) -> Insertion {
        match maps::FLOWS.insert(key, flow, u64::from(BPF_NOEXIST)) {
            Ok(()) => Insertion::Done,
            Err(FILE_EXISTS) => Insertion::Exists,
            Err(_) => Insertion::Full,
        }
    }

    #[inline(always)]
    fn start_epoch(&mut self, shard: u32) {
        flow_cache::start_epoch(shard);
    }

    #[inline(always)]
    fn remove_flow(&mut self, key: &Tuple) {
        let Some(entry) = maps::FLOWS.get_ptr_mut(key) else {
            return;
        };
        // SAFETY: as above.
        let flags = unsafe { (*entry).flags };
        // If several CPUs remove an entry, one succeeds: only that one starts an epoch and releases
        // the flow.
        if maps::FLOWS.remove(key).is_err() {
            return;
        }
        self.start_epoch(verdict::flow_cache::shard(key));
        if flags & FlowFlags::ORIGINAL != 0
            && let Some(account) = FlowFlags::account(flags)
        {
            self.release_flow(account);
        }
    }

    #[inline(always)]
    fn reserve_flow(&mut self, account: u32) -> i64 {
        match maps::LIVE.get_ptr_mut(account) {
            // SAFETY: a map's value, aligned.
            Some(live) => unsafe { fetch_add(live, 1) }.cast_signed(),
            None => 0,
        }
    }

    #[inline(always)]
    fn release_flow(&mut self, account: u32) {
        if let Some(live) = maps::LIVE.get_ptr_mut(account) {
            // SAFETY: a map's value, aligned.
            unsafe { add(live, u64::MAX) }
        }
    }

    #[inline(always)]
    fn live_flows(&self, account: u32) -> i64 {
        match maps::LIVE.get_ptr_mut(account) {
            // SAFETY: a map's value, aligned.
            Some(live) => unsafe { ptr::read_volatile(live) }.cast_signed(),
            None => 0,
        }
    }

    #[inline(always)]
    fn peek_clock(&self, entry: &mut ClockEntry) -> bool {
        maps::peek_clock(entry)
    }

    #[inline(always)]
    fn pop_clock(&mut self, entry: &mut ClockEntry) -> bool {
        maps::pop_clock(entry)
    }

    #[inline(always)]
    fn push_clock(&mut self, entry: &ClockEntry) -> bool {
        maps::TURNS.push(entry, 0).is_ok()
    }

    #[inline(always)]
    fn count_evicted(&mut self, pod: u32) {
        if let Some(counters) = maps::COUNTERS.get_ptr_mut(pod * 2) {
            // SAFETY: the element is this CPU's own.
            unsafe { (*counters).evicted_flows += 1 }
        }
        log::flow_evicted(self.context(), pod);
    }

    #[inline(always)]
    fn log_verdict(&self, hook: Hook, number: u64) {
        log::verdict(self.context(), hook, number);
    }

    #[inline(always)]
    fn socket(&mut self, incoming: &Tuple) -> Socket {
        let ports = u32::from(incoming.source_port.raw())
            | u32::from(incoming.destination_port.raw()) << 16;
        let (source, destination) = (incoming.source.words(), incoming.destination.words());
        let tcp = incoming.protocol == protocol::TCP;
        if incoming.source.is_v4() {
            lookup::socket(self.context(), [source[3], destination[3], ports], tcp)
        } else {
            let [a, b, c, d] = source;
            let [e, f, g, h] = destination;
            lookup::socket(self.context(), [a, b, c, d, e, f, g, h, ports], tcp)
        }
    }

    #[inline(always)]
    fn is_sent_by_socket(&self, tuple: &Tuple) -> bool {
        lookup::is_sent_by_socket(self.context(), tuple)
    }

    #[inline(always)]
    fn next_hop(&mut self, from: u32, interface: u32, tuple: &Tuple) -> Address {
        route::next_hop(self.context(), from, interface, tuple)
    }

    #[inline(always)]
    fn egress_route(&mut self, from: u32, tuple: &Tuple, hop: &mut Address, mtu: &mut u32) -> u32 {
        route::egress_route(self.context(), from, tuple, hop, mtu)
    }

    #[inline(always)]
    fn count_flow(&mut self, pod: u32) {
        if pod == 0 {
            return;
        }
        if let Some(counters) = maps::COUNTERS.get_ptr_mut(pod * 2) {
            // SAFETY: the element is this CPU's own.
            unsafe { (*counters).new_flows += 1 }
        }
    }

    #[inline(always)]
    fn count_passed(&mut self, pod: u32, direction: Direction, bytes: u32) {
        if pod == 0 {
            return;
        }
        if let Some(counters) = maps::COUNTERS.get_ptr_mut(pod * 2 + direction as u32) {
            // SAFETY: the element is this CPU's own.
            unsafe {
                (*counters).packets += 1;
                (*counters).bytes += u64::from(bytes);
            }
        }
    }

    #[inline(always)]
    fn report_lost(&mut self, held: &HeldHeader, reason: DropReason) {
        // The sweep has no packet.
        let scratch = if self.context().is_null() {
            Scratch::Sweep
        } else {
            Scratch::Packet
        };
        drop_log::report_lost(scratch, held, reason);
    }

    #[inline(always)]
    fn count_dropped(&mut self, reason: DropReason, pod: u32, direction: Direction, bytes: u32) {
        if let Some(drops) = maps::DROPS.get_ptr_mut(reason as u32) {
            // SAFETY: the element is this CPU's own.
            unsafe {
                (*drops).packets += 1;
                (*drops).bytes += u64::from(bytes);
            }
        }
        count_pod_drop(u64::from(pod), u64::from(reason as u32));
        if pod == 0 {
            return;
        }
        if let Some(counters) = maps::COUNTERS.get_ptr_mut(pod * 2 + direction as u32) {
            // SAFETY: the element is this CPU's own.
            unsafe {
                (*counters).dropped_packets += 1;
                (*counters).dropped_bytes += u64::from(bytes);
            }
        }
    }
}
