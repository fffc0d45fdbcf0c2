//! Simulator: runs the stages of the datapath in user space, for tests.
//!
//! Ordinary Rust maps replace the BPF maps and helpers, including their return values for missing
//! entries. The simulator makes no decision about packets itself.

pub mod arbitrary;
pub mod example;
mod flow_cache;
mod fragment_store;
pub mod frame;
mod lookups;
mod node;
mod place;
mod shape;
mod world;

use abi::{Address, Direction, Swept, Tuple};

use crate::eviction::ClockHand;
use crate::flow::FlowState;
use crate::flow_cache::{CacheHit, CacheLookup};
use crate::hook_stages::HookStages;
use crate::hooks;
use crate::node::Node as _;
use crate::outcome::{Code as _, Decision, Verdict};
use crate::stages;
use crate::sweep::{Sweep, remove_dead};
use crate::work::{Content, Fit, Hook, HostportMatch, Lack, Origin, Work};
use crate::xdp_prefilter;

pub use flow_cache::{JIFFY, Memory};
pub use fragment_store::Ring;
pub use lookups::{EgressRoute, KernelLookups};
pub use place::Place;
pub use shape::SharedBucket;
pub use world::{Tables, World};

/// A simulated node with one CPU.
#[derive(Clone, Debug, Default)]
pub struct Simulator {
    /// Tables and kernel state of the node.
    pub world: World,
    work: Work,
    hand: ClockHand,
    interface: u32,
}

impl Simulator {
    /// Returns a node with these tables.
    pub fn new(world: World) -> Self {
        Self {
            world,
            ..Self::default()
        }
    }

    /// Runs a hook on a packet; returns the verdict, and the packet as the hook left it.
    pub fn run(&mut self, place: Place, interface: u32, packet: &[u8]) -> (Verdict, Vec<u8>) {
        self.world.memory.skb_tag = 0;
        self.run_next(place, interface, packet)
    }

    /// Runs the next hook on the packet of the last run: as [`Simulator::run`], but keeps the
    /// packet's `skb_tag`.
    pub fn run_next(&mut self, place: Place, interface: u32, packet: &[u8]) -> (Verdict, Vec<u8>) {
        self.interface = interface;
        self.world.packet = packet.to_vec();
        self.world.notice_changes();
        (self.world.congested, self.world.departure) = (false, None);
        self.world.restored = None;
        let verdict = match place {
            Place::FromPod => self.run_from_pod(),
            Place::ToPod => hooks::to_pod(self),
            Place::UplinkIn => hooks::uplink_in(self),
            Place::UplinkOut => hooks::uplink_out(self),
        };
        (verdict, std::mem::take(&mut self.world.packet))
    }

    /// Puts a packet at a hook of an interface, for a caller that calls the stages itself. Its
    /// `skb_tag` is kept.
    ///
    /// The node's tables must not have changed since the first packet: cached rows would be stale.
    pub fn begin(&mut self, interface: u32, packet: Vec<u8>) {
        self.interface = interface;
        self.world.packet = packet;
        (self.world.congested, self.world.departure) = (false, None);
        self.world.restored = None;
    }

    /// Returns what the stages have found out about the current packet.
    pub const fn work(&self) -> &Work {
        &self.work
    }

    /// Runs `from_pod`; for a high-traffic pod, the TCX fast path first.
    fn run_from_pod(&mut self) -> Verdict {
        if self.world.memory.tcx_fast_path {
            let (world, scratch) = (&mut self.world, &mut &mut self.work);
            if let Some(verdict) = stages::find_cached_redirect(world, scratch, self.interface) {
                self.world.memory.hits += 1;
                return verdict;
            }
        }
        hooks::from_pod(self)
    }

    /// Returns the next hop of a packet with the verdict [`Verdict::RedirectNeigh`].
    pub const fn next_hop(&self) -> Address {
        self.work.hop
    }

    /// Runs the XDP prefilter on a received frame.
    pub fn xdp_prefilter(&mut self, interface: u32, frame: &[u8]) -> Verdict {
        let frame = World {
            packet: frame.to_vec(),
            ..World::default()
        };
        xdp_prefilter::check(&frame, &mut self.world, interface)
            .map_err(|dropped| dropped.reason)
            .into()
    }

    /// Removes expired flows, as the agent's periodic sweep does.
    pub fn sweep(&mut self) -> Swept {
        let mut swept = Swept::default();
        let keys: Vec<Tuple> = self.world.flows.keys().copied().collect();
        for key in keys {
            let Some(flow) = self.world.flows.get(&key).copied() else {
                continue;
            };
            let now = self.world.now();
            let mut opposite = Tuple::default();
            match remove_dead(&mut self.world, &key, &flow, &mut opposite, now) {
                Sweep::Kept | Sweep::Removed(FlowState::Alive) => swept.kept += 1,
                Sweep::Removed(FlowState::TimedOut) => swept.timed_out += 1,
                Sweep::Removed(FlowState::Stale) => swept.stale += 1,
                Sweep::Removed(FlowState::AddressGone) => swept.address_gone += 1,
            }
        }
        self.world.sweep_held();
        swept
    }
}

impl HookStages for Simulator {
    fn parse_pod(&mut self) -> Decision<Content> {
        stages::parse_pod(&mut self.world, &mut self.work, self.interface)
    }

    fn identify_pod(&mut self) -> u32 {
        stages::identify_pod(&mut self.world, &mut self.work, self.interface)
    }

    fn check_received_policy(&mut self) -> Decision<()> {
        stages::check_received_policy(&mut self.world, &mut self.work)
    }

    fn check_duplicate(&mut self) -> Decision<()> {
        stages::check_duplicate(&mut self.world, &mut self.work)
    }

    fn check_received(&mut self) -> Decision<()> {
        stages::check_received(&mut self.world, &mut self.work)
    }

    fn check_entering(&mut self) -> Decision<()> {
        stages::check_entering(&mut self.world, &mut self.work)
    }

    fn parse_received(&mut self) -> Content {
        stages::parse_received(&mut self.world, &mut self.work)
    }

    fn parse_uplink(&mut self) -> Decision<Content> {
        stages::parse_uplink(&mut self.world, &mut self.work, self.interface)
    }

    fn parse_entering(&mut self) -> Decision<Content> {
        stages::parse_entering(&mut self.world, &mut self.work, self.interface)
    }

    fn check_sender(&mut self, content: Content) -> Decision<bool> {
        stages::check_sender(&mut self.world, &mut self.work, content)
    }

    fn find_datagram(&mut self, hook: Hook) -> Decision<Content> {
        stages::find_datagram(&mut self.world, &mut self.work, hook)
    }

    fn update_datagram(&mut self, has_order: bool) -> Decision<()> {
        stages::update_datagram(&mut self.work, has_order)
    }

    fn write_datagram(&mut self, hook: Hook) -> Content {
        stages::write_datagram(&mut self.world, &mut self.work, hook)
    }

    fn hold_fragment(&mut self) -> bool {
        stages::hold_fragment(&mut self.world, &mut self.work)
    }

    fn release_fragment(&mut self, place: u32) {
        stages::release_fragment(&mut self.world, &mut self.work, place);
    }

    fn identify_fragment(&mut self, is_translated: bool) -> Decision<()> {
        stages::identify_fragment(&mut self.world, &mut self.work, is_translated)
    }

    fn is_tagged(&self) -> bool {
        self.world.tagged
    }

    fn charge(&mut self, direction: Direction) -> Decision<()> {
        stages::charge(&mut self.world, &mut self.work, direction)
    }

    fn charge_receiver(&mut self) -> Decision<()> {
        stages::charge_receiver(&mut self.world, &mut self.work)
    }

    fn check_policy(&mut self) -> Decision<()> {
        stages::check_policy(&mut self.world, &mut self.work)
    }

    fn find_flow(&mut self, hook: Hook) -> bool {
        stages::find_flow(&mut self.world, &mut self.work, hook)
    }

    fn find_quoted_flow(&mut self, hook: Hook) -> bool {
        stages::find_quoted_flow(&mut self.world, &mut self.work, hook)
    }

    fn check_quoted_hostport(&mut self) -> Decision<()> {
        stages::check_quoted_hostport(&mut self.world, &mut self.work)
    }

    fn origin(&mut self) -> Decision<Origin> {
        stages::origin(&mut self.world, &mut self.work)
    }

    fn choose_source(&mut self) -> Decision<()> {
        stages::choose_source(&mut self.world, &mut self.work)
    }

    fn keep_node_address(&mut self) {
        stages::keep_node_address(&mut self.work);
    }

    fn track(&mut self) -> Decision<()> {
        stages::track(&mut self.world, &mut self.work)
    }

    fn try_port(&mut self, attempt: u32) -> Decision<bool> {
        stages::try_port(&mut self.world, &mut self.work, attempt)
    }

    fn check_outside_source(&mut self) -> Decision<()> {
        stages::check_outside_source(&mut self.world, &mut self.work)
    }

    fn find_hostport(&mut self) -> Decision<HostportMatch> {
        stages::find_hostport(&mut self.world, &mut self.work)
    }

    fn try_port_from_outside(&mut self, attempt: u32) -> Decision<bool> {
        stages::try_port_from_outside(&mut self.world, &mut self.work, attempt)
    }

    fn find_hostport_from_pod(&mut self) -> Decision<HostportMatch> {
        stages::find_hostport_from_pod(&mut self.world, &mut self.work)
    }

    fn try_port_from_pod(&mut self, attempt: u32) -> Decision<bool> {
        stages::try_port_from_pod(&mut self.world, &mut self.work, attempt)
    }

    fn check_fit(&mut self) -> Decision<Fit> {
        stages::check_fit(&mut self.world, &mut self.work)
    }

    fn find_forwarded_reply(&mut self) -> bool {
        stages::find_forwarded_reply(&mut self.world, &mut self.work)
    }

    fn redirect_to_pod(&mut self) -> Verdict {
        stages::redirect_to_pod(&mut self.world, &mut self.work)
    }

    fn bypass_from_pod(&mut self) -> Verdict {
        stages::bypass_from_pod(&mut self.world, &mut self.work)
    }

    fn report_delivered(&mut self) {
        stages::report_delivered(&mut self.world, &mut self.work);
    }

    fn find_bypass_translation(&mut self, uplink: u32) -> bool {
        stages::find_bypass_translation(&mut self.world, &mut self.work, uplink)
    }

    fn forward_to_pod(&mut self) -> Verdict {
        stages::forward_to_pod(&mut self.world, &mut self.work)
    }

    fn check_exit(&mut self) -> Decision<()> {
        stages::check_exit(&mut self.world, &mut self.work)
    }

    fn advance_clock_hand(&mut self) {
        stages::advance_clock_hand(&mut self.world, &mut self.work, &mut self.hand);
    }

    fn evict(&mut self, lack: Lack) -> bool {
        stages::evict(&mut self.world, &mut self.work, &mut self.hand, lack)
    }

    fn translate(&mut self) -> Decision<()> {
        stages::translate(&mut self.world, &mut self.work)
    }

    fn translate_quote(&mut self) -> Decision<()> {
        stages::translate_quote(&mut self.world, &mut self.work)
    }

    fn translate_error(&mut self, hook: Hook) -> Decision<()> {
        stages::translate_error(&mut self.world, &mut self.work, hook)
    }

    fn translate_received(&mut self) -> Decision<()> {
        stages::translate_received(&mut self.world, &mut self.work)
    }

    fn translate_received_quote(&mut self) -> Decision<()> {
        stages::translate_quote(&mut self.world, &mut self.work)
    }

    fn translate_received_error(&mut self) -> Decision<()> {
        stages::translate_error(&mut self.world, &mut self.work, Hook::FromPod)
    }

    fn lookup_cache(&mut self, hook: Hook) -> CacheLookup {
        let found =
            stages::lookup_cache(&mut self.world, &mut &mut self.work, self.interface, hook);
        self.world.memory.hits += u64::from(found != CacheLookup::Miss);
        found
    }

    fn apply_cache_hit(&mut self, hit: CacheHit) -> Verdict {
        stages::apply_cache_hit(&mut self.world, &mut &mut self.work, hit)
    }

    fn cache_verdict(&mut self, hook: Hook, verdict: Verdict) {
        stages::cache_verdict(&mut self.world, &mut self.work, hook, verdict.code());
    }

    fn count_and_cache(&mut self, verdict: Verdict) {
        stages::count_and_cache(&mut self.world, &mut self.work, verdict.code());
    }

    fn propagate(&mut self, index: u32) {
        stages::propagate(&mut self.world, &mut self.work, index);
    }

    fn count(&mut self, direction: Direction, verdict: Verdict) {
        stages::count(&mut self.world, &mut self.work, direction, verdict);
    }
}

#[cfg(test)]
mod clashes;
#[cfg(test)]
mod foreign_nat;
#[cfg(test)]
mod tests;
