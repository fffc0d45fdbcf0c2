//! Masquerade ports: the probability of finding a free one, and exhaustion of the range.

use abi::maps::{self, programs};
use abi::{Address, DropReason, Flow, Port, Tuple, protocol};
use anyhow::Result;
use verdict::simulator::example;
use verdict::simulator::frame::{Body, Frame};

use crate::bench::{Bench, on_bench};
use crate::object::NEXT;

const LOW: u16 = 1_024;

fn wide(bench: &mut Bench) -> Result<()> {
    bench.change(|world| {
        world.hostports.clear();
        world.settings.port_low = LOW;
        world.settings.port_high = u16::MAX;
    })
}

/// Occupies a port permanently for flows to `remote`.
fn take(bench: &mut Bench, remote: Address, port: u16) -> Result<()> {
    let key = Tuple {
        source: remote,
        destination: example::node()[0],
        source_port: Port::new(53),
        destination_port: Port::new(port),
        protocol: protocol::UDP,
        reserved: [0; 3],
    };
    let flow = Flow {
        created: u32::MAX,
        ..Flow::default()
    };
    bench.object.insert::<40, 96>(maps::FLOWS.name, &key, &flow)
}

fn send(bench: &mut Bench, source: Address, remote: Address, port: u16) -> Result<bool> {
    let frame = Frame::new(source, remote, Body::Udp(port, 53, b"x".to_vec()));
    let object = &mut bench.object;
    let (action, _) = object.run_on(programs::UPLINK_OUT, bench.interface, &frame.bytes())?;
    Ok(action == NEXT)
}

/// Returns how many of 2000 flows find no port when `percent` of the range is taken.
fn refused(bench: &mut Bench, percent: u32) -> Result<u32> {
    // A separate remote for each percentage, because ports are taken per remote.
    let remote = Address::v4([198, 51, 100, u8::try_from(percent)?]);
    let mut dice = 1_u32;
    let mut taken = Vec::new();
    for port in LOW..=u16::MAX {
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if (dice >> 16) % 100 < percent {
            take(bench, remote, port)?;
            taken.push(port);
        }
    }
    let mut refused = 0;
    for port in taken.iter().take(2_000) {
        refused += u32::from(!send(bench, example::pod()[0], remote, *port)?);
    }
    Ok(refused)
}

#[test]
fn a_port_is_found_where_nine_of_ten_are_taken() -> Result<()> {
    on_bench(|bench| {
        wide(bench)?;
        for (percent, most) in [(50, 0), (90, 5)] {
            let refused = refused(bench, percent)?;
            println!("{percent} % taken: {refused} of 2000 flows find no port");
            assert!(refused <= most, "{refused} of 2000 at {percent} %");
        }
        Ok(())
    })
}

#[test]
fn flows_beyond_the_port_range_are_refused_until_a_port_is_free() -> Result<()> {
    on_bench(|bench| {
        wide(bench)?;
        // No flow may time out meanwhile, however slow the machine.
        bench.change(|world| world.settings.timeouts.udp_single = 86_400)?;
        let remote = example::remote()[0];
        // Each has half of the ports: neither takes one from the other.
        let (pod, other) = (example::pod()[0], example::other_pod()[0]);
        for port in LOW..=u16::MAX {
            let source = if port < u16::MAX / 2 { pod } else { other };
            assert!(send(bench, source, remote, port)?);
        }
        assert!(!send(bench, pod, remote, 40_000)?);
        let drops = bench.drop_counts()?;
        assert_eq!(drops[&DropReason::NoPort].packets, 1);
        assert_eq!(drops.len(), 1);
        // Another remote has the whole range.
        assert!(send(bench, pod, example::friend()[0], 40_000)?);
        bench.change(|world| world.settings.timeouts.udp_single = 0)?;
        assert!(send(bench, pod, remote, 40_000)?);
        Ok(())
    })
}
