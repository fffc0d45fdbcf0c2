//! Connections that other software's netfilter rules have accepted, and whose packets bypass the
//! stack.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Tuple;

/// What the agent has decided about packets with a tuple as netfilter sees it first: value of the
/// offload table. 56 bytes.
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
pub struct Offloaded {
    /// [`crate::Events::rulesets`] when netfilter accepted the packet that the decision is about.
    pub rulesets: u64,
    /// Time from which on the decision is void, in seconds of `CLOCK_MONOTONIC`.
    pub expires: u32,
    /// [`Offloaded::ACCEPTED`], [`Offloaded::UNREPLIED`], or any other number for packets that stay
    /// on the stack.
    pub decision: u32,
    /// The tuple that the packets have behind netfilter: another one where it translates them.
    pub translated: Tuple,
}

const _: () = assert!(size_of::<Offloaded>() == 56);

impl Offloaded {
    /// [`Offloaded::decision`]: packets bypass the stack.
    pub const ACCEPTED: u32 = 1;
    /// [`Offloaded::decision`]: packets bypass the stack while no rule must see every packet of a
    /// new connection ([`crate::SettingsFlags::OFFLOAD_UNREPLIED`]). netfilter has seen packets of
    /// this direction only.
    pub const UNREPLIED: u32 = 9;
    /// [`Offloaded::decision`]: packets have this tuple behind netfilter's translation only. The
    /// decision about them is in the entry of the tuple that they had before.
    pub const BEHIND_NAT: u32 = 0;
}

/// A packet that netfilter has accepted, of a connection that may be offloaded: record of the
/// candidates' ring buffer. 48 bytes.
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
pub struct OffloadCandidate {
    /// The tuple of the packet behind netfilter's last hook.
    pub tuple: Tuple,
    /// [`crate::Events::rulesets`] at that time.
    pub rulesets: u64,
}

const _: () = assert!(size_of::<OffloadCandidate>() == 48);
