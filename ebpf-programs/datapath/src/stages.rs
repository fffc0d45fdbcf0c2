//! One global function per stage, and the hook that calls them.
//!
//! The kernel verifies a global function once, by itself, with unknown arguments. Inlined, the same
//! stages make the verifier walk the product of their paths, and it gives up. Such a function takes
//! the context and numbers, and nothing else: pointers would reach maps as memory of unknown
//! origin, which Linux 6.1 refuses as a map key. Stages pass each other everything else in the
//! scratch memory.
//!
//! Only the cache lookup, and the rewrite of a hit, are part of the programs themselves. They come
//! first, so they multiply no paths, and most packets need no call at all.

#[macro_use]
mod stage;

use abi::Direction;
use aya_ebpf::bindings::__sk_buff;
use verdict::flow_cache::{CacheHit, CacheLookup, ScratchProvider};
use verdict::{
    Code, Content, Decision, Fit, Hook, HookStages, HostportMatch, Lack, Origin, Packet as _,
    Verdict, Work, stages,
};

use crate::kernel::Kernel;
use crate::maps::{self, Scratch};

stage!(stage_parse_pod() -> Decision<Content>, |kernel, work| {
    let interface = kernel.hook();
    stages::parse_pod(kernel, work, interface)
});
stage!(stage_identify_pod() -> u32, |kernel, work| {
    let interface = kernel.hook();
    stages::identify_pod(kernel, work, interface)
});
stage!(stage_check_received_policy() -> Decision<()>, |kernel, work| {
    stages::check_received_policy(kernel, work)
});
stage!(stage_parse_received() -> Content, |kernel, work| {
    stages::parse_received(kernel, work)
});
stage!(stage_parse_entering() -> Decision<Content>, |kernel, work| {
    let interface = kernel.hook();
    stages::parse_entering(kernel, work, interface)
});
stage!(stage_check_sender(content: Content) -> Decision<bool>, |kernel, work, content| {
    stages::check_sender(kernel, work, content)
});
stage!(stage_find_datagram(hook: Hook) -> Decision<Content>, |kernel, work, hook| {
    stages::find_datagram(kernel, work, hook)
});
stage!(stage_update_datagram(has_order: bool) -> Decision<()>, |_kernel, work, has_order| {
    stages::update_datagram(work, has_order)
});
stage!(stage_write_datagram(hook: Hook) -> Content, |kernel, work, hook| {
    stages::write_datagram(kernel, work, hook)
});
stage!(stage_hold_fragment() -> bool, |kernel, work| {
    stages::hold_fragment(kernel, work)
});
stage!(stage_release_fragment(place: u32) -> (), |kernel, work, place| {
    stages::release_fragment(kernel, work, place);
});
stage!(stage_identify_fragment(is_translated: bool) -> Decision<()>, |kernel, work, is_translated| {
    stages::identify_fragment(kernel, work, is_translated)
});
stage!(stage_check_duplicate() -> Decision<()>, |kernel, work| {
    stages::check_duplicate(kernel, work)
});
stage!(stage_check_received() -> Decision<()>, |kernel, work| stages::check_received(kernel, work));
stage!(stage_check_entering() -> Decision<()>, |kernel, work| stages::check_entering(kernel, work));
stage!(stage_parse_uplink() -> Decision<Content>, |kernel, work| {
    let interface = kernel.hook();
    stages::parse_uplink(kernel, work, interface)
});
stage!(stage_charge(direction: Direction) -> Decision<()>, |kernel, work, direction| {
    stages::charge(kernel, work, direction)
});
stage!(stage_charge_receiver() -> Decision<()>, |kernel, work| {
    stages::charge_receiver(kernel, work)
});
stage!(stage_check_policy() -> Decision<()>, |kernel, work| {
    stages::check_policy(kernel, work)
});
stage!(stage_find_flow(hook: Hook) -> bool, |kernel, work, hook| {
    stages::find_flow(kernel, work, hook)
});
stage!(stage_find_quoted_flow(hook: Hook) -> bool, |kernel, work, hook| {
    stages::find_quoted_flow(kernel, work, hook)
});
stage!(stage_check_quoted_hostport() -> Decision<()>, |kernel, work| {
    stages::check_quoted_hostport(kernel, work)
});
stage!(stage_origin() -> Decision<Origin>, |kernel, work| {
    stages::origin(kernel, work)
});
stage!(stage_choose_source() -> Decision<()>, |kernel, work| {
    stages::choose_source(kernel, work)
});
stage!(stage_keep_node_address() -> (), |_kernel, work| {
    stages::keep_node_address(work);
});
stage!(stage_track() -> Decision<()>, |kernel, work| stages::track(kernel, work));
stage!(stage_try_port(attempt: u32) -> Decision<bool>, |kernel, work, attempt| {
    stages::try_port(kernel, work, attempt)
});
stage!(stage_check_outside_source() -> Decision<()>, |kernel, work| {
    stages::check_outside_source(kernel, work)
});
stage!(stage_find_hostport() -> Decision<HostportMatch>, |kernel, work| {
    stages::find_hostport(kernel, work)
});
stage!(stage_try_port_from_outside(attempt: u32) -> Decision<bool>, |kernel, work, attempt| {
    stages::try_port_from_outside(kernel, work, attempt)
});
stage!(stage_find_hostport_from_pod() -> Decision<HostportMatch>, |kernel, work| {
    stages::find_hostport_from_pod(kernel, work)
});
stage!(stage_try_port_from_pod(attempt: u32) -> Decision<bool>, |kernel, work, attempt| {
    stages::try_port_from_pod(kernel, work, attempt)
});
stage!(stage_check_fit() -> Decision<Fit>, |kernel, work| {
    stages::check_fit(kernel, work)
});
stage!(stage_find_forwarded_reply() -> bool, |kernel, work| {
    stages::find_forwarded_reply(kernel, work)
});
stage!(stage_redirect_to_pod() -> Verdict, |kernel, work| {
    stages::redirect_to_pod(kernel, work)
});
stage!(stage_bypass_from_pod() -> Verdict, |kernel, work| {
    stages::bypass_from_pod(kernel, work)
});
stage!(stage_find_bypass_translation(uplink: u32) -> bool, |kernel, work, uplink| {
    stages::find_bypass_translation(kernel, work, uplink)
});
stage!(stage_forward_to_pod() -> Verdict, |kernel, work| {
    stages::forward_to_pod(kernel, work)
});
stage!(stage_check_exit() -> Decision<()>, |kernel, work| {
    stages::check_exit(kernel, work)
});
stage!(stage_advance_clock_hand() -> (), |kernel, work| {
    if let Some(hand) = maps::hand() {
        stages::advance_clock_hand(kernel, work, hand);
    }
});
stage!(stage_evict(lack: Lack) -> bool, |kernel, work, lack| {
    match maps::hand() {
        Some(hand) => stages::evict(kernel, work, hand, lack),
        None => false,
    }
});
stage!(stage_translate() -> Decision<()>, |kernel, work| {
    stages::translate(kernel, work)
});
stage!(stage_translate_quote() -> Decision<()>, |kernel, work| {
    stages::translate_quote(kernel, work)
});
stage!(stage_translate_error(hook: Hook) -> Decision<()>, |kernel, work, hook| {
    stages::translate_error(kernel, work, hook)
});
stage!(new stage_translate_received() -> Decision<()>, |kernel, work| {
    stages::translate_received(kernel, work)
});
stage!(new stage_translate_received_quote() -> Decision<()>, |kernel, work| {
    stages::translate_quote(kernel, work)
});
stage!(new stage_translate_received_error() -> Decision<()>, |kernel, work| {
    stages::translate_error(kernel, work, Hook::FromPod)
});
/// Not by the macro: it needs no scratch memory.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn stage_apply_cache_hit(skb: *mut __sk_buff, index: u64, bytes: u64) -> u64 {
    let kernel = &mut Kernel::in_place(skb);
    kernel.touch_context();
    let hit = CacheHit {
        index: u32::from_code(index),
        bytes: u32::from_code(bytes),
    };
    stages::apply_cache_hit(kernel, &mut PerCpuScratch, hit).code()
}

stage!(stage_cache_verdict(hook: Hook, number: u64) -> (), |kernel, work, hook, number| {
    stages::cache_verdict(kernel, work, hook, number);
});
stage!(stage_count_and_cache(number: u64) -> (), |kernel, work, number| {
    stages::count_and_cache(kernel, work, number);
});
stage!(stage_report_delivered() -> (), |kernel, work| {
    stages::report_delivered(kernel, work);
});
stage!(stage_propagate(index: u32) -> (), |kernel, work, index| {
    stages::propagate(kernel, work, index);
});
stage!(stage_count(direction: Direction, verdict: Verdict) -> (), |kernel, work, direction, verdict| {
    stages::count(kernel, work, direction, verdict);
});

/// Access to this CPU's scratch memory.
pub(crate) struct PerCpuScratch;

impl ScratchProvider for PerCpuScratch {
    #[inline(always)]
    fn work(&mut self) -> Option<&mut Work> {
        maps::work(Scratch::Packet)
    }
}

/// The stages of one packet.
pub(crate) struct Stages {
    skb: *mut __sk_buff,
}

impl Stages {
    /// Returns the stages of the packet that a program was called with.
    #[inline(always)]
    pub(crate) const fn new(skb: *mut __sk_buff) -> Self {
        Self { skb }
    }
}

impl HookStages for Stages {
    #[inline(always)]
    fn parse_pod(&mut self) -> Decision<Content> {
        Code::from_code(stage_parse_pod(self.skb))
    }

    #[inline(always)]
    fn identify_pod(&mut self) -> u32 {
        Code::from_code(stage_identify_pod(self.skb))
    }

    #[inline(always)]
    fn check_received_policy(&mut self) -> Decision<()> {
        Code::from_code(stage_check_received_policy(self.skb))
    }

    #[inline(always)]
    fn check_duplicate(&mut self) -> Decision<()> {
        Code::from_code(stage_check_duplicate(self.skb))
    }

    #[inline(always)]
    fn check_received(&mut self) -> Decision<()> {
        Code::from_code(stage_check_received(self.skb))
    }

    #[inline(always)]
    fn check_entering(&mut self) -> Decision<()> {
        Code::from_code(stage_check_entering(self.skb))
    }

    #[inline(always)]
    fn parse_received(&mut self) -> Content {
        Code::from_code(stage_parse_received(self.skb))
    }

    #[inline(always)]
    fn parse_uplink(&mut self) -> Decision<Content> {
        Code::from_code(stage_parse_uplink(self.skb))
    }

    #[inline(always)]
    fn parse_entering(&mut self) -> Decision<Content> {
        Code::from_code(stage_parse_entering(self.skb))
    }

    #[inline(always)]
    fn check_sender(&mut self, content: Content) -> Decision<bool> {
        Code::from_code(stage_check_sender(self.skb, content.code()))
    }

    #[inline(always)]
    fn find_datagram(&mut self, hook: Hook) -> Decision<Content> {
        Code::from_code(stage_find_datagram(self.skb, hook.code()))
    }

    #[inline(always)]
    fn update_datagram(&mut self, has_order: bool) -> Decision<()> {
        Code::from_code(stage_update_datagram(self.skb, has_order.code()))
    }

    #[inline(always)]
    fn write_datagram(&mut self, hook: Hook) -> Content {
        Code::from_code(stage_write_datagram(self.skb, hook.code()))
    }

    #[inline(always)]
    fn hold_fragment(&mut self) -> bool {
        Code::from_code(stage_hold_fragment(self.skb))
    }

    #[inline(always)]
    fn release_fragment(&mut self, place: u32) {
        stage_release_fragment(self.skb, place.code());
    }

    #[inline(always)]
    fn identify_fragment(&mut self, is_translated: bool) -> Decision<()> {
        Code::from_code(stage_identify_fragment(self.skb, is_translated.code()))
    }

    #[inline(always)]
    fn is_tagged(&self) -> bool {
        Kernel::new(self.skb).is_tagged()
    }

    #[inline(always)]
    fn charge(&mut self, direction: Direction) -> Decision<()> {
        Code::from_code(stage_charge(self.skb, direction.code()))
    }

    #[inline(always)]
    fn charge_receiver(&mut self) -> Decision<()> {
        Code::from_code(stage_charge_receiver(self.skb))
    }

    #[inline(always)]
    fn check_policy(&mut self) -> Decision<()> {
        Code::from_code(stage_check_policy(self.skb))
    }

    #[inline(always)]
    fn find_flow(&mut self, hook: Hook) -> bool {
        Code::from_code(stage_find_flow(self.skb, hook.code()))
    }

    #[inline(always)]
    fn find_quoted_flow(&mut self, hook: Hook) -> bool {
        Code::from_code(stage_find_quoted_flow(self.skb, hook.code()))
    }

    #[inline(always)]
    fn check_quoted_hostport(&mut self) -> Decision<()> {
        Code::from_code(stage_check_quoted_hostport(self.skb))
    }

    #[inline(always)]
    fn origin(&mut self) -> Decision<Origin> {
        Code::from_code(stage_origin(self.skb))
    }

    #[inline(always)]
    fn choose_source(&mut self) -> Decision<()> {
        Code::from_code(stage_choose_source(self.skb))
    }

    #[inline(always)]
    fn keep_node_address(&mut self) {
        stage_keep_node_address(self.skb);
    }

    #[inline(always)]
    fn track(&mut self) -> Decision<()> {
        Code::from_code(stage_track(self.skb))
    }

    #[inline(always)]
    fn try_port(&mut self, attempt: u32) -> Decision<bool> {
        Code::from_code(stage_try_port(self.skb, attempt.code()))
    }

    #[inline(always)]
    fn check_outside_source(&mut self) -> Decision<()> {
        Code::from_code(stage_check_outside_source(self.skb))
    }

    #[inline(always)]
    fn find_hostport(&mut self) -> Decision<HostportMatch> {
        Code::from_code(stage_find_hostport(self.skb))
    }

    #[inline(always)]
    fn try_port_from_outside(&mut self, attempt: u32) -> Decision<bool> {
        Code::from_code(stage_try_port_from_outside(self.skb, attempt.code()))
    }

    #[inline(always)]
    fn find_hostport_from_pod(&mut self) -> Decision<HostportMatch> {
        Code::from_code(stage_find_hostport_from_pod(self.skb))
    }

    #[inline(always)]
    fn try_port_from_pod(&mut self, attempt: u32) -> Decision<bool> {
        Code::from_code(stage_try_port_from_pod(self.skb, attempt.code()))
    }

    #[inline(always)]
    fn check_fit(&mut self) -> Decision<Fit> {
        Code::from_code(stage_check_fit(self.skb))
    }

    #[inline(always)]
    fn find_forwarded_reply(&mut self) -> bool {
        Code::from_code(stage_find_forwarded_reply(self.skb))
    }

    #[inline(always)]
    fn redirect_to_pod(&mut self) -> Verdict {
        Code::from_code(stage_redirect_to_pod(self.skb))
    }

    #[inline(always)]
    fn check_exit(&mut self) -> Decision<()> {
        Code::from_code(stage_check_exit(self.skb))
    }

    #[inline(always)]
    fn advance_clock_hand(&mut self) {
        stage_advance_clock_hand(self.skb);
    }

    #[inline(always)]
    fn evict(&mut self, lack: Lack) -> bool {
        Code::from_code(stage_evict(self.skb, lack.code()))
    }

    #[inline(always)]
    fn bypass_from_pod(&mut self) -> Verdict {
        Code::from_code(stage_bypass_from_pod(self.skb))
    }

    #[inline(always)]
    fn find_bypass_translation(&mut self, uplink: u32) -> bool {
        Code::from_code(stage_find_bypass_translation(self.skb, uplink.code()))
    }

    #[inline(always)]
    fn forward_to_pod(&mut self) -> Verdict {
        Code::from_code(stage_forward_to_pod(self.skb))
    }

    #[inline(always)]
    fn translate(&mut self) -> Decision<()> {
        Code::from_code(stage_translate(self.skb))
    }

    #[inline(always)]
    fn translate_quote(&mut self) -> Decision<()> {
        Code::from_code(stage_translate_quote(self.skb))
    }

    #[inline(always)]
    fn translate_error(&mut self, hook: Hook) -> Decision<()> {
        Code::from_code(stage_translate_error(self.skb, hook.code()))
    }

    #[inline(always)]
    fn translate_received(&mut self) -> Decision<()> {
        Code::from_code(stage_translate_received(self.skb))
    }

    #[inline(always)]
    fn translate_received_quote(&mut self) -> Decision<()> {
        Code::from_code(stage_translate_received_quote(self.skb))
    }

    #[inline(always)]
    fn translate_received_error(&mut self) -> Decision<()> {
        Code::from_code(stage_translate_received_error(self.skb))
    }

    #[inline(always)]
    fn lookup_cache(&mut self, hook: Hook) -> CacheLookup {
        let kernel = &mut Kernel::in_place(self.skb);
        stages::lookup_cache(kernel, &mut PerCpuScratch, kernel.hook(), hook)
    }

    #[inline(always)]
    fn apply_cache_hit(&mut self, hit: CacheHit) -> Verdict {
        let (index, bytes) = (hit.index.code(), hit.bytes.code());
        Code::from_code(stage_apply_cache_hit(self.skb, index, bytes))
    }

    #[inline(always)]
    fn cache_verdict(&mut self, hook: Hook, verdict: Verdict) {
        stage_cache_verdict(self.skb, hook.code(), verdict.code());
    }

    #[inline(always)]
    fn count_and_cache(&mut self, verdict: Verdict) {
        stage_count_and_cache(self.skb, verdict.code());
    }

    #[inline(always)]
    fn propagate(&mut self, index: u32) {
        stage_propagate(self.skb, index.code());
    }

    #[inline(always)]
    fn report_delivered(&mut self) {
        stage_report_delivered(self.skb);
    }

    #[inline(always)]
    fn count(&mut self, direction: Direction, verdict: Verdict) {
        stage_count(self.skb, direction.code(), verdict.code());
    }
}
