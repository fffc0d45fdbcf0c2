//! The compiled object and the simulator side by side: every packet goes through both, and both
//! must agree.
//!
//! The simulator has a fixed clock and its own random numbers. Therefore times are not compared,
//! and the masquerade port range contains one port.

use std::collections::BTreeMap;

use abi::maps::{self, programs};
use abi::{DropCount, DropReason, Flow, PendingCounters, Swept, Tuple};
use anyhow::{Result, ensure};
use e2e::{Machine, Mounts};
use verdict::Verdict;
use verdict::simulator::{Place, Simulator, World, example};

use crate::object::{NEXT, Object, REDIRECT, SHOT};

/// The only port of the masquerade range, to which flows are moved.
pub(crate) const MOVED: u16 = 50_000;

/// Runs a test on a bench with [`example::world`], in its own namespaces.
pub(crate) fn on_bench(test: impl FnOnce(&mut Bench) -> Result<()> + Send) -> Result<()> {
    on_machine(|_, bench| test(bench))
}

/// As [`on_bench`], for tests that need the machine: its sockets, interfaces and routes.
pub(crate) fn on_machine(
    test: impl FnOnce(&Machine, &mut Bench) -> Result<()> + Send,
) -> Result<()> {
    on_machine_with(example::world(), test)
}

/// As [`on_machine`], with the given world.
pub(crate) fn on_machine_with(
    mut world: World,
    test: impl FnOnce(&Machine, &mut Bench) -> Result<()> + Send,
) -> Result<()> {
    let machine = Machine::new("node", &Mounts::new()?)?;
    // The kind of the interface does not matter.
    let index = example::OTHER_INTERFACE;
    machine.call(&format!("ip link add other index {index} type bridge"))?;
    // The kernel determines the type of a packet by the address of the link.
    let mac = mac_text(world.mac);
    machine.call(&format!("ip link set lo address {mac}"))?;
    machine.run(|| {
        world.settings.port_low = MOVED;
        world.settings.port_high = MOVED;
        test(&machine, &mut Bench::new(world)?)
    })
}

fn mac_text(mac: abi::Mac) -> String {
    let bytes = mac.bytes().map(|byte| format!("{byte:02x}"));
    bytes.join(":")
}

/// The loaded object and the simulator, with the same tables.
pub(crate) struct Bench {
    pub(crate) object: Object,
    pub(crate) simulator: Simulator,
    pub(crate) interface: u32,
}

impl Bench {
    /// Creates object and simulator with the tables and the flow capacity of `world`.
    pub(crate) fn new(world: World) -> Result<Self> {
        let entries = u32::try_from(world.flow_capacity)?;
        let mut object = Object::load(entries)?;
        fill(&mut object, &world)?;
        let simulator = Simulator::new(world);
        Ok(Self {
            object,
            simulator,
            interface: example::INTERFACE,
        })
    }

    /// Changes the tables of object and simulator.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut World)) -> Result<()> {
        let before = self.simulator.world.clone();
        change(&mut self.simulator.world);
        self.simulator.world.flows_were_changed();
        forget(&mut self.object, &before, &self.simulator.world)?;
        fill(&mut self.object, &self.simulator.world)
    }

    /// Sends a packet through object and simulator, and asserts that verdict and packet agree.
    #[track_caller]
    pub(crate) fn run(&mut self, place: Place, bytes: &[u8]) -> Result<(Verdict, Vec<u8>)> {
        let (verdict, simulated) = self.simulator.run(place, self.interface, bytes);
        let (in_kernel, packet) = self.run_object(place, bytes, verdict)?;
        assert_eq!(in_kernel, verdict, "the object and the simulator disagree");
        // A consumed packet may have been overwritten by a held one.
        if verdict != Verdict::Consume {
            assert_eq!(packet, simulated, "the object and the simulator disagree");
        }
        Ok((verdict, packet))
    }

    /// Sends a packet through the object alone. The kernel does not return where a redirect leads,
    /// or whether a dropped fragment was held: that is as in `expected`, if anything like it.
    #[track_caller]
    pub(crate) fn run_object(
        &mut self,
        place: Place,
        bytes: &[u8],
        expected: Verdict,
    ) -> Result<(Verdict, Vec<u8>)> {
        let before = self.drop_counts()?;
        let (action, packet) = self.object_run(place, bytes)?;
        let dropped: Vec<DropReason> = self
            .drop_counts()?
            .into_iter()
            .filter(|(reason, count)| before.get(reason) != Some(count))
            .map(|(reason, _)| reason)
            .collect();
        let verdict = match (action, dropped.as_slice()) {
            (NEXT, []) => Verdict::Pass,
            // The place of a held fragment was taken over.
            (SHOT, [DropReason::FragmentWithoutFirst]) if expected == Verdict::Consume => expected,
            (SHOT, [reason]) => Verdict::Drop(*reason),
            (REDIRECT, []) if matches!(expected, Verdict::RedirectPeer(_)) => expected,
            (SHOT, []) => Verdict::Consume,
            _ => panic!("the object returned {action} and counted {dropped:?}"),
        };
        Ok((verdict, packet))
    }

    /// Runs the object on a packet; with the TCX fast path, runs its program before `from_pod`.
    fn object_run(&mut self, place: Place, bytes: &[u8]) -> Result<(i32, Vec<u8>)> {
        let (object, interface) = (&mut self.object, self.interface);
        if place == Place::FromPod && self.simulator.world.memory.tcx_fast_path {
            let ended = object.run_on(programs::FROM_BUSY_POD, interface, bytes)?;
            if ended.0 != NEXT {
                return Ok(ended);
            }
            ensure!(
                ended.1 == bytes,
                "the TCX fast path changed a packet that it passed on"
            );
        }
        object.run_on(program_of(place), interface, bytes)
    }

    /// Returns the drops so far by reason, summed over all CPUs.
    pub(crate) fn drop_counts(&mut self) -> Result<BTreeMap<DropReason, DropCount>> {
        let mut counts = BTreeMap::new();
        for reason in DropReason::ALL {
            let each: Vec<DropCount> = self
                .object
                .get_all::<16, _>(maps::DROPS.name, reason as u32)?;
            let sum = each
                .iter()
                .fold(DropCount::default(), |sum, one| DropCount {
                    packets: sum.packets + one.packets,
                    bytes: sum.bytes + one.bytes,
                });
            if sum.packets > 0 {
                counts.insert(reason, sum);
            }
        }
        Ok(counts)
    }

    /// Returns the object's flow table including the pending counters.
    fn counted_flows(&mut self) -> Result<BTreeMap<Tuple, Flow>> {
        let mut flows: BTreeMap<Tuple, Flow> =
            self.object.entries::<40, 96, _, _>(maps::FLOWS.name)?;
        for pending in self
            .object
            .list::<64, PendingCounters>(maps::PENDING.name)?
        {
            if let Some(flow) = flows.get_mut(&pending.key) {
                pending.add_to(flow);
            }
        }
        Ok(flows)
    }

    /// Returns the flow table without times and flow ids; object and simulator must agree.
    pub(crate) fn flows(&mut self) -> Result<BTreeMap<Tuple, Flow>> {
        let mut flows = self.counted_flows()?;
        for flow in flows.values_mut() {
            ensure!(flow.created > 0 && flow.last_seen >= flow.created);
            (flow.created, flow.last_seen, flow.flow_id) = (0, 0, 0);
        }
        let mut simulated = self.simulator.world.counted_flows();
        for flow in simulated.values_mut() {
            (flow.created, flow.last_seen, flow.flow_id) = (0, 0, 0);
        }
        ensure!(
            flows == simulated,
            "the object's flows are {flows:#?}, the simulator's {simulated:#?}"
        );
        Ok(flows)
    }

    /// Runs the sweep of object and simulator, and returns its counts; both must agree.
    pub(crate) fn sweep(&mut self) -> Result<Swept> {
        let frame = [0; 64];
        let (forgotten, _) = self.object.run_on(programs::SWEEP, 1, &frame)?;
        let swept: Swept = self.object.get::<32, _>(maps::SWEPT.name, 0)?;
        let simulated = self.simulator.sweep();
        ensure!(
            swept == simulated,
            "the object swept {swept:?}, the simulator {simulated:?}"
        );
        ensure!(
            i64::from(forgotten)
                == i64::try_from(swept.timed_out + swept.stale + swept.address_gone)?
        );
        Ok(swept)
    }
}

/// Returns the name of the program at a place.
pub(crate) fn program_of(place: Place) -> &'static str {
    match place {
        Place::FromPod => programs::FROM_POD,
        Place::ToPod => programs::TO_POD,
        Place::UplinkIn => programs::UPLINK_IN,
        Place::UplinkOut => programs::UPLINK_OUT,
    }
}

/// Fills and clears the map of each lookup in the list of maps.
macro_rules! lookups {
    ($($map:ident: $key:tt, $value:tt, $lookup:ident, $rows:ident;)*) => {
        fn fill_lookups(object: &mut Object, world: &World) -> Result<()> {
            $(
                for (key, value) in &world.$rows {
                    object.insert::<
                        { size_of::<abi::layout!($key)>() },
                        { size_of::<abi::layout!($value)>() },
                    >(maps::$map.name, key, value)?;
                }
            )*
            Ok(())
        }

        fn forget_lookups(object: &mut Object, before: &World, after: &World) -> Result<()> {
            $(
                for key in before.$rows.keys() {
                    if !after.$rows.contains_key(key) {
                        object.remove::<
                            { size_of::<abi::layout!($key)>() },
                            { size_of::<abi::layout!($value)>() },
                        >(maps::$map.name, key)?;
                    }
                }
            )*
            Ok(())
        }
    };
}
abi::for_each_lookup!(lookups);

/// Writes a world's tables, all but its flows and fragments, into the object's maps.
fn fill(object: &mut Object, world: &World) -> Result<()> {
    object.set::<64>(maps::SETTINGS.name, 0, &world.settings)?;
    for (slot, pod) in (0..)
        .zip(&world.pods)
        .filter(|(_, pod)| pod.generation != 0)
    {
        object.set::<64>(maps::PODS.name, slot, pod)?;
    }
    for ((pod, direction), limit) in &world.limits {
        object.set::<64>(maps::LIMITS.name, pod * 2 + *direction as u32, limit)?;
    }
    fill_lookups(object, world)?;
    for address in &world.locals {
        object.insert::<16, 4>(maps::LOCALS.name, address, &1_u32)?;
    }
    for (prefix, class) in &world.prefixes {
        object.insert_prefix(prefix, *class)?;
    }
    Ok(())
}

/// Removes entries from the object's maps that are in `before` but not in `after`.
fn forget(object: &mut Object, before: &World, after: &World) -> Result<()> {
    for address in before.locals.difference(&after.locals) {
        object.remove::<16, 4>(maps::LOCALS.name, address)?;
    }
    forget_lookups(object, before, after)?;
    for key in before.flows.keys() {
        if !after.flows.contains_key(key) {
            object.remove::<40, 96>(maps::FLOWS.name, key)?;
        }
    }
    for (key, flow) in &after.flows {
        if before.flows.get(key) != Some(flow) {
            object.insert::<40, 96>(maps::FLOWS.name, key, flow)?;
        }
    }
    Ok(())
}
