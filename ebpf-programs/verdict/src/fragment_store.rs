//! The node's tables of fragmented datagrams, and held packets, as a trait. Decides nothing.

use abi::{Datagram, FragmentKey, HeldHeader, HeldKey};

/// Lookups and changes that [`crate::fragment`] uses, and what it does with held packets.
pub trait FragmentStore {
    /// A reference to a datagram's state, valid until the packet is finished.
    type DatagramRef: Copy;

    /// Returns the state of a datagram.
    fn datagram(&self, key: &FragmentKey) -> Option<Self::DatagramRef>;

    /// Copies the state of a datagram.
    fn read_datagram(&self, datagram: Self::DatagramRef, to: &mut Datagram);

    /// Replaces the state of a datagram, all but [`Datagram::held`], which several CPUs change at
    /// once.
    fn write_datagram(&mut self, datagram: Self::DatagramRef, from: &Datagram);

    /// Inserts the state of a datagram unless the key has one; returns whether it was inserted.
    fn insert_datagram(&mut self, key: &FragmentKey, datagram: &Datagram) -> bool;

    /// Removes the state of a datagram.
    fn remove_datagram(&mut self, key: &FragmentKey);

    /// Adds a datagram to the ring of its share, and copies the key that was in its place to
    /// `replaced`. Returns false where there is no memory for the ring.
    fn push_datagram(&mut self, key: &FragmentKey, replaced: &mut FragmentKey) -> bool;

    /// Returns the number of fragments that were held for this share so far, and adds one. `None`
    /// where there is no memory for the ring.
    fn next_held(&mut self, share: u32) -> Option<u64>;

    /// Adds bits to [`Datagram::held`]. Ordered before all later reads of the datagram.
    fn set_held(&mut self, datagram: Self::DatagramRef, bits: u64);

    /// Returns the bits of [`Datagram::held`] among `bits`, and clears them. Ordered after all
    /// earlier writes of the datagram.
    fn take_held(&mut self, datagram: Self::DatagramRef, bits: u64) -> u64;

    /// Returns the header of a held fragment.
    fn held(&self, key: &HeldKey) -> Option<&HeldHeader>;

    /// Copies the packet to the place of a held fragment; returns false where it is too long, or
    /// where there is no memory.
    fn hold(&mut self, key: &HeldKey, header: &HeldHeader) -> bool;

    /// Removes a held fragment.
    fn remove_held(&mut self, key: &HeldKey);

    /// Replaces the packet by a held fragment; returns whether that succeeded.
    fn restore(&mut self, key: &HeldKey) -> bool;

    /// Sends a copy of the packet through the hook's interface again, as if it had just arrived.
    /// Copies arrive in the order of the calls, after the current packet.
    fn reinject(&mut self);

    /// Returns an element of [`abi::maps::IDENTIFICATIONS`].
    fn identification(&self, index: u32) -> u64;

    /// Replaces an element of [`abi::maps::IDENTIFICATIONS`] if it is still `old`; returns whether
    /// it was.
    fn replace_identification(&mut self, index: u32, old: u64, new: u64) -> bool;
}
