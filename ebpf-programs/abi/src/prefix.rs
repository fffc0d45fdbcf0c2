//! Address prefixes that decide about masquerading.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Address;

/// Key of the prefix table (a longest-prefix trie, `struct bpf_lpm_trie_key`). 20 bytes.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Debug,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct PrefixKey {
    /// Significant bits of [`PrefixKey::address`]: 96 more than an IPv4 prefix is written with.
    pub prefix_len: u32,
    /// The prefix, host bits zero.
    pub address: Address,
}

const _: () = assert!(size_of::<PrefixKey>() == 20);

/// What holds for a prefix: bits of the prefix table's value. The agent merges the bits of prefixes that contain
/// one another, so the longest match tells all.
#[derive(Clone, Copy, Debug)]
pub struct PrefixClass;

impl PrefixClass {
    /// Packets to this prefix keep the pod's address.
    pub const NO_MASQUERADE: u32 = 1 << 0;
    /// Addresses of this prefix are given to pods of this node.
    pub const PODS: u32 = 1 << 1;
}
