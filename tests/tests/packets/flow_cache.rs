//! The flow cache: object and simulator use cached verdicts for established flows, each at
//! different moments.

use abi::{EndpointFlags, SettingsFlags};
use anyhow::Result;
use verdict::Verdict;
use verdict::simulator::Place::{FromPod, UplinkIn, UplinkOut};
use verdict::simulator::World;
use verdict::simulator::example::{self, FAMILIES, HOSTPORT, OTHER_POD};
use verdict::simulator::frame::{Body, Frame, answer, flag};

use crate::bench::{Bench, on_bench};

/// Packets of one run.
const SENT: u32 = 600;

/// Pseudo-random numbers, the same in every run.
struct Dice(u32);

impl Dice {
    fn below(&mut self, sides: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 16) % sides
    }

    fn body(&mut self, source: u16, destination: u16) -> Body {
        const FLAGS: [u8; 8] = [
            0,
            0,
            0,
            flag::ACK,
            flag::ACK,
            flag::ACK,
            flag::SYN,
            flag::RST,
        ];
        match FLAGS[self.below(8) as usize] {
            0 => Body::Udp(source, destination, vec![7; self.below(100) as usize]),
            flags => Body::Tcp(
                source,
                destination,
                flags,
                vec![7; self.below(100) as usize],
            ),
        }
    }
}

/// Sends one random packet and its reply.
fn send(bench: &mut Bench, dice: &mut Dice) -> Result<()> {
    let family = FAMILIES[dice.below(2) as usize];
    let (pod, node) = (example::pod()[family], example::node()[family]);
    let remote = example::remote()[family];
    let port = 40_000 + u16::try_from(dice.below(3))?;
    match dice.below(4) {
        0 => {
            let body = dice.body(port, 53);
            let out = Frame::new(pod, remote, body);
            let (verdict, wire) = bench.run(UplinkOut, &out.bytes())?;
            assert_eq!(verdict, Verdict::Pass);
            bench.run(UplinkIn, &answer(&wire))?;
        }
        1 => {
            let body = dice.body(port, HOSTPORT);
            let request = Frame::new(remote, node, body);
            let (verdict, taken) = bench.run(UplinkIn, &request.bytes())?;
            if !matches!(verdict, Verdict::Drop(_)) {
                bench.run(UplinkOut, &answer(&taken))?;
            }
        }
        2 => {
            let other = example::other_pod()[family];
            let frame = Frame::new(pod, other, dice.body(port, 80))
                .from_to(example::mac(), example::other_mac());
            bench.run(FromPod, &frame.bytes())?;
        }
        _ => {
            let frame = Frame::new(pod, remote, dice.body(port, 53));
            bench.run(FromPod, &frame.sent_by(example::mac()).bytes())?;
        }
    }
    Ok(())
}

/// Toggles one property that the agent can change.
fn change(world: &mut World, which: u32) {
    let pod = &mut world.pods[OTHER_POD as usize];
    match which {
        0 => pod.flags ^= EndpointFlags::BYPASS,
        1 => pod.generation ^= 1,
        2 => world.settings.flags ^= SettingsFlags::BYPASS,
        _ => {
            for endpoint in world.endpoints.values_mut() {
                endpoint.flags ^= EndpointFlags::PUBLISHED;
            }
        }
    }
}

#[test]
fn cached_verdicts_equal_full_lookups_for_established_flows() -> Result<()> {
    for seed in 0..4 {
        on_bench(|bench| {
            bench.simulator.world.memory.tcx_fast_path = seed % 2 == 1;
            let mut dice = Dice(seed);
            for number in 0..SENT {
                send(bench, &mut dice)?;
                if number % 40 == 39 {
                    let which = dice.below(4);
                    bench.change(|world| change(world, which))?;
                }
            }
            bench.flows()?;
            let taken = bench.simulator.world.memory.hits;
            assert!(taken > u64::from(SENT / 12), "{taken} cache hits in all");
            Ok(())
        })?;
    }
    Ok(())
}
