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

use crate::eviction::Search;
use crate::flow::FlowState;
use crate::flow_cache::{CacheHit, CacheLookup};
use crate::hook_stages::HookStages;
use crate::hooks;
use crate::network_policy::has_policies;
use crate::node::Node as _;
use crate::outcome::{Decision, Verdict};
use crate::stages;
use crate::sweep::{Sweep, remove_dead};
use crate::work::{Content, Fit, Hook, HostportMatch, Origin, Work};
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
        self.world.interface = interface;
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
        self.world.interface = interface;
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
            let interface = self.world.interface;
            let (world, scratch) = (&mut self.world, &mut &mut self.work);
            if let Some(verdict) = stages::find_cached_redirect(world, scratch, interface) {
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

macro_rules! implement {
    ($($access:ident $name:ident($($argument:ident: $type:ty),*) -> $output:ty;)+) => {
        impl HookStages for Simulator {
            $(
                fn $name(&mut self $(, $argument: $type)*) -> $output {
                    stages::$name(&mut self.world, &mut self.work $(, $argument)*)
                }
            )+

            fn is_tagged(&self) -> bool {
                self.world.tagged
            }

            fn has_policies(&self) -> bool {
                has_policies(&self.world)
            }

            fn lookup_cache(&mut self, hook: Hook) -> CacheLookup {
                let (interface, mut scratch) = (self.world.interface, &mut self.work);
                let found = stages::lookup_cache(&mut self.world, &mut scratch, interface, hook);
                self.world.memory.hits += u64::from(found != CacheLookup::Miss);
                found
            }

            fn apply_cache_hit(&mut self, hit: CacheHit) -> Verdict {
                stages::apply_cache_hit(&mut self.world, &mut &mut self.work, hit)
            }
        }
    };
}

for_each_stage!(implement);

#[cfg(test)]
mod clashes;
#[cfg(test)]
mod foreign_nat;
#[cfg(test)]
mod tests;
