//! Expectations of tests about packets, flows and counters of a bench.

use abi::{Counters, DropReason, maps};
use anyhow::{Result, ensure};
use verdict::Verdict;
use verdict::simulator::Place;
use verdict::simulator::example;
use verdict::simulator::frame::Frame;

use crate::bench::{Bench, on_machine_with};

/// Runs a test on a bench with a flow table of `entries` entries.
pub(crate) fn on_small_bench(
    entries: usize,
    test: impl FnOnce(&mut Bench) -> Result<()> + Send,
) -> Result<()> {
    let mut world = example::world();
    world.flow_capacity = entries;
    on_machine_with(world, |_, bench| test(bench))
}

impl Bench {
    /// Returns the number of an account's flows; object and simulator must agree.
    pub(crate) fn live(&mut self, account: u32) -> Result<i64> {
        let live: u64 = self.object.get::<8, _>(maps::LIVE.name, account)?;
        let simulated = self.simulator.world.live.get(&account).copied();
        ensure!(
            live.cast_signed() == simulated.unwrap_or(0),
            "account {account} has {live} flows, in the simulator {simulated:?}"
        );
        Ok(live.cast_signed())
    }

    /// Sets the interface of the following packets, which must exist.
    pub(crate) fn move_to(&mut self, interface: u32) {
        self.interface = interface;
    }

    /// Expects the packet to pass unchanged.
    #[track_caller]
    pub(crate) fn passes(&mut self, place: Place, frame: &Frame) -> Result<()> {
        self.becomes(place, frame, frame)
    }

    /// Expects the packet to pass and to be rewritten to `expected`.
    #[track_caller]
    pub(crate) fn becomes(&mut self, place: Place, frame: &Frame, expected: &Frame) -> Result<()> {
        self.turns_into(place, &frame.bytes(), &expected.bytes())
    }

    /// As [`Bench::becomes`], for bytes.
    #[track_caller]
    pub(crate) fn turns_into(&mut self, place: Place, bytes: &[u8], expected: &[u8]) -> Result<()> {
        let (verdict, packet) = self.run(place, bytes)?;
        assert_eq!(verdict, Verdict::Pass);
        assert_eq!(packet, expected, "the packet differs from the expected one");
        Ok(())
    }

    /// Expects the pod's packet to be rewritten to `expected` and redirected to the pod behind
    /// `interface`.
    #[track_caller]
    pub(crate) fn delivers(
        &mut self,
        frame: &Frame,
        expected: &Frame,
        interface: u32,
    ) -> Result<()> {
        let (verdict, packet) = self.run(Place::FromPod, &frame.bytes())?;
        assert_eq!(verdict, Verdict::RedirectPeer(interface));
        assert_eq!(
            packet,
            expected.bytes(),
            "the packet differs from the expected one"
        );
        Ok(())
    }

    /// Expects the packet to be dropped for this reason.
    #[track_caller]
    pub(crate) fn drops(&mut self, place: Place, frame: &Frame, reason: DropReason) -> Result<()> {
        self.drops_bytes(place, &frame.bytes(), reason)
    }

    /// As [`Bench::drops`], for bytes.
    #[track_caller]
    pub(crate) fn drops_bytes(
        &mut self,
        place: Place,
        bytes: &[u8],
        reason: DropReason,
    ) -> Result<()> {
        let (verdict, _) = self.run(place, bytes)?;
        assert_eq!(verdict, Verdict::Drop(reason));
        Ok(())
    }

    /// Returns a pod's counters in one direction, summed over all CPUs; object and simulator must
    /// agree.
    pub(crate) fn counters(&mut self, pod: u32, direction: abi::Direction) -> Result<Counters> {
        let index = pod * 2 + direction as u32;
        let each: Vec<Counters> = self.object.get_all::<64, _>(maps::COUNTERS.name, index)?;
        let sum = each.iter().fold(Counters::default(), |sum, one| Counters {
            packets: sum.packets + one.packets,
            bytes: sum.bytes + one.bytes,
            dropped_packets: sum.dropped_packets + one.dropped_packets,
            dropped_bytes: sum.dropped_bytes + one.dropped_bytes,
            new_flows: sum.new_flows + one.new_flows,
            evicted_flows: sum.evicted_flows + one.evicted_flows,
            reserved: [0; 2],
        });
        let world = &self.simulator.world;
        let simulated = world.counters.get(&(pod, direction)).copied();
        ensure!(
            sum == simulated.unwrap_or_default(),
            "the object counts {sum:?}, the simulator {simulated:?}"
        );
        Ok(sum)
    }
}
