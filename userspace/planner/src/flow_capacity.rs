//! Size of the flow table, and the quota of a pod in it.

/// Least number of concurrent flows of a pod, however small the flow table is.
const MIN_QUOTA: u32 = 1_024;

/// Memory of one flow table entry in bytes: the entry, its share of the eviction clock's queue, and
/// the kernel's overhead for both.
const BYTES_PER_ENTRY: u64 = 256;

/// Returns the default of netfilter's `nf_conntrack_max` on a 64-bit machine with `memory` bytes
/// (`net/netfilter/nf_conntrack_core.c`, `nf_conntrack_init_start`).
const fn conntrack_max(memory: u64) -> u64 {
    const GIB: u64 = 1 << 30;
    match memory {
        _ if memory > 4 * GIB => 262_144,
        _ if memory > GIB => 65_536,
        // A 16,384th of the memory in buckets of 8 bytes.
        _ => memory / 16_384 / 8,
    }
}

/// Returns the number of flow table entries for a machine with `memory` bytes: two for each
/// connection that netfilter would track, or a 400th of the memory if that is more; between 32,768
/// and 2,097,152 entries.
pub fn flow_entries(memory: u64) -> u32 {
    let of_memory = memory / 400 / BYTES_PER_ENTRY;
    let entries = of_memory
        .max(2 * conntrack_max(memory))
        .clamp(32_768, 2_097_152);
    u32::try_from(entries).unwrap_or(abi::maps::FLOWS_CAPACITY)
}

/// Returns the number of flow cache entries of each of `cpus` CPUs, a power of two: together a
/// quarter of the flow table's entries, since the packets of a flow in one direction are usually
/// handled by one CPU.
pub fn cache_entries(flow_entries: u32, cpus: u32) -> u32 {
    let share = (flow_entries / 4 / cpus.max(1)).max(1);
    (1 << share.ilog2()).clamp(1_024, abi::maps::MAX_CACHE_CAPACITY_OF_CPU)
}

/// Returns the number of concurrent flows that a pod may open, and that may be opened from outside
/// to it: half of the flow table, in which each flow has two entries.
pub fn flow_quota(entries: u32) -> u32 {
    MIN_QUOTA.max(entries / 2 / 2)
}
