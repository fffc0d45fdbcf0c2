//! The node of an explanation: the simulator over the copied tables, and the facts about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use abi::{ClockEntry, Direction, FlowFlags, maps};
use steps::{DatapathTables, LookupTables};
use verdict::simulator::{Place, SharedBucket, Simulator, Tables, World};

use crate::explanation::{HookRun, HookTrace};
use crate::recorder::Recorder;
use crate::snapshot::{Helpers, LinkFacts, Snapshot};

const SECOND: u64 = 1_000_000_000;
/// Seconds after which the datapath does not hold a fragment any more.
const FRAGMENTS_EXPIRE: u32 = 60;

/// A node whose decisions can be explained.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) simulator: Simulator,
    pub(crate) facts: Snapshot,
}

impl Node {
    /// Makes a node of a snapshot. The first packet of each connection is explained as the slow
    /// path decides it: caches are empty.
    pub fn new(mut snapshot: Snapshot) -> Self {
        let tables = std::mem::take(&mut snapshot.tables);
        let mut world = world(tables, &snapshot.links);
        world.kernel = Some(Arc::new(Helpers(Arc::clone(&snapshot.lookups))));
        Self {
            simulator: Simulator::new(world),
            facts: snapshot,
        }
    }

    pub(crate) const fn world(&self) -> &World {
        &self.simulator.world
    }

    /// Runs a hook on a frame at an interface.
    pub fn run(&mut self, place: Place, interface: u32, frame: Vec<u8>) -> HookTrace {
        let link = self.facts.links.get(&interface);
        self.simulator.world.mac = link.map_or(self.simulator.world.mac, |link| link.mac);
        self.simulator.begin(interface, frame);
        let mut recorder = Recorder::new(&mut self.simulator, &self.facts, place, interface);
        let verdict = match place {
            Place::FromPod => verdict::hooks::from_pod(&mut recorder),
            Place::ToPod => verdict::hooks::to_pod(&mut recorder),
            Place::UplinkIn => verdict::hooks::uplink_in(&mut recorder),
            Place::UplinkOut => verdict::hooks::uplink_out(&mut recorder),
        };
        let record = recorder.finish(verdict);
        let frame = std::mem::take(&mut self.simulator.world.packet);
        let run = HookRun {
            place,
            interface,
            verdict,
        };
        HookTrace {
            run,
            frame,
            steps: record.steps,
            has_flow: record.has_flow,
            depends_on_eviction: record.depends_on_eviction,
        }
    }

    /// Clears what the hooks have written into the packet's metadata: the next frame is a new one.
    pub(crate) fn start_packet(&mut self, is_sent_by_node: bool) {
        let world = &mut self.simulator.world;
        world.memory.skb_tag = 0;
        world.sent_by_socket = is_sent_by_node;
        (world.tagged, world.vlan_id) = (false, 0);
        world.ingress_interface = 0;
    }

    /// Sets the VLAN tag that the kernel has removed from the frame.
    pub(crate) fn set_tag(&mut self, vlan: Option<u32>) {
        let world = &mut self.simulator.world;
        world.tagged = vlan.is_some();
        world.vlan_id = vlan.unwrap_or(0);
    }

    /// Lets so much time pass that no fragment is held any more. Returns whether one was dropped.
    pub(crate) fn expire_fragments(&mut self) -> bool {
        self.simulator.world.now += FRAGMENTS_EXPIRE;
        self.simulator.sweep();
        !self.simulator.world.lost.is_empty()
    }

    /// Sets the link that the packet has come in by, for its next hook.
    pub(crate) fn set_ingress(&mut self, interface: u32) {
        self.simulator.world.ingress_interface = interface;
    }
}

/// Returns the name of a program at a place.
pub(crate) const fn program(place: Place) -> &'static str {
    match place {
        Place::FromPod => maps::programs::FROM_POD,
        Place::ToPod => maps::programs::TO_POD,
        Place::UplinkIn => maps::programs::UPLINK_IN,
        Place::UplinkOut => maps::programs::UPLINK_OUT,
    }
}

macro_rules! simulated {
    ($($map:ident: $key:tt, $value:tt, $lookup:ident, $rows:ident;)*) => {
        /// Returns the tables of the simulator: one for each lookup in the list of maps.
        fn simulated(copied: LookupTables) -> Tables {
            Tables {
                $($rows: copied.$rows,)*
            }
        }

        /// Returns a copy of the tables of a simulator.
        #[cfg(test)]
        pub(crate) fn copied(simulated: &Tables) -> LookupTables {
            LookupTables {
                $($rows: simulated.$rows.clone(),)*
            }
        }
    };
}
abi::for_each_lookup!(simulated);

/// Returns the simulated node with these tables.
fn world(tables: DatapathTables, links: &BTreeMap<u32, LinkFacts>) -> World {
    let mut world = World::default();
    for (slot, pod) in &tables.pods {
        if let Some(place) = world.pods.get_mut(*slot as usize) {
            *place = *pod;
        }
    }
    world.turns = clock(&tables).into();
    world.now = u32::try_from(tables.now / SECOND).unwrap_or(u32::MAX);
    world.clock = tables.now;
    let [a, b, c, d, ..] = tables.now.to_le_bytes();
    world.random = u32::from_le_bytes([a, b, c, d]);
    world.flow_capacity = tables.flow_entries as usize;
    let by_direction = |index: &u32| {
        let direction = match index % 2 {
            0 => Direction::Egress,
            _ => Direction::Ingress,
        };
        (index / 2, direction)
    };
    world.limits = (tables.limits.iter())
        .map(|(index, limit)| (by_direction(index), *limit))
        .collect();
    world.buckets = (tables.buckets.iter())
        .map(|(index, bucket)| (by_direction(index), Arc::new(SharedBucket::from(bucket))))
        .collect();
    world.memory.disabled = true;
    world.memory.rulesets = tables.events.rulesets;
    world.memory.events_valid_until = tables.events.valid_until;
    world.mtus = links
        .iter()
        .map(|(index, link)| (*index, link.mtu))
        .collect();
    World {
        settings: tables.settings,
        tables: simulated(tables.lookups),
        locals: tables.locals,
        prefixes: tables.prefixes,
        identities: tables.identities,
        policy_rules: tables.policy_rules,
        policy_flows: tables.policy_flows,
        flows: tables.flows,
        live: tables.live,
        peers: tables.shaped_subnets,
        offloaded: tables.offloaded,
        ..world
    }
}

/// Returns the clock of the eviction. The kernel does not say in which order the entries of a queue
/// are; here they are by the age of their flows.
fn clock(tables: &DatapathTables) -> Vec<ClockEntry> {
    let mut flows: Vec<_> = (tables.flows.iter())
        .filter(|(_, flow)| flow.flags & FlowFlags::ORIGINAL != 0)
        .map(|(key, flow)| {
            let entry = ClockEntry {
                key: *key,
                flow_id: flow.flow_id,
                due: 0,
            };
            (flow.created, entry)
        })
        .collect();
    flows.sort_by_key(|(created, entry)| (*created, entry.key));
    flows.into_iter().map(|(_, entry)| entry).collect()
}
