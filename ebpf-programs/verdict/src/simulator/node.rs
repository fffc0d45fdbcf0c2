//! [`Node`] for the simulator: BPF helpers and maps in ordinary Rust.

use abi::{
    Address, ClockEntry, Direction, DropReason, Flow, FlowFlags, HeldHeader, Pod, PolicyFlow,
    PolicyRule, Settings, Tuple,
};

use super::World;
use crate::address::common_prefix;
use crate::checksum::Difference;
use crate::flow_cache::shard;
use crate::node::{Insertion, Node, Socket, Touch};
use crate::outcome::Decision;
use crate::packet::{ChecksumKind, Packet};
use crate::sender::ETHERNET;

impl World {
    fn bytes_mut(&mut self, offset: u32, length: usize) -> Decision<&mut [u8]> {
        let start = offset as usize;
        self.packet
            .get_mut(start..start + length)
            .ok_or(DropReason::RewriteFailed)
    }

    fn half(&mut self, offset: u32) -> Decision<u16> {
        let bytes = self.bytes_mut(offset, 2)?;
        Ok(u16::from_ne_bytes([bytes[0], bytes[1]]))
    }
}

impl Packet for World {
    fn len(&self) -> u32 {
        u32::try_from(self.packet.len()).expect("a packet is short")
    }

    fn ethertype(&self) -> u16 {
        let bytes = self.packet.get(12..14);
        bytes.map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn is_tagged(&self) -> bool {
        self.tagged
    }

    fn vlan_id(&self) -> u32 {
        if self.tagged { self.vlan_id } else { 0 }
    }

    fn hook_interface(&self) -> u32 {
        self.interface
    }

    fn ingress_interface(&self) -> u32 {
        self.ingress_interface
    }

    fn is_for_this_host(&self) -> bool {
        self.packet.starts_with(&self.mac.bytes())
    }

    fn is_for_other_host(&self) -> bool {
        let is_group = self.packet.first().is_some_and(|byte| byte & 1 != 0);
        !is_group && !self.is_for_this_host()
    }

    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        let start = offset as usize;
        let bytes = self.packet.get(start..start + N * 4)?;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Some(words)
    }

    fn linear_words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        self.words(offset)
    }

    fn store<const N: usize>(&mut self, offset: u32, words: [u32; N]) -> Decision<()> {
        let bytes = self.bytes_mut(offset, N * 4)?;
        for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        Ok(())
    }

    fn store_linear<const N: usize>(&mut self, offset: u32, words: [u32; N]) -> Decision<()> {
        self.store(offset, words)
    }

    fn store_and_update_csum<const N: usize>(
        &mut self,
        offset: u32,
        words: [u32; N],
    ) -> Decision<()> {
        self.store(offset, words)
    }

    fn fits(&self, interface: u32) -> bool {
        let mtu = self.mtus.get(&interface);
        mtu.is_none_or(|mtu| self.len() <= mtu + ETHERNET)
    }

    fn mtu(&self, interface: u32) -> u32 {
        self.mtus.get(&interface).copied().unwrap_or(u32::MAX)
    }

    fn fix_checksum(
        &mut self,
        offset: u32,
        difference: Difference,
        kind: ChecksumKind,
    ) -> Decision<()> {
        let old = self.half(offset)?;
        if kind.zero_means_none && old == 0 {
            return Ok(());
        }
        let mut new = difference.apply(old);
        if kind.zero_means_none && new == 0 {
            new = u16::MAX;
        }
        self.bytes_mut(offset, 2)?
            .copy_from_slice(&new.to_ne_bytes());
        Ok(())
    }
}

impl Node for World {
    type Entry = Tuple;

    fn now(&self) -> u32 {
        self.now
    }

    fn random(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9);
        self.random
    }

    fn settings(&self) -> Option<&Settings> {
        Some(&self.settings)
    }

    fn pod(&self, slot: u32) -> Option<&Pod> {
        self.pods.get(slot as usize)
    }

    fn is_local(&self, address: &Address) -> bool {
        self.locals.contains(address)
    }

    fn prefix_class(&self, address: &Address) -> u32 {
        self.prefixes
            .iter()
            .filter(|(key, _)| common_prefix(&key.address, address) >= key.prefix_len)
            .max_by_key(|(key, _)| key.prefix_len)
            .map_or(0, |(_, class)| *class)
    }

    fn identity(&self, address: &Address) -> u32 {
        self.identities
            .iter()
            .filter(|(key, _)| common_prefix(&key.address, address) >= key.prefix_len)
            .max_by_key(|(key, _)| key.prefix_len)
            .map_or(0, |(_, identity)| *identity)
    }

    fn policy_rule(&self, key: &PolicyRule) -> bool {
        let has = |length: u32, rule: &PolicyRule| {
            let shift = PolicyRule::BITS - length;
            let is_of_protocol = length == PolicyRule::ALL
                || rule.protocol == key.protocol
                    && (shift >= 16 || rule.port.number() >> shift == key.port.number() >> shift);
            (rule.rules, rule.identity) == (key.rules, key.identity) && is_of_protocol
        };
        self.policy_rules
            .iter()
            .any(|(length, rule)| has(*length, rule))
    }

    fn policy_flow(&self, answer: &Tuple) -> Option<PolicyFlow> {
        self.policy_flows.get(answer).copied()
    }

    fn record_policy_flow(&mut self, answer: &Tuple, flow: &PolicyFlow) {
        self.policy_flows.insert(*answer, *flow);
    }

    fn flow(&self, key: &Tuple) -> Option<Tuple> {
        self.flows.contains_key(key).then_some(*key)
    }

    fn read(&self, entry: Tuple) -> Flow {
        self.flows.get(&entry).copied().unwrap_or_default()
    }

    fn touch(&mut self, entry: Tuple, touch: Touch) {
        if let Some(flow) = self.flows.get_mut(&entry) {
            flow.seen |= touch.seen;
            flow.last_seen = touch.now;
            flow.packets += 1;
            flow.bytes += u64::from(touch.bytes);
        }
    }

    fn credit(&mut self, entry: Self::Entry, packets: u64, bytes: u64) {
        if let Some(flow) = self.flows.get_mut(&entry) {
            flow.packets += packets;
            flow.bytes += bytes;
        }
    }

    fn set_flags(&mut self, entry: Tuple, flags: u32) {
        if let Some(flow) = self.flows.get_mut(&entry) {
            flow.flags = flags;
        }
    }

    fn set_seen(&mut self, entry: Tuple, seen: u32) {
        if let Some(flow) = self.flows.get_mut(&entry) {
            flow.seen = seen;
        }
    }

    fn set_acknowledged(&mut self, entry: Tuple, acknowledged: u32) {
        if let Some(flow) = self.flows.get_mut(&entry) {
            flow.acknowledged = acknowledged;
        }
    }

    fn set_awaited(&mut self, entry: Tuple, awaited: u32) {
        if let Some(flow) = self.flows.get_mut(&entry) {
            flow.awaited = awaited;
        }
    }

    fn insert_flow(&mut self, key: &Tuple, flow: &Flow) -> Insertion {
        if self.flows.contains_key(key) {
            Insertion::Exists
        } else if self.flows.len() >= self.flow_capacity {
            Insertion::Full
        } else {
            self.flows.insert(*key, *flow);
            Insertion::Done
        }
    }

    fn start_epoch(&mut self, shard: u32) {
        self.start_epoch_of(shard);
    }

    fn remove_flow(&mut self, key: &Tuple) {
        let Some(flow) = self.flows.remove(key) else {
            return;
        };
        self.start_epoch(shard(key));
        if flow.flags & FlowFlags::ORIGINAL != 0
            && let Some(account) = FlowFlags::account(flow.flags)
        {
            self.release_flow(account);
        }
    }

    fn reserve_flow(&mut self, account: u32) -> i64 {
        let live = self.live.entry(account).or_default();
        *live += 1;
        *live - 1
    }

    fn release_flow(&mut self, account: u32) {
        *self.live.entry(account).or_default() -= 1;
    }

    fn live_flows(&self, account: u32) -> i64 {
        self.live.get(&account).copied().unwrap_or(0)
    }

    fn peek_clock(&self, entry: &mut ClockEntry) -> bool {
        let next = self.turns.front();
        *entry = next.copied().unwrap_or(*entry);
        next.is_some()
    }

    fn pop_clock(&mut self, entry: &mut ClockEntry) -> bool {
        let taken = self.turns.pop_front();
        *entry = taken.unwrap_or(*entry);
        taken.is_some()
    }

    fn push_clock(&mut self, entry: &ClockEntry) -> bool {
        let fits = self.turns.len() < self.flow_capacity;
        if fits {
            self.turns.push_back(*entry);
        }
        fits
    }

    fn count_evicted(&mut self, pod: u32) {
        let counters = self.counters.entry((pod, Direction::Egress));
        counters.or_default().evicted_flows += 1;
    }

    fn socket(&mut self, incoming: &Tuple) -> Socket {
        if let Some(kernel) = &self.kernel {
            return kernel.socket(incoming);
        }
        self.sockets.get(incoming).copied().unwrap_or(Socket::None)
    }

    fn is_sent_by_socket(&self, _tuple: &Tuple) -> bool {
        self.sent_by_socket
    }

    fn next_hop(&mut self, from: u32, interface: u32, tuple: &Tuple) -> Address {
        if let Some(kernel) = &self.kernel {
            let route = kernel.egress_route(from, tuple);
            return route
                .filter(|route| route.link == interface)
                .map_or(tuple.destination, |route| route.hop);
        }
        self.next_hops
            .get(&tuple.destination)
            .copied()
            .unwrap_or(tuple.destination)
    }

    fn egress_route(&mut self, from: u32, tuple: &Tuple, hop: &mut Address, mtu: &mut u32) -> u32 {
        if let Some(kernel) = &self.kernel {
            let Some(route) = kernel.egress_route(from, tuple) else {
                return 0;
            };
            (*hop, *mtu) = (route.hop, route.mtu);
            return route.link;
        }
        *mtu = self.route_mtu;
        let next = self.next_hops.get(&tuple.destination);
        *hop = *next.unwrap_or(&tuple.destination);
        self.egress_routes
            .get(&tuple.destination)
            .copied()
            .unwrap_or(0)
    }

    fn count_flow(&mut self, pod: u32) {
        if pod != 0 {
            self.counters
                .entry((pod, Direction::Egress))
                .or_default()
                .new_flows += 1;
        }
    }

    fn count_passed(&mut self, pod: u32, direction: Direction, bytes: u32) {
        if pod != 0 {
            let counters = self.counters.entry((pod, direction)).or_default();
            counters.packets += 1;
            counters.bytes += u64::from(bytes);
        }
    }

    fn report_lost(&mut self, held: &HeldHeader, _reason: DropReason) {
        self.lost.push(*held);
    }

    fn count_dropped(&mut self, reason: DropReason, pod: u32, direction: Direction, bytes: u32) {
        let drops = self.drops.entry(reason).or_default();
        drops.packets += 1;
        drops.bytes += u64::from(bytes);
        *self.pod_drops.entry((pod, reason)).or_default() += 1;
        if pod != 0 {
            let counters = self.counters.entry((pod, direction)).or_default();
            counters.dropped_packets += 1;
            counters.dropped_bytes += u64::from(bytes);
        }
    }
}
