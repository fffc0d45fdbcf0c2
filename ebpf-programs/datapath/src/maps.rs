//! All maps of the object: those of `abi`'s list, pinned by name, and those that programs use
//! alone.

use core::ptr;

use abi::{ClockEntry, DatagramRing, DropRecord, HeldFragment, PodDrops, maps as names};
use aya_ebpf::helpers;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, Queue, RingBuf};
use verdict::Work;
use verdict::flow_cache::{Bucket, CacheEntry, WAYS};

/// Makes a static for each map of the ABI.
macro_rules! pinned {
    ($(
        $(#[$doc:meta])*
        $name:ident = $kind:ident<$key:tt, $value:tt>[$capacity:expr] $(| $option:ident)*
            $(=> $lookup:ident in $rows:ident)?;
    )*) => {
        $(
            #[map]
            pub(crate) static $name: map_type!($kind, $key, $value) =
                <map_type!($kind, $key, $value)>::pinned(names::$name.capacity, names::$name.flags);
        )*
    };
}

/// Type of the BPF object's map of a kind.
macro_rules! map_type {
    (Hash, $key:tt, $value:tt) => { HashMap<abi::layout!($key), abi::layout!($value)> };
    (LruHash, $key:tt, $value:tt) => { LruHashMap<abi::layout!($key), abi::layout!($value)> };
    (LpmTrie, $key:tt, $value:tt) => { LpmTrie<abi::layout!($key), abi::layout!($value)> };
    (Array, u32, $value:tt) => { Array<abi::layout!($value)> };
    (PerCpuArray, u32, $value:tt) => { PerCpuArray<abi::layout!($value)> };
    (Queue, (), $value:tt) => { Queue<abi::layout!($value)> };
    (RingBuf, (), ()) => { RingBuf };
}

abi::for_each_map!(pinned);

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

/// The flow cache: a part for each CPU, which no other CPU reads or writes. A plain array, because
/// one of the type for CPUs aligns no element to a cache line, and reads a pointer for each. Never
/// pinned, as [`SCRATCH`]. The loader sets the capacity.
#[map]
pub(crate) static FLOW_CACHE: Array<CacheEntry> =
    Array::with_max_entries(names::CACHE_CAPACITY, names::MMAPABLE.flag());

/// An element for each CPU, for loops over all of them: `bpf_loop` is newer than
/// `bpf_for_each_map_elem`. Never written or pinned. The loader sets the capacity.
#[map]
pub(crate) static CPUS: Array<u32> = Array::with_max_entries(MOST_CPUS, 0);

/// Most CPUs of a machine (`CONFIG_NR_CPUS`).
const MOST_CPUS: u32 = 8_192;

/// Buckets of [`FLOW_CACHE`], which say where the entry of a key is. A part for each CPU, which
/// other CPUs read only to search for acknowledgment numbers. Never pinned, as [`SCRATCH`]. The
/// loader sets the capacity.
#[map]
pub(crate) static CACHE_BUCKETS: Array<Bucket> =
    Array::with_max_entries(names::CACHE_CAPACITY / WAYS, names::MMAPABLE.flag());
