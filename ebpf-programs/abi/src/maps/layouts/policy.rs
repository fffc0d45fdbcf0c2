//! Network policies: rule sets of pods, identities of addresses, and what a rule set allows.
//!
//! A packet is allowed where its rule set has a key for the other end's identity, or for every
//! address (identity 0), whose ports contain the packet's.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Port;

/// Rule sets of a pod. 12 bytes.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RuleSets {
    /// Generation of the attachment: rule sets of another one are not the pod's.
    pub generation: u32,
    /// Rule set of the connections that the pod accepts; 0 where it accepts all.
    pub ingress: u32,
    /// Rule set of the connections that the pod may open; 0 where it may open all.
    pub egress: u32,
}

const _: () = assert!(size_of::<RuleSets>() == 12);

/// What a rule set allows: key of a longest-prefix trie, without its length. 12 bytes.
///
/// A prefix of [`PolicyRule::ALL`] bits allows every protocol; one of [`PolicyRule::PROTOCOL`] bits
/// every port of a protocol; a longer one the ports that have its bits.
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
pub struct PolicyRule {
    /// Number of the rule set.
    pub rules: u32,
    /// Identity of the other end; 0 for every address.
    pub identity: u32,
    /// IP protocol number.
    pub protocol: u8,
    /// Always zero.
    pub reserved: u8,
    /// Port of the end that accepts the connection.
    pub port: Port,
}

const _: () = assert!(size_of::<PolicyRule>() == 12);

impl PolicyRule {
    /// Length in bits of a prefix for all protocols.
    pub const ALL: u32 = 64;
    /// Length in bits of a prefix for all ports of a protocol.
    pub const PROTOCOL: u32 = 80;
    /// Length in bits of a key.
    pub const BITS: u32 = 96;
}

/// Which ends of a connection have let a packet pass that answers belong to: value of the table of
/// answers, whose key is the answers' tuple. 12 bytes.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PolicyFlow {
    /// When the last packet was recorded, in seconds of `CLOCK_MONOTONIC`.
    pub recorded: u32,
    /// Slot of the pod that has sent the packet, and receives the answers; 0 for none.
    pub opener: u32,
    /// Slot of the pod that has received the packet, and sends the answers; 0 for none.
    pub acceptor: u32,
}

const _: () = assert!(size_of::<PolicyFlow>() == 12);

impl PolicyFlow {
    /// No end.
    pub const NONE: Self = Self {
        recorded: 0,
        opener: 0,
        acceptor: 0,
    };

    /// Returns the record with the ends of `other` where it has none.
    #[must_use]
    #[inline]
    pub const fn or(mut self, other: Self) -> Self {
        if self.opener == 0 {
            self.opener = other.opener;
        }
        if self.acceptor == 0 {
            self.acceptor = other.acceptor;
        }
        self
    }
}
