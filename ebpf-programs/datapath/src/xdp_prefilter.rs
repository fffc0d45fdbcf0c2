//! XDP on an uplink, before the kernel allocates a packet buffer: see [`verdict::xdp_prefilter`].

use core::mem::MaybeUninit;
use core::ptr;

use abi::DropReason;
use aya_ebpf::bindings::{xdp_action, xdp_md};
use aya_ebpf::helpers;
use aya_ebpf::macros::xdp;
use aya_ebpf::programs::XdpContext;
use verdict::checksum::Difference;
use verdict::{ChecksumKind, Decision, Packet, xdp_prefilter};

use crate::drop_log::report_frame;
use crate::kernel::Kernel;

/// Offset of the word whose second half is the `EtherType`: a frame may end behind it.
const ETHERTYPE: u32 = 10;

#[xdp(frags)]
fn xdp_guard(context: XdpContext) -> u32 {
    let frame = Frame { md: context.ctx };
    // SAFETY: the context is valid for as long as the program runs.
    let interface = unsafe { ptr::read_volatile(&raw const (*frame.md).ingress_ifindex) };
    // The prefilter reads tables only, which need no packet.
    let mut node = Kernel::new(ptr::null_mut());
    match xdp_prefilter::check(&frame, &mut node, interface) {
        Ok(()) => xdp_action::XDP_PASS,
        Err(dropped) => {
            report_frame(&frame, interface, dropped);
            xdp_action::XDP_DROP
        }
    }
}

/// A frame in the driver's memory, read only.
struct Frame {
    md: *mut xdp_md,
}

impl Packet for Frame {
    #[inline(always)]
    fn len(&self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { helpers::bpf_xdp_get_buff_len(self.md) as u32 }
    }

    /// Always false: at XDP the VLAN tag is still among the bytes.
    #[inline(always)]
    fn is_tagged(&self) -> bool {
        false
    }

    #[inline(always)]
    fn vlan_id(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn hook_interface(&self) -> u32 {
        self.ingress_interface()
    }

    #[inline(always)]
    fn ingress_interface(&self) -> u32 {
        // SAFETY: the context is valid for as long as the program runs.
        unsafe { ptr::read_volatile(&raw const (*self.md).ingress_ifindex) }
    }

    /// Always true: the kernel determines the type of the packet later.
    #[inline(always)]
    fn is_for_this_host(&self) -> bool {
        true
    }

    #[inline(always)]
    fn is_for_other_host(&self) -> bool {
        false
    }

    #[inline(always)]
    fn ethertype(&self) -> u16 {
        let word = self.words::<1>(ETHERTYPE).map_or(0, |[word]| word);
        u32::from_be(word) as u16
    }

    #[inline(always)]
    fn words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        let mut words = MaybeUninit::<[u32; N]>::uninit();
        let (to, length) = (words.as_mut_ptr().cast(), (N * 4) as u32);
        // SAFETY: the helper writes no more than `words` holds.
        let result = unsafe { helpers::bpf_xdp_load_bytes(self.md, offset, to, length) };
        // SAFETY: the helper has written all of `words` where it returns 0.
        (result == 0).then(|| unsafe { words.assume_init() })
    }

    #[inline(always)]
    fn linear_words<const N: usize>(&self, offset: u32) -> Option<[u32; N]> {
        self.words(offset)
    }

    #[inline(always)]
    fn store<const N: usize>(&mut self, _offset: u32, _words: [u32; N]) -> Decision<()> {
        Err(DropReason::RewriteFailed)
    }

    #[inline(always)]
    fn store_linear<const N: usize>(&mut self, _offset: u32, _words: [u32; N]) -> Decision<()> {
        Err(DropReason::RewriteFailed)
    }

    #[inline(always)]
    fn store_and_update_csum<const N: usize>(
        &mut self,
        _offset: u32,
        _words: [u32; N],
    ) -> Decision<()> {
        Err(DropReason::RewriteFailed)
    }

    #[inline(always)]
    fn fits(&self, _interface: u32) -> bool {
        true
    }

    #[inline(always)]
    fn mtu(&self, _interface: u32) -> u32 {
        0
    }

    #[inline(always)]
    fn fix_checksum(
        &mut self,
        _offset: u32,
        _difference: Difference,
        _kind: ChecksumKind,
    ) -> Decision<()> {
        Err(DropReason::RewriteFailed)
    }
}
