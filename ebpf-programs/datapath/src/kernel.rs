//! The packet and the node as the kernel shows them to a program: helpers and maps behind `verdict`'s traits.
//!
//! The one file that calls helpers on packets. Map values are shared with other CPUs and with the agent: each field
//! is read and written whole, and counters that several CPUs share are added to atomically.

use core::mem::MaybeUninit;
use core::ptr;

use abi::{
    Address, Direction, DropReason, Egress, Endpoint, Flow, FlowFlags, FragmentKey, FragmentPorts,
    Hostport, HostportKey, Interface, Network, Pod, Seen, Settings, Tuple, Turn, Uplink, protocol,
};
use aya_ebpf::bindings::bpf_check_mtu_flags::BPF_MTU_CHK_SEGS;
use aya_ebpf::bindings::{
    __sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM, BPF_NOEXIST,
};
use aya_ebpf::helpers;
use aya_ebpf::maps::lpm_trie::Key;
use verdict::checksum::Difference;
use verdict::{ChecksumKind, Decision, Insertion, Node, Packet, Socket, Touch};

use crate::atomic::{add, fetch_add};
use crate::lookup;
use crate::maps;
use crate::memory::{words_at, write_words_at};
use crate::route;
use crate::shortcut;

const NANOSECONDS: u64 = 1_000_000_000;
const FILE_EXISTS: i32 = -17;
/// Bytes of a packet that are read in place.
const WITHIN_REACH: u32 = 256;

/// `BPF_F_IPV6`, or 0 where the kernel does not know the flag: the loader tries it and says.
#[unsafe(no_mangle)]
static CSUM_F_IPV6: u64 = 0x80;

/// One packet at one hook.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    skb: *mut __sk_buff,
    in_place: bool,
}

impl Kernel {
    /// The packet that a program was called with.
    #[inline(always)]
    pub(crate) const fn new(skb: *mut __sk_buff) -> Self {
        Self {
            skb,
            in_place: false,
        }
    }

    /// As [`Kernel::new`], and what is within reach is written without a helper's help. A program that does so anywhere
    /// has the kernel make every packet its own first, which costs a call where others hold it as well, as TCP's sender
    /// does: it is for programs that write to most packets, and more than once.
    #[inline(always)]
    pub(crate) const fn in_place(skb: *mut __sk_buff) -> Self {
        Self {
            skb,
            in_place: true,
        }
    }

    /// The packet's context.
    #[inline(always)]
    pub(crate) const fn context(self) -> *mut __sk_buff {
        self.skb
    }

    /// Uses the context, at the price of one load.
    #[inline(always)]
    pub(crate) fn touch_context(self) {
        self.hook();
    }

    /// `N` words from `offset` on, wherever the kernel keeps them.
    #[inline(always)]
    fn copied<const N: usize>(self, offset: u32) -> Option<[u32; N]> {
        let mut words = MaybeUninit::<[u32; N]>::uninit();
        let (to, length) = (words.as_mut_ptr().cast(), (N * 4) as u32);
        // SAFETY: the helper writes no more than `words` holds.
        let result = unsafe { helpers::bpf_skb_load_bytes(self.skb.cast(), offset, to, length) };
        // SAFETY: the helper has written all of `words`, even where it failed: then with zeros.
        (result == 0).then_some(unsafe { words.assume_init() })
    }

    /// Where the byte at `offset` is, and where ends what may be read in place.
    #[inline(always)]
    fn reach(self, offset: u32) -> (usize, usize) {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe {
            let start = ptr::read_volatile(&raw const (*self.skb).data) as usize;
            let end = ptr::read_volatile(&raw const (*self.skb).data_end) as usize;
            (start + offset as usize, end)
        }
    }

    /// Interface index of the hook.
    #[inline(always)]
    pub(crate) fn hook(self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.skb).ifindex) }
    }
}

impl Packet for Kernel {
    #[inline(always)]
    fn len(&self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.skb).len) }
    }

    #[inline(always)]
    fn ethertype(&self) -> u16 {
        // SAFETY: the context is valid for as long as the program runs.
        let protocol = unsafe { ptr::read_volatile(&raw const (*self.skb).protocol) };
        u16::from_be(protocol as u16)
    }

    #[inline(always)]
    fn is_tagged(&self) -> bool {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.skb).vlan_present) != 0 }
    }

    /// Headers are where the kernel lets programs read without asking; a call costs more than all that is read by it.
    #[inline(always)]
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        if offset < WITHIN_REACH {
            let (at, end) = self.reach(offset);
            if at + N * 4 <= end {
                // SAFETY: all `N` words lie before the end of what may be read.
                return Some(unsafe { words_at(at) });
            }
        }
        self.copied(offset)
    }

    #[inline(always)]
    fn near<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        let (at, end) = self.reach(offset);
        // SAFETY: all `N` words lie before the end of what may be read.
        (at + N * 4 <= end).then(|| unsafe { words_at(at) })
    }

    #[inline(always)]
    fn store<const N: usize>(&mut self, offset: u32, words: [u32; N]) -> Decision<()> {
        if self.in_place {
            let (at, end) = self.reach(offset);
            if at + N * 4 <= end {
                // SAFETY: all `N` words lie before the end of what may be written.
                unsafe { write_words_at(at, words) };
                return Ok(());
            }
        }
        // SAFETY: the helper reads `N` words and checks the offset.
        let result = unsafe {
            helpers::bpf_skb_store_bytes(self.skb, offset, words.as_ptr().cast(), (N * 4) as u32, 0)
        };
        rewritten(result)
    }

    #[inline(always)]
    fn store_alone<const N: usize>(&mut self, offset: u32, words: [u32; N]) -> Decision<()> {
        let (bytes, length) = (words.as_ptr().cast(), (N * 4) as u32);
        let flags = u64::from(BPF_F_RECOMPUTE_CSUM);
        // SAFETY: the helper reads `N` words and checks the offset.
        rewritten(unsafe { helpers::bpf_skb_store_bytes(self.skb, offset, bytes, length, flags) })
    }

    #[inline(always)]
    fn fits(&self, interface: u32) -> bool {
        let mut length = 0;
        let flags = u64::from(BPF_MTU_CHK_SEGS);
        // SAFETY: the helper reads and writes `length`.
        let result = unsafe {
            helpers::bpf_check_mtu(self.skb.cast(), interface, &raw mut length, 0, flags)
        };
        result == 0
    }

    #[inline(always)]
    fn fix_checksum(
        &mut self,
        offset: u32,
        difference: Difference,
        kind: ChecksumKind,
    ) -> Decision<()> {
        let mut flags = 0;
        if kind.pseudo_header {
            flags |= u64::from(BPF_F_PSEUDO_HDR);
        }
        if kind.zero_means_none {
            flags |= u64::from(BPF_F_MARK_MANGLED_0);
        }
        if kind.v6 {
            // SAFETY: a static that only the loader writes, before the object is loaded; volatile, because the
            // compiler must not take the value it sees here for the one it will have.
            flags |= unsafe { ptr::read_volatile(&raw const CSUM_F_IPV6) };
        }
        // SAFETY: the helper checks the offset.
        rewritten(unsafe {
            helpers::bpf_l4_csum_replace(self.skb, offset, 0, u64::from(difference.folded()), flags)
        })
    }
}

#[inline(always)]
fn rewritten(result: i64) -> Decision<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(DropReason::RewriteFailed)
    }
}

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
    fn interface(&self, interface: u32) -> Option<&Interface> {
        // SAFETY: values of this map are plain numbers that stay readable until the program ends.
        unsafe { maps::INTERFACES.get(interface) }
    }

    #[inline(always)]
    fn endpoint(&self, address: &Address) -> Option<&Endpoint> {
        // SAFETY: as above.
        unsafe { maps::ENDPOINTS.get(address) }
    }

    #[inline(always)]
    fn hostport(&self, key: &HostportKey) -> Option<&Hostport> {
        // SAFETY: as above.
        unsafe { maps::HOSTPORTS.get(key) }
    }

    #[inline(always)]
    fn network(&self, bridge: u32) -> Option<&Network> {
        // SAFETY: as above.
        unsafe { maps::NETWORKS.get(bridge) }
    }

    #[inline(always)]
    fn egress(&self, bridge: u32) -> Option<&Egress> {
        // SAFETY: as above.
        unsafe { maps::EGRESS.get(bridge) }
    }

    #[inline(always)]
    fn uplink(&self, interface: u32) -> Option<&Uplink> {
        // SAFETY: as above.
        unsafe { maps::UPLINKS.get(interface) }
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
    fn flow(&self, key: &Tuple) -> Option<*mut Flow> {
        maps::FLOWS.get_ptr_mut(key)
    }

    #[inline(always)]
    fn read(&self, entry: *mut Flow) -> Flow {
        // SAFETY: an entry stays readable until the program ends, even when it is removed meanwhile.
        unsafe { *entry }
    }

    #[inline(always)]
    fn touch(&mut self, entry: *mut Flow, touch: Touch) {
        // SAFETY: as above; every field is a number, and no reference is made to memory that others write.
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
    fn forget_seen(&mut self, entry: *mut Flow) {
        // SAFETY: as above.
        unsafe { (*entry).seen &= !(Seen::SYN | Seen::ACK | Seen::FIN | Seen::RST) }
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
    fn begin_epoch(&mut self, shard: u32) {
        shortcut::begin_epoch(shard);
    }

    #[inline(always)]
    fn remove_flow(&mut self, key: &Tuple) {
        let Some(entry) = maps::FLOWS.get_ptr_mut(key) else {
            return;
        };
        // SAFETY: as above.
        let (flags, pod) = unsafe { ((*entry).flags, (*entry).pod) };
        // Of several CPUs that remove an entry one succeeds.
        if maps::FLOWS.remove(key).is_err() {
            return;
        }
        self.begin_epoch(verdict::shortcut::shard(key));
        if flags & FlowFlags::ORIGINAL != 0 {
            self.release_flow(pod);
        }
    }

    #[inline(always)]
    fn reserve_flow(&mut self, pod: u32) -> i64 {
        match maps::LIVE.get_ptr_mut(pod) {
            // SAFETY: a map's value, aligned.
            Some(live) => unsafe { fetch_add(live, 1) }.cast_signed(),
            None => 0,
        }
    }

    #[inline(always)]
    fn release_flow(&mut self, pod: u32) {
        if let Some(live) = maps::LIVE.get_ptr_mut(pod) {
            // SAFETY: a map's value, aligned.
            unsafe { add(live, u64::MAX) }
        }
    }

    #[inline(always)]
    fn live_flows(&self, pod: u32) -> i64 {
        match maps::LIVE.get_ptr(pod) {
            // SAFETY: a map's value, aligned.
            Some(live) => unsafe { ptr::read_volatile(live) }.cast_signed(),
            None => 0,
        }
    }

    #[inline(always)]
    fn take_turn(&mut self, turn: &mut Turn) -> bool {
        let queue = (&raw const maps::TURNS).cast_mut().cast();
        // SAFETY: the helper writes one value of the map, or zeros.
        unsafe { helpers::bpf_map_pop_elem(queue, ptr::from_mut(turn).cast()) == 0 }
    }

    #[inline(always)]
    fn await_turn(&mut self, turn: &Turn) {
        // A flow that does not find a place is left to the sweep.
        let _ = maps::TURNS.push(turn, 0);
    }

    #[inline(always)]
    fn count_evicted(&mut self, pod: u32) {
        if let Some(counters) = maps::COUNTERS.get_ptr_mut(pod * 2) {
            // SAFETY: the element is this CPU's own.
            unsafe { (*counters).evicted_flows += 1 }
        }
    }

    #[inline(always)]
    fn fragment_ports(&self, key: &FragmentKey) -> Option<FragmentPorts> {
        // SAFETY: as above.
        unsafe { maps::FRAGMENTS.get(key) }.copied()
    }

    #[inline(always)]
    fn keep_fragment_ports(&mut self, key: &FragmentKey, ports: &FragmentPorts) {
        // A fragment that finds no ports is dropped and counted; there is nothing better to do here.
        let _ = maps::FRAGMENTS.insert(key, ports, 0);
    }

    #[inline(always)]
    fn socket(&mut self, incoming: &Tuple) -> Socket {
        let ports = u32::from(incoming.source_port.raw())
            | u32::from(incoming.destination_port.raw()) << 16;
        let (source, destination) = (incoming.source.words(), incoming.destination.words());
        let tcp = incoming.protocol == protocol::TCP;
        if incoming.source.is_v4() {
            lookup::socket(self.skb, [source[3], destination[3], ports], tcp)
        } else {
            let [a, b, c, d] = source;
            let [e, f, g, h] = destination;
            lookup::socket(self.skb, [a, b, c, d, e, f, g, h, ports], tcp)
        }
    }

    #[inline(always)]
    fn next_hop(&mut self, from: u32, interface: u32, tuple: &Tuple) -> Address {
        route::next_hop(self.skb, from, interface, tuple)
    }

    #[inline(always)]
    fn way_out(&mut self, from: u32, tuple: &Tuple, hop: &mut Address, takes: &mut u32) -> u32 {
        route::way_out(self.skb, from, tuple, hop, takes)
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
    fn count_dropped(&mut self, reason: DropReason, pod: u32, direction: Direction, bytes: u32) {
        if let Some(drops) = maps::DROPS.get_ptr_mut(reason as u32) {
            // SAFETY: the element is this CPU's own.
            unsafe {
                (*drops).packets += 1;
                (*drops).bytes += u64::from(bytes);
            }
        }
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
