//! Simulator: runs the stages of the datapath in user space, for tests.
//!
//! Ordinary Rust maps replace the BPF maps and helpers, including their return values for missing
//! entries. The simulator makes no decision about packets itself.

pub mod arbitrary;
pub mod example;
mod flow_cache;
mod fragment_store;
pub mod frame;
mod node;
mod place;
mod shape;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use abi::{
    Address, ClockEntry, Counters, Datagram, Direction, DropCount, DropReason, Egress, Endpoint,
    Flow, FragmentKey, HeldHeader, HeldKey, Hostport, HostportKey, Interface, Limit, Mac, Network,
    Pod, PrefixKey, Settings, Shaped, ShapedSubnetKey, Swept, Tuple, Uplink,
};

use crate::eviction::ClockHand;
use crate::flow::FlowState;
use crate::flow_cache::{CacheHit, CacheLookup};
use crate::hook_stages::HookStages;
use crate::hooks;
use crate::node::{Node as _, Socket};
use crate::outcome::{Code as _, Decision, Verdict};
use crate::stages;
use crate::sweep::{Sweep, remove_dead};
use crate::work::{Content, Fit, Hook, HostportMatch, Lack, Origin, Work};
use crate::xdp_prefilter;

pub use flow_cache::{JIFFY, Memory};
pub use fragment_store::Ring;
pub use place::Place;
pub use shape::SharedBucket;

/// The tables of a node, its kernel state as far as the datapath reads it, and the current packet.
#[derive(Clone, Debug)]
pub struct World {
    /// The current packet, from its first byte on the interface.
    pub packet: Vec<u8>,
    /// MAC address of the uplink, from which the packet type derives.
    pub mac: Mac,
    /// The clock in seconds, for flows.
    pub now: u32,
    /// State of the random number generator.
    pub random: u32,
    /// The settings table.
    pub settings: Settings,
    /// The pod table, all slots of it.
    pub pods: Vec<Pod>,
    /// The interface table.
    pub interfaces: BTreeMap<u32, Interface>,
    /// The endpoint table.
    pub endpoints: BTreeMap<Address, Endpoint>,
    /// The hostport table.
    pub hostports: BTreeMap<HostportKey, Hostport>,
    /// The network table.
    pub networks: BTreeMap<u32, Network>,
    /// The uplink table.
    pub uplinks: BTreeMap<u32, Uplink>,
    /// The node's own addresses.
    pub locals: BTreeSet<Address>,
    /// The prefix table.
    pub prefixes: BTreeMap<PrefixKey, u32>,
    /// The flow table.
    pub flows: BTreeMap<Tuple, Flow>,
    /// Capacity of the flow table in entries.
    pub flow_capacity: usize,
    /// Number of flows of each account.
    pub live: BTreeMap<u32, i64>,
    /// The eviction clock.
    pub turns: VecDeque<ClockEntry>,
    /// Egress addresses, by the interface index of the bridge.
    pub egress: BTreeMap<u32, Egress>,
    /// The fragment table.
    pub fragments: BTreeMap<FragmentKey, Datagram>,
    /// The rings of the shares.
    pub rings: BTreeMap<u32, Ring>,
    /// Held fragments: header and packet.
    pub held: BTreeMap<HeldKey, (HeldHeader, Vec<u8>)>,
    /// Packets that are sent through the hook again after the current one.
    pub reinjected: Vec<Vec<u8>>,
    /// The held fragment that has replaced the current packet.
    pub restored: Option<Vec<u8>>,
    /// The table of identifications, without free elements.
    pub identifications: BTreeMap<u32, u64>,
    /// The node's sockets, by the tuple of packets that reach them.
    pub sockets: BTreeMap<Tuple, Socket>,
    /// Whether a socket of the node has sent the current packet.
    pub sent_by_socket: bool,
    /// Next hops that are not the destination itself.
    pub next_hops: BTreeMap<Address, Address>,
    /// Egress routes: interface index by destination.
    pub egress_routes: BTreeMap<Address, u32>,
    /// MTU of all egress routes in bytes, where the kernel reports it; 0 otherwise.
    pub route_mtu: u32,
    /// MTUs of interfaces in bytes; any packet fits the others.
    pub mtus: BTreeMap<u32, u32>,
    /// The clock in nanoseconds, for limits.
    pub clock: u64,
    /// Whether the current packet has a VLAN tag.
    pub tagged: bool,
    /// VLAN identifier of that tag.
    pub vlan_id: u32,
    /// Interface index of the link that the current packet has come in by.
    pub ingress_interface: u32,
    /// `skb->mark` of the current packet, set by other software.
    pub mark: u32,
    /// Flow hash of the current packet.
    pub flow_hash: u32,
    /// GSO segmentation of the current packet: number and size of segments.
    pub segments: (u32, u32),
    /// Whether the current packet was marked with ECN Congestion Experienced.
    pub congested: bool,
    /// Departure time of the current packet, in nanoseconds.
    pub departure: Option<u64>,
    /// Limits by slot and direction.
    pub limits: BTreeMap<(u32, Direction), Limit>,
    /// Shaped subnets: prefixes and their lengths as in [`abi::maps::PEERS`], with the pods'
    /// generations.
    pub peers: BTreeMap<(ShapedSubnetKey, u32), u32>,
    /// Buckets by slot and direction.
    pub buckets: BTreeMap<(u32, Direction), Arc<SharedBucket>>,
    /// Counters of limited traffic by slot and direction.
    pub shaped: BTreeMap<(u32, Direction), Shaped>,
    /// Pod counters by slot and direction.
    pub counters: BTreeMap<(u32, Direction), Counters>,
    /// Drop counters.
    pub drops: BTreeMap<DropReason, DropCount>,
    /// Flow cache of the one CPU, and the epochs that it depends on.
    pub memory: Memory,
}

impl Default for World {
    fn default() -> Self {
        Self {
            packet: Vec::new(),
            mac: frame::TO,
            now: 1_000,
            random: 0,
            settings: Settings::default(),
            pods: vec![Pod::default(); abi::maps::PODS_CAPACITY as usize],
            interfaces: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            hostports: BTreeMap::new(),
            networks: BTreeMap::new(),
            uplinks: BTreeMap::new(),
            locals: BTreeSet::new(),
            prefixes: BTreeMap::new(),
            flows: BTreeMap::new(),
            flow_capacity: abi::maps::FLOWS_CAPACITY as usize,
            live: BTreeMap::new(),
            turns: VecDeque::new(),
            egress: BTreeMap::new(),
            fragments: BTreeMap::new(),
            rings: BTreeMap::new(),
            held: BTreeMap::new(),
            reinjected: Vec::new(),
            restored: None,
            identifications: BTreeMap::new(),
            sockets: BTreeMap::new(),
            sent_by_socket: false,
            next_hops: BTreeMap::new(),
            egress_routes: BTreeMap::new(),
            route_mtu: 0,
            mtus: BTreeMap::new(),
            clock: 1_000_000_000_000,
            tagged: false,
            vlan_id: 0,
            ingress_interface: 0,
            mark: 0,
            flow_hash: 0,
            segments: (0, 0),
            congested: false,
            departure: None,
            limits: BTreeMap::new(),
            peers: BTreeMap::new(),
            buckets: BTreeMap::new(),
            shaped: BTreeMap::new(),
            counters: BTreeMap::new(),
            drops: BTreeMap::new(),
            memory: Memory::default(),
        }
    }
}

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
        xdp_prefilter::check(&frame, &mut self.world, interface).into()
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

    fn find_uplink_flow(&mut self, uplink: u32) -> bool {
        stages::find_uplink_flow(&mut self.world, &mut self.work, uplink)
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
