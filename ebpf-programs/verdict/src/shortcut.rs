//! Shortcuts: what was decided about one packet holds for those behind it that look the same.
//!
//! Each CPU remembers, for packets of connections that are under way, how the last one ended: where it went, what was
//! written into it, whom it was counted for. The next one that says the same of itself ends the same way, without a
//! question to any table. What opens or closes a connection, what is limited or dropped is always asked about in full.
//!
//! A shortcut is good as long as the [epoch](Shortcuts::epoch) is the one that it was taken in: every change of a table
//! by the agent begins another, and so does every flow that goes, begins anew, or is new between pods, for the tuples of
//! its [`shard`]. What only the kernel knows (routes, MTUs) is asked again after [`GOOD_FOR`] at the latest.
//!
//! What passes is noted beside the shortcut, and added to the flow's entry when that shortcut is replaced.

use abi::maps::SHARDS;
use abi::{Address, Noted, Tuple};

use crate::outcome::{Code, Verdict};

mod sight;
mod way;

pub use sight::Sight;
pub(crate) use way::{find, keep, take};

/// Ticks of the kernel for which a shortcut is good: 10 to 100 milliseconds.
pub const GOOD_FOR: u64 = 10;

/// What shortcuts ask of the node.
pub trait Shortcuts {
    /// What others have marked the packet with: routes may depend on it.
    fn mark(&self) -> u32;
    /// Ticks of the kernel.
    fn ticks(&self) -> u64;
    /// A number that grows with every change of a table that a verdict about tuples of this [`shard`] may rest on.
    fn epoch(&self, shard: u32) -> u64;
    /// One of this CPU's shortcuts.
    fn shortcut(&self, index: u32) -> Option<&Shortcut>;
    /// Replaces one of this CPU's shortcuts.
    fn keep_shortcut(&mut self, index: u32, shortcut: &Shortcut);
    /// What has passed by one of this CPU's shortcuts.
    fn noted(&self, index: u32) -> Option<&Noted>;
    /// Notes that a packet of the flow with this ticket passes by a shortcut; false where it is another flow's turn.
    fn note(&mut self, index: u32, ticket: u32, bytes: u32) -> bool;
    /// Begins to note what passes by a shortcut, in place of what was noted there.
    fn begin_notes(&mut self, index: u32, key: &Tuple, ticket: u32);
}

/// Which of the epochs a flow's changes begin anew.
#[inline(always)]
pub const fn shard(tuple: &Tuple) -> u32 {
    let (source, destination) = (tuple.source.words(), tuple.destination.words());
    let ports = (tuple.source_port.raw() as u32) << 16 | tuple.destination_port.raw() as u32;
    let mixed = source[3] ^ destination[3].rotate_left(5) ^ ports;
    let mixed = mixed ^ mixed >> 16;
    (mixed ^ mixed >> 8) & (SHARDS - 1)
}

/// How packets of one sight end.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Shortcut {
    /// Which packets.
    pub sight: Sight,
    /// Bytes from the IP header on that are known to fit where the packet goes.
    pub fits: u32,
    /// [`Steps`] to take.
    pub steps: u32,
    /// [`Shortcuts::epoch`] when the end was found.
    pub epoch: u64,
    /// [`Shortcuts::ticks`] then.
    pub taken: u64,
    /// The verdict's number.
    pub verdict: u64,
    /// [`crate::Work::hop`].
    pub hop: Address,
    /// What the packets say.
    pub tuple: Tuple,
    /// What they will say.
    pub translated: Tuple,
    /// Ethernet addresses to write.
    pub stations: [u32; 3],
    /// [`abi::Flow::ticket`] of the flow.
    pub ticket: u32,
    /// [`shard`] of what the packets say.
    pub shard: u32,
    /// The pod that is billed for what is dropped: its slot, 0 for nobody.
    pub pod: u32,
    /// The pod that sends: its slot, 0 for nobody.
    pub from: u32,
    /// The pod that receives: its slot, 0 for nobody.
    pub to: u32,
}

/// What became of the search for a shortcut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// There is none.
    Nothing,
    /// There is one, and the packet is noted in its flow: [`take`] is to follow.
    Flow,
    /// The packet has come to its end.
    End(Verdict),
}

/// Set in the number of a [`Found::End`].
const END: u64 = 1 << 40;

impl Code for Found {
    #[inline(always)]
    fn code(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Flow => 1,
            Self::End(verdict) => END | verdict.code(),
        }
    }

    #[inline(always)]
    fn from_code(code: u64) -> Self {
        match code {
            0 => Self::Nothing,
            1 => Self::Flow,
            _ => Self::End(Verdict::from_code(code & !END)),
        }
    }
}

/// Notes on the way to a verdict, for whoever comes behind.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Trail {
    /// What the packet says of itself.
    pub sight: Sight,
    /// Whether the packet is one that a shortcut may be taken from.
    pub open: u32,
    /// Where its shortcut is, or will be.
    pub index: u32,
    /// When it came.
    pub taken: u64,
    /// The epoch that it came in.
    pub epoch: u64,
    /// [`shard`] of its tuple.
    pub shard: u32,
    /// Bytes from the IP header on, of the packet or of each that it will be cut into.
    pub length: u32,
    /// [`Steps`] that were taken.
    pub steps: u32,
    /// [`abi::Flow::ticket`] of the flow that was found.
    pub ticket: u32,
    /// Ethernet addresses that were written.
    pub stations: [u32; 3],
}

/// What was done to a packet: bits of [`Trail::steps`].
#[derive(Clone, Copy, Debug)]
pub struct Steps;

impl Steps {
    /// Its flow was found, and it was noted there.
    pub const FLOW: u32 = 1 << 0;
    /// It lost one hop of its life.
    pub const AGED: u32 = 1 << 1;
    /// It was given other Ethernet addresses.
    pub const STATIONS: u32 = 1 << 2;
    /// It was given the addresses and ports of its flow.
    pub const TRANSLATED: u32 = 1 << 3;
}

impl Trail {
    /// Nothing follows from this packet for others.
    #[inline(always)]
    pub(crate) const fn close(&mut self) {
        self.open = 0;
    }

    /// Whether a flow was found for it.
    #[inline(always)]
    const fn has_flow(&self) -> bool {
        self.steps & Steps::FLOW != 0
    }
}

#[cfg(test)]
mod tests;
