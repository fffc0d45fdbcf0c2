//! The kernel's packet (`__sk_buff`) behind `verdict`'s trait. The only file that calls helpers on
//! packets.

use core::mem::MaybeUninit;
use core::ptr;

use abi::DropReason;
use aya_ebpf::bindings::bpf_check_mtu_flags::BPF_MTU_CHK_SEGS;
use aya_ebpf::bindings::{__sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM};
use aya_ebpf::helpers;
use verdict::checksum::Difference;
use verdict::{ChecksumKind, Decision, Packet, crc};

use crate::memory::{lowest_byte, words_at, write_words_at};

/// Bytes of a packet within which words are read in place.
const WITHIN_REACH: u32 = 256;

const PACKET_HOST: u32 = 0;
const PACKET_OTHERHOST: u32 = 3;

/// The VLAN identifier in the kernel's copy of a tag; the other bits are priority and DEI.
const VLAN_ID: u32 = 0xfff;

/// `BPF_F_IPV6`, or 0 where the kernel does not have the flag. The loader probes the kernel and
/// sets it.
#[unsafe(no_mangle)]
static CSUM_F_IPV6: u64 = 0x80;

/// One packet at one hook.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    skb: *mut __sk_buff,
    in_place: bool,
}

impl Kernel {
    /// Returns the packet that a program was called with.
    #[inline(always)]
    pub(crate) const fn new(skb: *mut __sk_buff) -> Self {
        Self {
            skb,
            in_place: false,
        }
    }

    /// As [`Kernel::new`], and words within reach are written in place, without a helper.
    ///
    /// If a program has such a write anywhere, the kernel makes every packet writable first. That
    /// costs a call where the packet is shared, as with TCP's sender. So it is for programs that
    /// write to most packets, and more than once.
    #[inline(always)]
    pub(crate) const fn in_place(skb: *mut __sk_buff) -> Self {
        Self {
            skb,
            in_place: true,
        }
    }

    /// Returns the packet's context.
    #[inline(always)]
    pub(crate) const fn context(self) -> *mut __sk_buff {
        self.skb
    }

    /// Uses the context, at the cost of one load.
    #[inline(always)]
    pub(crate) fn touch_context(self) {
        self.hook_interface();
    }

    /// Copies `N` words from `offset` on, wherever the kernel keeps them.
    #[inline(always)]
    pub(crate) fn copied<const N: usize>(self, offset: u32) -> Option<[u32; N]> {
        let mut words = MaybeUninit::<[u32; N]>::uninit();
        let (to, length) = (words.as_mut_ptr().cast(), (N * 4) as u32);
        // SAFETY: the helper writes no more than `words` holds.
        let result = unsafe { helpers::bpf_skb_load_bytes(self.skb.cast(), offset, to, length) };
        // SAFETY: the helper has written all of `words`, even where it failed: then with zeros.
        (result == 0).then_some(unsafe { words.assume_init() })
    }

    /// Returns the address of the byte at `offset`, and the end of what may be read in place.
    #[inline(always)]
    fn reach(self, offset: u32) -> (usize, usize) {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe {
            let start = ptr::read_volatile(&raw const (*self.skb).data) as usize;
            let end = ptr::read_volatile(&raw const (*self.skb).data_end) as usize;
            (start + offset as usize, end)
        }
    }

    /// Returns the packet's link-layer type (`linux/if_packet.h`).
    #[inline(always)]
    fn packet_type(self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.skb).pkt_type) }
    }
}

impl Packet for Kernel {
    #[inline(always)]
    fn len(&self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.skb).len) }
    }

    #[inline(always)]
    fn ethertype(&self) -> u16 {
        // SAFETY: the context is valid for as long as the program runs.
        let protocol = unsafe { ptr::read_volatile(&raw const (*self.skb).protocol) };
        u16::from_be(protocol as u16)
    }

    #[inline(always)]
    fn is_tagged(&self) -> bool {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.skb).vlan_present) != 0 }
    }

    #[inline(always)]
    fn vlan_id(&self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        let tag = unsafe { ptr::read_volatile(&raw const (*self.skb).vlan_tci) };
        if self.is_tagged() { tag & VLAN_ID } else { 0 }
    }

    #[inline(always)]
    fn hook_interface(&self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.skb).ifindex) }
    }

    #[inline(always)]
    fn ingress_interface(&self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.skb).ingress_ifindex) }
    }

    #[inline(always)]
    fn is_for_this_host(&self) -> bool {
        self.packet_type() == PACKET_HOST
    }

    #[inline(always)]
    fn is_for_other_host(&self) -> bool {
        self.packet_type() == PACKET_OTHERHOST
    }

    /// Headers are usually in the linear part, which programs read without a helper; a helper call
    /// costs more than all that is read by it.
    #[inline(always)]
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        if offset < WITHIN_REACH {
            let (at, end) = self.reach(offset);
            if at + N * 4 <= end {
                // SAFETY: all `N` words lie before the end of what may be read.
                return Some(unsafe { words_at(at) });
            }
        }
        self.copied(offset)
    }

    #[inline(always)]
    fn linear_words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        let (at, end) = self.reach(offset);
        // SAFETY: all `N` words lie before the end of what may be read.
        (at + N * 4 <= end).then(|| unsafe { words_at(at) })
    }

    #[inline(always)]
    fn linear_words_both<const A: usize, const B: usize>(
        &self,
        offset: u32,
    ) -> Option<([u32; A], [u32; B])> {
        let (start, end) = self.reach(0);
        let behind = start + offset as usize;
        if behind + B * 4 > end {
            return None;
        }
        // SAFETY: all words lie before the end of what may be read, the first ones before the
        // others.
        Some(unsafe { (words_at(start), words_at(behind)) })
    }

    #[inline(always)]
    fn store<const N: usize>(&mut self, offset: u32, words: [u32; N]) -> Decision<()> {
        if self.in_place && offset < WITHIN_REACH {
            let offset = lowest_byte(offset);
            if self.store_linear(offset, words).is_ok() {
                return Ok(());
            }
        }
        // SAFETY: the helper reads `N` words and checks the offset.
        let result = unsafe {
            helpers::bpf_skb_store_bytes(self.skb, offset, words.as_ptr().cast(), (N * 4) as u32, 0)
        };
        rewritten(result)
    }

    #[inline(always)]
    fn store_linear<const N: usize>(&mut self, offset: u32, words: [u32; N]) -> Decision<()> {
        let (at, end) = self.reach(offset);
        if at + N * 4 > end {
            return Err(DropReason::RewriteFailed);
        }
        // SAFETY: all `N` words lie before the end of what may be written.
        unsafe { write_words_at(at, words) };
        Ok(())
    }

    #[inline(always)]
    fn store_and_update_csum<const N: usize>(
        &mut self,
        offset: u32,
        words: [u32; N],
    ) -> Decision<()> {
        let (bytes, length) = (words.as_ptr().cast(), (N * 4) as u32);
        let flags = u64::from(BPF_F_RECOMPUTE_CSUM);
        // SAFETY: the helper reads `N` words and checks the offset.
        rewritten(unsafe { helpers::bpf_skb_store_bytes(self.skb, offset, bytes, length, flags) })
    }

    #[inline(always)]
    fn fits(&self, interface: u32) -> bool {
        let mut length = 0;
        let flags = u64::from(BPF_MTU_CHK_SEGS);
        // SAFETY: the helper reads and writes `length`.
        let result = unsafe {
            helpers::bpf_check_mtu(self.skb.cast(), interface, &raw mut length, 0, flags)
        };
        result == 0
    }

    #[inline(always)]
    fn mtu(&self, interface: u32) -> u32 {
        let mut mtu = 0;
        // SAFETY: the helper reads and writes `mtu`: a length of 0 stands for that of the packet,
        // and whether that fits does not matter. Where it fails, it writes nothing.
        unsafe { helpers::bpf_check_mtu(self.skb.cast(), interface, &raw mut mtu, 0, 0) };
        mtu
    }

    #[inline(always)]
    fn fix_checksum(
        &mut self,
        offset: u32,
        difference: Difference,
        kind: ChecksumKind,
    ) -> Decision<()> {
        let mut flags = 0;
        if kind.pseudo_header {
            flags |= u64::from(BPF_F_PSEUDO_HDR);
        }
        if kind.zero_means_none {
            flags |= u64::from(BPF_F_MARK_MANGLED_0);
        }
        if kind.v6 {
            // SAFETY: a static that only the loader writes, before the object is loaded; volatile,
            // because the compiler must not use the initial value.
            flags |= unsafe { ptr::read_volatile(&raw const CSUM_F_IPV6) };
        }
        // SAFETY: the helper checks the offset.
        rewritten(unsafe {
            helpers::bpf_l4_csum_replace(self.skb, offset, 0, u64::from(difference.folded()), flags)
        })
    }

    #[inline(always)]
    fn crc_change(&self, difference: u32, length: u32) -> u32 {
        change_of_crc(u64::from(difference), u64::from(length)) as u32
    }
}

/// A global function: the kernel verifies it once, by itself.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn change_of_crc(difference: u64, length: u64) -> u64 {
    u64::from(crc::change(difference as u32, length as u32))
}

/// Converts the result of a helper that changes the packet.
#[inline(always)]
fn rewritten(result: i64) -> Decision<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(DropReason::RewriteFailed)
    }
}
