//! A node of ordinary maps: the same stages as in the kernel, run in a test.
//!
//! Stands for the maps and helpers that the BPF object has in their place, down to what they return for what is not
//! there. Judges nothing.

pub mod example;
pub mod frame;
mod node;
mod shape;
mod flow_cache;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use abi::{
    Address, Counters, Direction, DropCount, DropReason, Egress, Endpoint, Flow, FragmentKey,
    FragmentPorts, Hostport, HostportKey, Interface, Limit, Network, ShapedSubnetKey, Pod, PrefixKey,
    Settings, Shaped, Swept, Tuple, ClockEntry, Uplink,
};

use crate::flow::FlowState;
use crate::xdp_prefilter;
use crate::hooks;
use crate::node::{Node as _, Socket};
use crate::outcome::{Code as _, Decision, Verdict};
use crate::eviction::ClockHand;
use crate::flow_cache::{CacheLookup, CacheHit};
use crate::stages;
use crate::sweep::{Sweep, forget};
use crate::work::{Content, HostportMatch, Origin, Hook, Work};

pub use shape::SharedBucket;
pub use flow_cache::{Memory, JIFFY};

/// The tables and surroundings of a node, and the packet under way.
#[derive(Clone, Debug)]
pub struct World {
    /// The packet under way.
    pub packet: Vec<u8>,
    /// Seconds of the clock.
    pub now: u32,
    /// Where the next random number comes from.
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
    /// How many entries the flow table holds.
    pub flow_capacity: usize,
    /// How many flows each pod has.
    pub live: BTreeMap<u32, i64>,
    /// Flows that wait for their turn.
    pub turns: VecDeque<ClockEntry>,
    /// Egress addresses, by the interface index of the bridge.
    pub egress: BTreeMap<u32, Egress>,
    /// The fragment table.
    pub fragments: BTreeMap<FragmentKey, FragmentPorts>,
    /// The node's sockets, by the tuple of packets that reach them.
    pub sockets: BTreeMap<Tuple, Socket>,
    /// Next hops that are not the destination itself.
    pub next_hops: BTreeMap<Address, Address>,
    /// The links that packets leave by, by destination.
    pub egress_routes: BTreeMap<Address, u32>,
    /// What all of those ways take, in bytes, where the kernel says so; else 0.
    pub route_mtu: u32,
    /// MTUs of interfaces in bytes; any packet fits the others.
    pub mtus: BTreeMap<u32, u32>,
    /// Nanoseconds of the clock that limits go by.
    pub clock: u64,
    /// Whether the packet under way belongs to a VLAN.
    pub tagged: bool,
    /// What others have marked the packet under way with.
    pub mark: u32,
    /// What the flow of the packet under way hashes to.
    pub flow_hash: u32,
    /// How the packet under way will be cut up.
    pub segments: (u32, u32),
    /// Whether the packet under way was marked as having met congestion.
    pub congested: bool,
    /// When the packet under way is to depart.
    pub departure: Option<u64>,
    /// Limits by slot and direction.
    pub limits: BTreeMap<(u32, Direction), Limit>,
    /// With whom limits count: prefixes and their lengths as in [`abi::maps::PEERS`], with the pods' generations.
    pub peers: BTreeMap<(ShapedSubnetKey, u32), u32>,
    /// Buckets by slot and direction.
    pub buckets: BTreeMap<(u32, Direction), Arc<SharedBucket>>,
    /// Counters of limited traffic by slot and direction.
    pub shaped: BTreeMap<(u32, Direction), Shaped>,
    /// Pod counters by slot and direction.
    pub counters: BTreeMap<(u32, Direction), Counters>,
    /// Drop counters.
    pub drops: BTreeMap<DropReason, DropCount>,
    /// What the one CPU remembers of packets under way, and what that rests on.
    pub memory: Memory,
}

impl Default for World {
    fn default() -> Self {
        Self {
            packet: Vec::new(),
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
            sockets: BTreeMap::new(),
            next_hops: BTreeMap::new(),
            egress_routes: BTreeMap::new(),
            route_mtu: 0,
            mtus: BTreeMap::new(),
            clock: 1_000_000_000_000,
            tagged: false,
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

/// Where a packet is shown to the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// [`hooks::from_pod`].
    FromPod,
    /// [`hooks::to_pod`].
    ToPod,
    /// [`hooks::uplink_in`].
    UplinkIn,
    /// [`hooks::uplink_out`].
    UplinkOut,
}

/// A node that packets can be sent through.
#[derive(Clone, Debug, Default)]
pub struct Simulator {
    /// The node.
    pub world: World,
    work: Work,
    hand: ClockHand,
    interface: u32,
}

impl Simulator {
    /// A node with these tables.
    pub fn new(world: World) -> Self {
        Self {
            world,
            ..Self::default()
        }
    }

    /// Shows a packet on an interface to the datapath: its verdict, and the packet afterwards.
    pub fn run(&mut self, place: Place, interface: u32, packet: &[u8]) -> (Verdict, Vec<u8>) {
        self.world.memory.skb_tag = 0;
        self.go_on(place, interface, packet)
    }

    /// As [`Simulator::run`], for the packet that was shown to it last, with the label that it has.
    pub fn go_on(&mut self, place: Place, interface: u32, packet: &[u8]) -> (Verdict, Vec<u8>) {
        self.interface = interface;
        self.world.packet = packet.to_vec();
        self.world.notice_changes();
        (self.world.congested, self.world.departure) = (false, None);
        let verdict = match place {
            Place::FromPod => self.sent_by_pod(),
            Place::ToPod => hooks::to_pod(self),
            Place::UplinkIn => hooks::uplink_in(self),
            Place::UplinkOut => hooks::uplink_out(self),
        };
        (verdict, std::mem::take(&mut self.world.packet))
    }

    /// What a pod sends; a busy one has the short way in front of the long one.
    fn sent_by_pod(&mut self) -> Verdict {
        if self.world.memory.tcx_fast_path {
            let (world, scratch) = (&mut self.world, &mut &mut self.work);
            if let Some(verdict) = stages::find_cached_redirect(world, scratch, self.interface) {
                self.world.memory.hits += 1;
                return verdict;
            }
        }
        hooks::from_pod(self)
    }

    /// Where a packet goes whose verdict is [`Verdict::RedirectNeigh`].
    pub const fn next_hop(&self) -> Address {
        self.work.hop
    }

    /// Shows a frame that a driver has received to the guard.
    pub fn xdp_prefilter(&mut self, interface: u32, frame: &[u8]) -> Verdict {
        let frame = World {
            packet: frame.to_vec(),
            ..World::default()
        };
        xdp_prefilter::check(&frame, &mut self.world, interface).into()
    }

    /// Forgets dead flows.
    pub fn sweep(&mut self) -> Swept {
        let mut swept = Swept::default();
        let keys: Vec<Tuple> = self.world.flows.keys().copied().collect();
        for key in keys {
            let Some(flow) = self.world.flows.get(&key).copied() else {
                continue;
            };
            let now = self.world.now();
            let mut opposite = Tuple::default();
            match forget(&mut self.world, &key, &flow, &mut opposite, now) {
                Sweep::Kept | Sweep::Removed(FlowState::Alive) => swept.kept += 1,
                Sweep::Removed(FlowState::TimedOut) => swept.timed_out += 1,
                Sweep::Removed(FlowState::Stale) => swept.stale += 1,
                Sweep::Removed(FlowState::AddressGone) => swept.address_gone += 1,
            }
        }
        swept
    }
}

impl hooks::HookStages for Simulator {
    fn parse_pod(&mut self) -> Decision<Content> {
        stages::parse_pod(&mut self.world, &mut self.work, self.interface)
    }

    fn identify_pod(&mut self) -> bool {
        stages::identify_pod(&mut self.world, &mut self.work, self.interface)
    }

    fn check_duplicate(&mut self) -> Decision<()> {
        stages::check_duplicate(&mut self.world, &mut self.work)
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

    fn try_port(&mut self, attempt: u32) -> Decision<bool> {
        stages::try_port(&mut self.world, &mut self.work, attempt)
    }

    fn check_outsider(&mut self) -> Decision<()> {
        stages::check_outsider(&mut self.world, &mut self.work)
    }

    fn find_hostport(&mut self) -> Decision<HostportMatch> {
        stages::find_hostport(&mut self.world, &mut self.work)
    }

    fn open_hostport(&mut self) -> Decision<()> {
        stages::open_hostport(&mut self.world, &mut self.work)
    }

    fn open_direct(&mut self) -> Decision<bool> {
        stages::open_direct(&mut self.world, &mut self.work)
    }

    fn find_hostport_from_pod(&mut self) -> Decision<HostportMatch> {
        stages::find_hostport_from_pod(&mut self.world, &mut self.work)
    }

    fn try_port_from_pod(&mut self, attempt: u32) -> Decision<bool> {
        stages::try_port_from_pod(&mut self.world, &mut self.work, attempt)
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

    fn evict(&mut self) -> bool {
        stages::evict(&mut self.world, &mut self.work, &mut self.hand)
    }

    fn translate(&mut self) -> Decision<()> {
        stages::translate(&mut self.world, &mut self.work)
    }

    fn translate_quoted(&mut self, hook: Hook) -> Decision<()> {
        stages::translate_quoted(&mut self.world, &mut self.work, hook)
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
mod tests;
