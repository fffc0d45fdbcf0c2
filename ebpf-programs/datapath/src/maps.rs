//! All maps of the object, pinned by name. Layouts and capacities are `abi`'s.

use core::ptr;

use abi::{
    Address, Bucket, ClockEntry, Counters, Datagram, DatagramRing, Dialled, DialledKey, DropCount,
    DropRecord, DropSampling, Egress, Endpoint, Events, Flow, FragmentKey, HeldFragment, HeldKey,
    Hostport, HostportKey, Interface, Limit, Network, Offloaded, PendingCounters, Pod, PodDrops,
    Settings, Shaped, ShapedSubnetKey, Swept, Tuple, Uplink, maps as names,
};
use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::helpers;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, Queue, RingBuf};
use verdict::flow_cache::{CacheEntry, WAYS};
use verdict::{ClockHand, Work};

#[map]
pub(crate) static FLOWS: HashMap<Tuple, Flow> = HashMap::pinned(names::FLOWS_CAPACITY, 0);

#[map]
pub(crate) static TURNS: Queue<ClockEntry> = Queue::pinned(names::FLOWS_CAPACITY, 0);

#[map]
pub(crate) static LIVE: Array<u64> = Array::pinned(names::LIVE_CAPACITY, 0);

#[map]
pub(crate) static FRAGMENTS: HashMap<FragmentKey, Datagram> =
    HashMap::pinned(names::FRAGMENTS_CAPACITY, BPF_F_NO_PREALLOC);

#[map]
pub(crate) static DATAGRAMS: HashMap<u32, DatagramRing> =
    HashMap::pinned(names::DATAGRAMS_CAPACITY, BPF_F_NO_PREALLOC);

#[map]
pub(crate) static HELD: HashMap<HeldKey, HeldFragment> =
    HashMap::pinned(names::HELD_CAPACITY, BPF_F_NO_PREALLOC);

#[map]
pub(crate) static IDENTIFICATIONS: Array<u64> = Array::pinned(names::IDENTIFICATIONS_CAPACITY, 0);

#[map]
pub(crate) static PODS: Array<Pod> = Array::pinned(names::PODS_CAPACITY, 0);

#[map]
pub(crate) static INTERFACES: HashMap<u32, Interface> =
    HashMap::pinned(names::INTERFACES_CAPACITY, 0);

#[map]
pub(crate) static ENDPOINTS: HashMap<Address, Endpoint> =
    HashMap::pinned(names::ENDPOINTS_CAPACITY, 0);

#[map]
pub(crate) static HOSTPORTS: HashMap<HostportKey, Hostport> =
    HashMap::pinned(names::HOSTPORTS_CAPACITY, 0);

#[map]
pub(crate) static NETWORKS: HashMap<u32, Network> = HashMap::pinned(names::NETWORKS_CAPACITY, 0);

#[map]
pub(crate) static DIALLED: LruHashMap<DialledKey, Dialled> =
    LruHashMap::pinned(names::DIALLED_CAPACITY, 0);

#[map]
pub(crate) static EGRESS: HashMap<u32, Egress> = HashMap::pinned(names::EGRESS_CAPACITY, 0);

#[map]
pub(crate) static UPLINKS: HashMap<u32, Uplink> = HashMap::pinned(names::UPLINKS_CAPACITY, 0);

#[map]
pub(crate) static LOCALS: HashMap<Address, u32> = HashMap::pinned(names::LOCALS_CAPACITY, 0);

#[map]
pub(crate) static PREFIXES: LpmTrie<Address, u32> = LpmTrie::pinned(names::PREFIXES_CAPACITY, 0);

#[map]
pub(crate) static COUNTERS: PerCpuArray<Counters> =
    PerCpuArray::pinned(names::COUNTERS_CAPACITY, 0);

#[map]
pub(crate) static DROPS: PerCpuArray<DropCount> = PerCpuArray::pinned(names::DROP_REASONS, 0);

#[map]
pub(crate) static POD_DROPS: HashMap<u32, PodDrops> =
    HashMap::pinned(names::POD_DROPS_CAPACITY, BPF_F_NO_PREALLOC);

#[map]
pub(crate) static LIMITS: Array<Limit> = Array::pinned(names::LIMITS_CAPACITY, 0);

#[map]
pub(crate) static PEERS: LpmTrie<ShapedSubnetKey, u32> = LpmTrie::pinned(names::PEERS_CAPACITY, 0);

#[map]
pub(crate) static BUCKETS: Array<Bucket> = Array::pinned(names::LIMITS_CAPACITY, 0);

#[map]
pub(crate) static SHAPED: PerCpuArray<Shaped> = PerCpuArray::pinned(names::LIMITS_CAPACITY, 0);

#[map]
pub(crate) static PACED: LruHashMap<u64, u32> = LruHashMap::pinned(names::PACED_CAPACITY, 0);

#[map]
pub(crate) static BOUNDED: LruHashMap<u64, u32> = LruHashMap::pinned(names::BOUNDED_CAPACITY, 0);

#[map]
pub(crate) static SETTINGS: Array<Settings> = Array::pinned(1, 0);

#[map]
pub(crate) static SWEPT: Array<Swept> = Array::pinned(1, 0);

#[map]
pub(crate) static EPOCHS: Array<u64> = Array::pinned(names::EPOCHS_OF_FLOWS + names::SHARDS, 0);

/// `BPF_F_MMAPABLE` (`include/uapi/linux/bpf.h`): the kernel then aligns the first element to a
/// page, so that an element of 64 bytes lies in one cache line.
const ALIGNED: u32 = 1 << 10;

#[map]
pub(crate) static EVENTS: Array<Events> = Array::pinned(1, ALIGNED);

#[map]
pub(crate) static OFFLOADED: HashMap<Tuple, Offloaded> =
    HashMap::pinned(names::OFFLOADED_CAPACITY, BPF_F_NO_PREALLOC);

#[map]
pub(crate) static CANDIDATES: RingBuf = RingBuf::pinned(names::CANDIDATES_SIZE, 0);

#[map]
pub(crate) static PENDING: Array<PendingCounters> = Array::pinned(names::CACHE_CAPACITY, ALIGNED);

/// Scratch memory of the current packet. Never pinned: its layout differs between versions of the
/// programs.
#[map]
static SCRATCH: PerCpuArray<Work> = PerCpuArray::with_max_entries(2, 0);

/// Which element of [`SCRATCH`]: a packet on the same CPU may interrupt a sweep.
#[derive(Clone, Copy)]
pub(crate) enum Scratch {
    /// A packet at a hook. No hook interrupts another on one CPU: traffic control runs with
    /// softirqs disabled.
    Packet = 0,
    /// The sweep.
    Sweep = 1,
}

/// Returns this CPU's scratch memory.
#[inline(always)]
pub(crate) fn work(element: Scratch) -> Option<&'static mut Work> {
    let work = SCRATCH.get_ptr_mut(element as u32)?;
    // SAFETY: the element is this CPU's own, and `Scratch` says why nothing else uses it meanwhile.
    // Zeros, its initial value, are a valid `Work`.
    Some(unsafe { &mut *work })
}

/// The value of a new ring: zeros. Never written or pinned.
#[map]
pub(crate) static NEW_RING: Array<DatagramRing> = Array::with_max_entries(1, 0);

#[map]
pub(crate) static DROP_RECORDS: RingBuf = RingBuf::pinned(names::DROP_RECORDS_BYTES, 0);

#[map]
pub(crate) static DROP_SAMPLING: Array<DropSampling> = Array::pinned(1, 0);

/// The report of the current drop. Never pinned, as [`SCRATCH`].
#[map]
static RECORD: PerCpuArray<DropRecord> = PerCpuArray::with_max_entries(2, 0);

/// Returns this CPU's memory for a report.
#[inline(always)]
pub(crate) fn drop_record(element: Scratch) -> Option<&'static mut DropRecord> {
    let record = RECORD.get_ptr_mut(element as u32)?;
    // SAFETY: as for `work`.
    Some(unsafe { &mut *record })
}

/// The value of a new entry of [`POD_DROPS`]: zeros. Never written or pinned.
#[map]
pub(crate) static NO_DROPS: Array<PodDrops> = Array::with_max_entries(1, 0);

/// A fragment on its way into [`HELD`]. Never pinned, as [`SCRATCH`].
#[map]
static HOLDING: PerCpuArray<HeldFragment> = PerCpuArray::with_max_entries(1, 0);

/// Returns this CPU's memory for a fragment that is held.
#[inline(always)]
pub(crate) fn holding() -> Option<&'static mut HeldFragment> {
    let holding = HOLDING.get_ptr_mut(0)?;
    // SAFETY: as for `work`.
    Some(unsafe { &mut *holding })
}

/// Copies the entry at the head of the clock; returns false where the clock is empty.
#[inline(always)]
pub(crate) fn peek_clock(turn: &mut ClockEntry) -> bool {
    let queue = (&raw const TURNS).cast_mut().cast();
    // SAFETY: the helper writes one value of the map, or zeros.
    unsafe { helpers::bpf_map_peek_elem(queue, ptr::from_mut(turn).cast()) == 0 }
}

/// Removes the entry at the head of the clock; returns false where the clock is empty.
#[inline(always)]
pub(crate) fn pop_clock(turn: &mut ClockEntry) -> bool {
    let queue = (&raw const TURNS).cast_mut().cast();
    // SAFETY: as above.
    unsafe { helpers::bpf_map_pop_elem(queue, ptr::from_mut(turn).cast()) == 0 }
}

/// State of the clock hand, used by packets at hooks only. Never pinned, as [`SCRATCH`].
#[map]
static HAND: PerCpuArray<ClockHand> = PerCpuArray::with_max_entries(1, 0);

/// Returns this CPU's clock hand.
#[inline(always)]
pub(crate) fn hand() -> Option<&'static mut ClockHand> {
    let hand = HAND.get_ptr_mut(0)?;
    // SAFETY: as for `work`.
    Some(unsafe { &mut *hand })
}

/// The flow cache: a part for each CPU, which no other CPU reads or writes. A plain array, because
/// one of the type for CPUs aligns no element to a cache line, and reads a pointer for each. Never
/// pinned, as [`SCRATCH`]. The loader sets the capacity.
#[map]
pub(crate) static FLOW_CACHE: Array<CacheEntry> =
    Array::with_max_entries(names::CACHE_CAPACITY, ALIGNED);

/// Tags of the entries of [`FLOW_CACHE`], an element for each bucket: side by side, so that most
/// are in a CPU cache. Never pinned, as [`SCRATCH`]. The loader sets the capacity.
#[map]
pub(crate) static CACHE_TAGS: Array<u64> =
    Array::with_max_entries(names::CACHE_CAPACITY / WAYS, ALIGNED);
