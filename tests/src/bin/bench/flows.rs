//! Cost of a small UDP packet from a pod to the world with many flows, which send in turns.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::packet_cost::{self, BURST, PAYLOAD};
use crate::pinned;
use crate::plan::Plan;
use crate::row::{Row, Rows};
use crate::topology::{self, PORTS, Topology, Way};

const SAMPLE: Duration = Duration::from_millis(150);

struct Crowd {
    system: &'static str,
    flows: u32,
    senders: Vec<UdpSocket>,
    receiver: UdpSocket,
}

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Rows::default();
    let sizes = plan.pick(&[10, 1000][..], &[10, 1000, 5000][..]);
    for flows in sizes {
        let systems = topology::translating(plan.company, 0)?;
        let crowds: Vec<_> = systems
            .iter()
            .map(|it| open(it, *flows))
            .collect::<Result<_>>()?;
        let what = format!("{flows} flows");
        plan.interleave(&what, plan.rounds(), &crowds, |crowd| {
            let cost = pinned::run_realtime(pinned::last_cpu(), || crowd.cost())
                .with_context(|| format!("{what} through {}", crowd.system))?;
            let row = Row::new(Way::PodToWorld.name(), crowd.system, "ns per packet");
            rows.push(row.at("flows", crowd.flows.into()), cost);
            Ok(())
        })?;
    }
    Ok(rows.0)
}

fn open(topology: &Topology, flows: u32) -> Result<Crowd> {
    let path = topology.path(Way::PodToWorld);
    let (first, receiver) = packet_cost::sockets(path, PORTS[0])?;
    let senders = path.from.run(|| {
        let open = |_| {
            let sender = UdpSocket::bind("0.0.0.0:0")?;
            sender.connect(path.target(PORTS[0]))?;
            Ok(sender)
        };
        (1..flows).map(open).collect::<std::io::Result<Vec<_>>>()
    })?;
    Ok(Crowd {
        system: topology.system,
        flows,
        senders: senders.into_iter().chain([first]).collect(),
        receiver,
    })
}

impl Crowd {
    /// Returns the nanoseconds per packet, after each flow has sent its first.
    fn cost(&self) -> Result<f64> {
        let mut turns = self.senders.iter().cycle();
        for _ in 0..self.senders.len().div_ceil(BURST as usize) {
            self.burst(&mut turns)?;
        }
        let (start, mut bursts) = (Instant::now(), 0);
        while start.elapsed() < SAMPLE {
            self.burst(&mut turns)?;
            bursts += 1;
        }
        let each = f64::from(bursts) * f64::from(BURST);
        Ok(start.elapsed().as_secs_f64() * 1e9 / each)
    }

    fn burst<'a>(&self, turns: &mut impl Iterator<Item = &'a UdpSocket>) -> Result<()> {
        for sender in turns.take(BURST as usize) {
            sender.send(&PAYLOAD)?;
        }
        let mut buffer = [0; 64];
        for _ in 0..BURST {
            self.receiver
                .recv(&mut buffer)
                .context("a packet was lost")?;
        }
        Ok(())
    }
}
