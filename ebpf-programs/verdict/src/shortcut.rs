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

use core::ops::Deref;

use abi::maps::SHARDS;
use abi::{Address, Noted, Tuple};

use crate::work::Work;

mod change;
mod handed;
mod sight;
mod way;

pub use change::Change;
pub(crate) use handed::{find_leaving, teach};
pub use sight::Sight;
pub(crate) use way::{find, keep, straight, take};

/// Ticks of the kernel for which a shortcut is good: 10 to 100 milliseconds.
pub const GOOD_FOR: u64 = 10;

/// How many packets a flow has each way before shortcuts are made for it. Many flows end with fewer, and making one costs what
/// as many packets save that take it: what it is written into is in no cache.
pub const YOUNG: u64 = 8;

/// What shortcuts ask of the node.
pub trait Shortcuts {
    /// One of this CPU's shortcuts. Nobody else writes it while a packet is under way.
    type Kept: Copy + Deref<Target = Shortcut>;

    /// What others have marked the packet with: routes may depend on it.
    fn mark(&self) -> u32;
    /// Ticks of the kernel.
    fn ticks(&self) -> u64;
    /// How many packets a flow has each way before shortcuts are made for it.
    fn young(&self) -> u64 {
        YOUNG
    }
    /// A number that grows with every change of a table by the agent.
    fn epoch_of_tables(&self) -> u64;
    /// A number that grows with every change of a table that a verdict about tuples of this [`shard`] may rest on.
    fn epoch(&self, shard: u32) -> u64;
    /// The tag of the shortcut that this CPU has at a place, if it has one there: a few bits of its [`Sight`], so that the
    /// shortcut itself, which may be in no cache, is looked at only where that is likely to be of use.
    fn tag(&self, index: u32) -> u8;
    /// One of this CPU's shortcuts.
    fn shortcut(&self, index: u32) -> Option<Self::Kept>;
    /// Replaces one of this CPU's shortcuts, and its tag.
    fn keep_shortcut(&mut self, index: u32, tag: u8, shortcut: &Shortcut);
    /// What has passed by one of this CPU's shortcuts.
    fn noted(&self, index: u32) -> Option<&Noted>;
    /// Notes that a packet of the flow with this ticket passes by a shortcut; false where it is another flow's turn.
    fn note(&mut self, index: u32, ticket: u32, bytes: u32) -> bool;
    /// Begins to note what passes by a shortcut, in place of what was noted there.
    fn begin_notes(&mut self, index: u32, key: &Tuple, ticket: u32);
    /// Whether what leaves the node may be announced to the uplink's program: nobody is to be shown it before.
    fn hands_over(&self) -> bool;
    /// What the packet is labelled with for hooks that it meets next; 0 for nothing.
    fn label(&self) -> u32;
    /// Labels the packet with 16 bits.
    fn set_label(&mut self, label: u32);
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

/// How packets of one sight end. What most packets need lies side by side.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Shortcut {
    /// Which packets.
    pub sight: Sight,
    /// Bytes from the IP header on that are known to fit where the packet goes.
    pub fits: u32,
    /// [`Shortcuts::epoch`] when the end was found.
    pub epoch: u64,
    /// [`Shortcuts::ticks`] then.
    pub taken: u64,
    /// The verdict's number.
    pub verdict: u64,
    /// [`shard`] of what the packets say.
    pub shard: u32,
    /// [`Steps`] to take.
    pub steps: u32,
    /// [`abi::Flow::ticket`] of the flow.
    pub ticket: u32,
    /// The pod that sends: its slot, 0 for nobody.
    pub from: u32,
    /// The pod that receives: its slot, 0 for nobody.
    pub to: u32,
    /// The pod that is billed for what is dropped: its slot, 0 for nobody.
    pub pod: u32,
    /// What is written into the packets.
    pub change: Change,
    /// [`crate::Work::hop`].
    pub hop: Address,
}

/// What became of the search for a shortcut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// There is none.
    Nothing,
    /// There is one, and the packet is noted in its flow: [`teach`] is to follow, and then [`take`].
    Lesson(Taken),
    /// The packet has come to its end: its verdict's number.
    End(u64),
}

/// A shortcut, and the packet that takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Index of the shortcut.
    pub index: u32,
    /// Bytes of the packet, from the IP header on.
    pub bytes: u32,
}

/// Where the notes about the packet under way are: a packet that takes a shortcut needs none.
pub trait Desk {
    /// The notes.
    fn work(&mut self) -> Option<&mut Work>;
}

impl Desk for &mut Work {
    fn work(&mut self) -> Option<&mut Work> {
        Some(self)
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
    /// Packets that the flow has had before this way.
    pub had: u64,
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
    /// Whether a shortcut of a pod's hook is to learn how the packet ends here.
    pub lesson: u32,
    /// Which one: the last that was announced.
    pub pupil: u32,
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
    /// It was given other addresses.
    pub const ADDRESSES: u32 = 1 << 3;
    /// It was given other ports.
    pub const PORTS: u32 = 1 << 4;
    /// Something was written into it, besides its age.
    pub const WRITTEN: u32 = Self::STATIONS | Self::ADDRESSES | Self::PORTS;
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
