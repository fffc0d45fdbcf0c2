//! Shortcuts as the kernel has them: maps and a clock behind [`verdict::shortcut`]'s trait.

use core::ptr;

use abi::maps::{EPOCH_OF_TABLES, EPOCHS_OF_FLOWS, NOTED_CAPACITY, SHARDS};
use abi::{Noted, Tuple};
use aya_ebpf::helpers;
use verdict::shortcut::{Shortcut, Shortcuts};

use crate::atomic;
use crate::kernel::Kernel;
use crate::maps::{EPOCHS, NOTED, SHORTCUTS, TAGS};

/// Whether the uplink's program is the first that is shown what leaves: the loader says.
#[unsafe(no_mangle)]
static HANDS_OVER: u64 = 1;

impl Shortcuts for Kernel {
    type Kept = &'static Shortcut;

    #[inline(always)]
    fn mark(&self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.context()).mark) }
    }

    #[inline(always)]
    fn ticks(&self) -> u64 {
        // SAFETY: the helper takes nothing. The verifier puts a load in its place.
        unsafe { helpers::bpf_jiffies64() }
    }

    #[inline(always)]
    fn epoch_of_tables(&self) -> u64 {
        epoch(EPOCH_OF_TABLES)
    }

    #[inline(always)]
    fn epoch(&self, shard: u32) -> u64 {
        self.epoch_of_tables().wrapping_add(epoch(of_shard(shard)))
    }

    #[inline(always)]
    fn tag(&self, index: u32) -> u8 {
        TAGS.get(0).map_or(0, |tags| tags[place_of(index)])
    }

    #[inline(always)]
    fn shortcut(&self, index: u32) -> Option<&'static Shortcut> {
        SHORTCUTS.get(index)
    }

    #[inline(always)]
    fn keep_shortcut(&mut self, index: u32, tag: u8, shortcut: &Shortcut) {
        let (tags, kept) = (TAGS.get_ptr_mut(0), SHORTCUTS.get_ptr_mut(index));
        if let (Some(tags), Some(kept)) = (tags, kept) {
            // SAFETY: both are this CPU's own, and no hook interrupts another.
            unsafe {
                (*tags)[place_of(index)] = tag;
                *kept = *shortcut;
            }
        }
    }

    #[inline(always)]
    fn noted(&self, index: u32) -> Option<&Noted> {
        NOTED.get(index)
    }

    #[inline(always)]
    fn note(&mut self, index: u32, ticket: u32, bytes: u32) -> bool {
        let Some(noted) = NOTED.get_ptr_mut(index) else {
            return false;
        };
        // SAFETY: as above.
        unsafe {
            if (*noted).ticket != ticket {
                return false;
            }
            (*noted).packets += 1;
            (*noted).bytes += u64::from(bytes);
        }
        true
    }

    #[inline(always)]
    fn begin_notes(&mut self, index: u32, key: &Tuple, ticket: u32) {
        if let Some(noted) = NOTED.get_ptr_mut(index) {
            // SAFETY: as above.
            unsafe {
                (*noted).key = *key;
                (*noted).ticket = ticket;
                (*noted).packets = 0;
                (*noted).bytes = 0;
            }
        }
    }

    #[inline(always)]
    fn hands_over(&self) -> bool {
        // SAFETY: a static that only the loader writes, before the object is loaded; volatile, because the compiler must
        // not take the value it sees here for the one it will have.
        unsafe { ptr::read_volatile(&raw const HANDS_OVER) != 0 }
    }

    #[inline(always)]
    fn label(&self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.context()).tc_index) }
    }

    #[inline(always)]
    fn set_label(&mut self, label: u32) {
        // SAFETY: as above.
        unsafe { ptr::write_volatile(&raw mut (*self.context()).tc_index, label) }
    }
}

/// The index itself, which is below the number of places: Linux 6.1 sees it here.
#[inline(always)]
const fn place_of(index: u32) -> usize {
    (index & (NOTED_CAPACITY - 1)) as usize
}

#[inline(always)]
const fn of_shard(shard: u32) -> u32 {
    EPOCHS_OF_FLOWS + (shard & (SHARDS - 1))
}

#[inline(always)]
fn epoch(index: u32) -> u64 {
    match EPOCHS.get_ptr(index) {
        // SAFETY: the element exists for as long as the map; the number is read whole.
        Some(epoch) => unsafe { ptr::read_volatile(epoch) },
        None => 0,
    }
}

/// Begins another epoch of a shard for all CPUs.
#[inline(always)]
pub(crate) fn begin_epoch(shard: u32) {
    if let Some(epoch) = EPOCHS.get_ptr_mut(of_shard(shard)) {
        // SAFETY: a map's value, aligned.
        unsafe { atomic::add(epoch, 1) }
    }
}
