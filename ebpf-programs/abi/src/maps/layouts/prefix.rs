//! Address prefixes that control masquerading.

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
    /// Significant bits of [`PrefixKey::address`]: for IPv4, 96 more than the prefix length.
    pub prefix_len: u32,
    /// The prefix, host bits zero.
    pub address: Address,
}

const _: () = assert!(size_of::<PrefixKey>() == 20);

/// Properties of a prefix: bits of the prefix table's value. The agent merges the bits of prefixes
/// that contain one another, so that the longest match has all of them.
#[derive(Clone, Copy, Debug)]
pub struct PrefixClass;

impl PrefixClass {
    /// Packets to this prefix are not masqueraded.
    pub const NO_MASQUERADE: u32 = 1 << 0;
    /// Addresses of this prefix are assigned to pods of this node.
    pub const PODS: u32 = 1 << 1;
    /// Containers of other software have addresses of this prefix too: their packets leave the node
    /// as the kernel forwards them.
    pub const SHARED: u32 = 1 << 2;
    /// Every address of the prefix that is in use is a pod's ([`crate::maps::ENDPOINTS`]) or the
    /// node's: packets that would be forwarded to another one are dropped.
    pub const COMPLETE: u32 = 1 << 3;
    /// Pods of another node have the addresses of the prefix: packets from a tunnel have no other
    /// source.
    pub const PEER: u32 = 1 << 4;
}
