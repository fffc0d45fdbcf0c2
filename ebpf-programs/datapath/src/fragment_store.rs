//! Datagrams and held fragments behind [`verdict::FragmentStore`].
//!
//! A held fragment is a copy in a map: BPF programs cannot keep a packet. It is restored by writing
//! it into the packet that releases it, of which the kernel then sends a copy through the hook's
//! interface again.

use core::hint::black_box;

use abi::{
    Datagram, DatagramRing, FragmentKey, HELD_PART, HELD_PARTS, HeldHeader, HeldKey, LONGEST_HELD,
    RING,
};
use aya_ebpf::bindings::{BPF_F_INGRESS, BPF_F_RECOMPUTE_CSUM, BPF_NOEXIST};
use aya_ebpf::helpers;
use verdict::{FragmentStore, Packet as _};

use crate::atomic;
use crate::kernel::Kernel;
use crate::maps::{self, DATAGRAMS, FRAGMENTS, HELD, IDENTIFICATIONS};

/// Bytes of one part.
const PART: u32 = HELD_PART as u32;

impl FragmentStore for Kernel {
    type DatagramRef = *mut Datagram;

    #[inline(always)]
    fn datagram(&self, key: &FragmentKey) -> Option<*mut Datagram> {
        FRAGMENTS.get_ptr_mut(key)
    }

    #[inline(always)]
    fn read_datagram(&self, datagram: *mut Datagram, to: &mut Datagram) {
        // SAFETY: a map's value stays readable until the program ends.
        *to = unsafe { *datagram };
    }

    #[inline(always)]
    fn write_datagram(&mut self, datagram: *mut Datagram, from: &Datagram) {
        // SAFETY: as above.
        unsafe {
            (*datagram).source_port = from.source_port;
            (*datagram).destination_port = from.destination_port;
            (*datagram).seen = from.seen;
            (*datagram).identification = from.identification;
            (*datagram).units = from.units;
            (*datagram).used = from.used;
            (*datagram).ranges = from.ranges;
            // Last: the flags state that the ports are valid.
            (&raw mut (*datagram).flags).write_volatile(from.flags);
        }
    }

    #[inline(always)]
    fn insert_datagram(&mut self, key: &FragmentKey, datagram: &Datagram) -> bool {
        FRAGMENTS
            .insert(key, datagram, u64::from(BPF_NOEXIST))
            .is_ok()
    }

    #[inline(always)]
    fn remove_datagram(&mut self, key: &FragmentKey) {
        // It may have been removed by another CPU.
        let _ = FRAGMENTS.remove(key);
    }

    #[inline(always)]
    fn push_datagram(&mut self, key: &FragmentKey, replaced: &mut FragmentKey) -> bool {
        let Some(ring) = ring(key.share) else {
            return false;
        };
        // SAFETY: a map's value, aligned; the mask keeps the place within the ring.
        unsafe {
            let number = atomic::fetch_add(&raw mut (*ring).datagrams, 1);
            let place = (number & u64::from(RING - 1)) as usize;
            let keys = (&raw mut (*ring).keys).cast::<FragmentKey>();
            *replaced = *keys.add(place);
            *keys.add(place) = *key;
        }
        true
    }

    #[inline(always)]
    fn next_held(&mut self, share: u32) -> Option<u64> {
        let ring = ring(share)?;
        // SAFETY: a map's value, aligned.
        Some(unsafe { atomic::fetch_add(&raw mut (*ring).held, 1) })
    }

    #[inline(always)]
    fn set_held(&mut self, datagram: *mut Datagram, bits: u64) {
        // SAFETY: a map's value, aligned.
        unsafe { atomic::fetch_or(&raw mut (*datagram).held, bits) };
    }

    #[inline(always)]
    fn take_held(&mut self, datagram: *mut Datagram, bits: u64) -> u64 {
        // SAFETY: a map's value, aligned.
        unsafe { atomic::fetch_and(&raw mut (*datagram).held, !bits) & bits }
    }

    #[inline(always)]
    fn held(&self, key: &HeldKey) -> Option<&HeldHeader> {
        // SAFETY: a map's value stays readable until the program ends.
        HELD.get_ptr(key).map(|held| unsafe { &(*held).header })
    }

    #[inline(always)]
    fn hold(&mut self, key: &HeldKey, header: &HeldHeader) -> bool {
        let Some(holding) = maps::holding() else {
            return false;
        };
        holding.header = *header;
        let length = header.length;
        if length > LONGEST_HELD as u32 {
            return false;
        }
        let mut key = *key;
        for part in 0..HELD_PARTS {
            let Some(size) = size_of_part(length, part) else {
                break;
            };
            key.part = part as u16;
            let to = holding.bytes.as_mut_ptr().cast();
            let context = self.context().cast();
            // SAFETY: the helper writes `size` bytes, which is no more than a part has.
            let copied =
                unsafe { helpers::bpf_skb_load_bytes(context, part * PART, to, size) == 0 };
            if !copied || HELD.insert(key, &*holding, 0).is_err() {
                key.part = 0;
                self.remove_held(&key);
                return false;
            }
        }
        true
    }

    #[inline(always)]
    fn remove_held(&mut self, key: &HeldKey) {
        let mut key = *key;
        for part in 0..HELD_PARTS {
            key.part = part as u16;
            if HELD.remove(key).is_err() {
                return;
            }
        }
    }

    #[inline(always)]
    fn restore(&mut self, key: &HeldKey) -> bool {
        let mut key = *key;
        let Some(first) = HELD.get_ptr(key) else {
            return false;
        };
        // SAFETY: a map's value stays readable until the program ends.
        let length = unsafe { (*first).header.length };
        // SAFETY: the helper checks the length.
        let result = unsafe { helpers::bpf_skb_change_tail(self.context(), length, 0) };
        // No packet is cut off before the transport header that its sender has stated. A shorter
        // fragment keeps the rest of the packet as padding: its own header has its length.
        if result != 0 && self.len() < length {
            return false;
        }
        for part in 0..HELD_PARTS {
            let Some(size) = size_of_part(length, part) else {
                break;
            };
            key.part = part as u16;
            let Some(held) = HELD.get_ptr(key) else {
                return false;
            };
            // SAFETY: the helper reads `size` bytes, which is no more than a part has, and checks
            // the offset.
            let result = unsafe {
                let from = (&raw const (*held).bytes).cast();
                let flags = u64::from(BPF_F_RECOMPUTE_CSUM);
                helpers::bpf_skb_store_bytes(self.context(), part * PART, from, size, flags)
            };
            if result != 0 {
                return false;
            }
        }
        true
    }

    #[inline(always)]
    fn reinject(&mut self) {
        let flags = u64::from(BPF_F_INGRESS);
        // Fails only for want of memory, or where the interface goes down.
        // SAFETY: the helper checks its arguments.
        let _ =
            unsafe { helpers::bpf_clone_redirect(self.context(), self.hook_interface(), flags) };
    }

    #[inline(always)]
    fn identification(&self, index: u32) -> u64 {
        match IDENTIFICATIONS.get_ptr(index) {
            // SAFETY: a map's value, aligned.
            Some(element) => unsafe { element.read_volatile() },
            None => 0,
        }
    }

    #[inline(always)]
    fn replace_identification(&mut self, index: u32, old: u64, new: u64) -> bool {
        match IDENTIFICATIONS.get_ptr_mut(index) {
            // SAFETY: a map's value, aligned.
            Some(element) => unsafe { atomic::replace(element, old, new) },
            None => false,
        }
    }
}

/// Returns the bytes of a part of a fragment; `None` behind its last part.
#[inline(always)]
fn size_of_part(length: u32, part: u32) -> Option<u32> {
    let offset = part * PART;
    if length <= offset {
        return None;
    }
    let rest = length - offset;
    let size = if rest > PART { PART } else { rest };
    // Linux 6.1 does not see that it is not 0: it forgets the bounds of `length` in the difference,
    // and learns none from a comparison with 0.
    let below = black_box(size - 1);
    Some(if below < PART { below } else { PART - 1 } + 1)
}

/// Returns the ring of a share, and makes one if there is none.
#[inline(always)]
fn ring(share: u32) -> Option<*mut DatagramRing> {
    if let Some(ring) = DATAGRAMS.get_ptr_mut(share) {
        return Some(ring);
    }
    let new = maps::NEW_RING.get(0)?;
    // Another CPU may have made it meanwhile.
    let _ = DATAGRAMS.insert(share, new, u64::from(BPF_NOEXIST));
    DATAGRAMS.get_ptr_mut(share)
}
