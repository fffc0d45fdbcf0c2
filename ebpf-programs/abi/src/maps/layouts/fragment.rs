//! Fragmented datagrams: ports, identification and received ranges, and fragments that wait.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Address, Port};

/// Datagrams, and fragments that wait, of one [`Share`]. A power of two.
pub const RING: u32 = 64;
/// Ranges of a datagram that are known at once.
pub const RANGES: usize = 16;
/// Bytes of a frame that one [`HeldFragment`] has: with the kernel's own fields, an element of the
/// map takes 2 KiB.
pub const HELD_PART: usize = 1_856;
/// Parts of the longest frame that is held: an Ethernet frame of 9,000 bytes and more.
pub const HELD_PARTS: u32 = 5;
/// Bytes of the longest frame that is held.
pub const LONGEST_HELD: usize = HELD_PART * HELD_PARTS as usize;

/// Whose share of the tables a datagram takes. A pod's share is its slot.
#[derive(Debug)]
pub struct Share;

impl Share {
    /// Bit of the shares of senders outside of the node; a hash of the source is below it.
    pub const OUTSIDE: u32 = 1 << 16;
    /// Number of shares of datagrams from outside, a power of two.
    pub const OUTSIDE_DATAGRAMS: u32 = 256;
    /// Number of shares of held fragments from outside, a power of two.
    pub const OUTSIDE_HELD: u32 = 32;
    /// Bit of the shares of the node itself; a hash of the destination is below it.
    pub const NODE: u32 = 1 << 17;
    /// Number of shares of the node, a power of two.
    pub const NODE_DATAGRAMS: u32 = 64;
    /// Bit of the shares of datagrams as they are after translation, which ICMP errors quote; a
    /// hash of both addresses is below it.
    pub const TRANSLATED: u32 = 1 << 18;
    /// Number of shares of translated datagrams, a power of two.
    pub const TRANSLATED_DATAGRAMS: u32 = 256;
}

/// Key of a fragmented datagram (RFC 791, RFC 8200 4.5). 44 bytes.
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
pub struct FragmentKey {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Fragment identification in memory order; IPv4's 16 bits are zero-extended.
    pub identification: u32,
    /// IP protocol number of the whole packet.
    pub protocol: u8,
    /// Always zero.
    pub reserved: [u8; 3],
    /// The [`Share`] that the datagram takes; 0 for none.
    pub share: u32,
}

const _: () = assert!(size_of::<FragmentKey>() == 44);

/// Bits of [`Datagram::flags`].
#[derive(Debug)]
pub struct DatagramFlags;

impl DatagramFlags {
    /// The first fragment was seen: the ports are known.
    pub const PORTS: u32 = 1;
    /// [`Datagram::identification`] is valid.
    pub const IDENTIFIED: u32 = 2;
    /// All bytes were seen.
    pub const COMPLETE: u32 = 4;
    /// Fragments overlapped: the rest is dropped (RFC 5722).
    pub const REFUSED: u32 = 8;
}

/// State of a fragmented datagram: value of the fragment table. 96 bytes.
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
pub struct Datagram {
    /// Places in the ring of held fragments that have fragments of this datagram, one bit each.
    pub held: u64,
    /// Source port, as in [`crate::Tuple::source_port`].
    pub source_port: Port,
    /// Destination port, as in [`crate::Tuple::destination_port`].
    pub destination_port: Port,
    /// Time of the fragment that was seen first, in seconds of `CLOCK_MONOTONIC`.
    pub seen: u32,
    /// Identification with which the datagram leaves, as in [`FragmentKey::identification`].
    pub identification: u32,
    /// [`DatagramFlags`].
    pub flags: u32,
    /// Length of the payload in units of 8 bytes, rounded up; 0 until the last fragment was seen.
    pub units: u32,
    /// How many of the ranges have been used.
    pub used: u32,
    /// Ranges of the payload that were seen; neither overlapping nor adjacent, in no order. Those
    /// that were joined to others are empty.
    pub ranges: [FragmentRange; RANGES],
}

const _: () = assert!(size_of::<Datagram>() == 96);

/// A range of a datagram's payload, in units of 8 bytes. 4 bytes.
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
pub struct FragmentRange {
    /// The first unit.
    pub start: u16,
    /// The unit behind the last one.
    pub end: u16,
}

/// The last datagrams of a [`Share`], and how many fragments were held for it. 2,832 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DatagramRing {
    /// Number of datagrams so far.
    pub datagrams: u64,
    /// Number of held fragments so far.
    pub held: u64,
    /// Keys of the last datagrams, by their number modulo [`RING`].
    pub keys: [FragmentKey; RING as usize],
}

const _: () = assert!(size_of::<DatagramRing>() == 2_832);

/// Key of a part of a held fragment. 8 bytes.
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
pub struct HeldKey {
    /// The [`Share`] that the fragment takes.
    pub share: u32,
    /// Place in the ring of held fragments.
    pub place: u16,
    /// Number of the part, below [`HELD_PARTS`].
    pub part: u16,
}

const _: () = assert!(size_of::<HeldKey>() == 8);

/// What is known of a held fragment. 56 bytes.
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
pub struct HeldHeader {
    /// The fragment's datagram.
    pub datagram: FragmentKey,
    /// Bytes of the frame, link-layer header included.
    pub length: u32,
    /// Time of arrival in seconds of `CLOCK_MONOTONIC`.
    pub seen: u32,
    /// Slot of the pod that the fragment is counted for; 0 for none.
    pub pod: u32,
}

const _: () = assert!(size_of::<HeldHeader>() == 56);

/// A part of a fragment that waits for the first one of its datagram. 1,912 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HeldFragment {
    /// The fragment; the same in all parts.
    pub header: HeldHeader,
    /// The part's bytes; the last part has fewer.
    pub bytes: [u8; HELD_PART],
}

const _: () = assert!(size_of::<HeldFragment>() == 1_912);
