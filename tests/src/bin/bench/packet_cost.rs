//! CPU time of one UDP packet, from the sender's system call to the receiver's, on one CPU: of a
//! small packet, and of a datagram that the sender fragments.
//!
//! One thread sends a few packets and then receives them. Over veth pairs the kernel forwards a
//! packet on the CPU of the sending thread, and no other thread may run there. So the elapsed time,
//! divided by the number of packets, is the CPU time per packet.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::goals::Goal;
use crate::pinned;
use crate::plan::Plan;
use crate::row::{Row, Rows, system};
use crate::topology::{self, PORTS, Path, Topology, Way};

/// Payload of a small packet.
pub(crate) const PAYLOAD: [u8; 18] = [0x55; 18];
/// Small packets that are sent before they are received: no more than any socket buffer holds.
pub(crate) const BURST: u32 = 32;

/// What is sent on which paths.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Whether the receiver has answered before: connection tracking then has an established
    /// connection.
    replies: bool,
    /// Whether it is measured only on nodes with other software, whose rules see packets of flows
    /// without a reply as new.
    only_beside: bool,
    port: u16,
    /// The end of the rows' names.
    suffix: &'static str,
    payload: &'static [u8],
    /// Packets that are sent before they are received: no more than any socket buffer holds.
    burst: u32,
    ways: &'static [Way],
    unit: &'static str,
}

/// Small packets of established flows.
const SMALL: Load = Load {
    replies: true,
    only_beside: false,
    port: PORTS[0],
    suffix: "",
    payload: &PAYLOAD,
    burst: BURST,
    ways: &[
        Way::PodToPod,
        Way::WorldToHostport,
        Way::PodToWorld,
        Way::PodToService,
    ],
    unit: "ns per packet",
};

const LOADS: [Load; 3] = [
    SMALL,
    Load {
        replies: false,
        only_beside: true,
        port: PORTS[1],
        suffix: ", without replies",
        ..SMALL
    },
    // Three fragments at an MTU of 1,500 bytes. The sender's kernel makes them, and the receiver's
    // puts them together: a bare veth pair has both costs as well.
    Load {
        suffix: ", 4,000 bytes in fragments",
        payload: &[0x55; 4000],
        burst: 8,
        ways: &[Way::WorldToHostport, Way::PodToWorld],
        unit: "ns per datagram",
        ..SMALL
    },
];

/// Duration of one sample: thousands of packets.
const SAMPLE: Duration = Duration::from_millis(25);
/// Duration of the warm-up of all systems before the first sample, after which optimisations for
/// high-traffic pods are active. The pod that sends to the other pod also sends to the world.
const BEFORE: Duration = Duration::from_secs(15);
/// Duration of the exchange that establishes a flow on each path of each system. Beside other
/// software's rules, it includes the decision about an established connection.
const EXCHANGE: Duration = Duration::from_millis(300);

/// Duration of the packets without replies before the first round: beside other software's rules,
/// it includes the decision about such a flow, which needs packets that are a second apart.
const ONE_WAY: Duration = Duration::from_secs(4);

/// Time after which a packet is lost.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Goals of the table of ratios in `docs/benchmarks.md`.
pub(crate) const GOALS: &[Goal] = &[
    Goal {
        subject: "pod → pod, above a bare veth pair",
        other: system::NFT,
        bound: 0.12,
    },
    Goal {
        subject: "world → hostport, above a bare veth pair",
        other: system::NFT,
        bound: 0.16,
    },
    Goal {
        subject: "pod → world, above a bare veth pair",
        other: system::NFT,
        bound: 0.30,
    },
    Goal {
        subject: "world → hostport, 4,000 bytes in fragments, above a bare veth pair",
        other: system::NFT,
        bound: 2.0,
    },
    Goal {
        subject: "pod → world, 4,000 bytes in fragments, above a bare veth pair",
        other: system::NFT,
        bound: 2.0,
    },
];

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = measure_systems(plan, &topology::all(plan.company)?)?;
    let above = above_bare(&rows);
    rows.extend(above);
    Ok(rows)
}

/// Measures all loads through these systems.
pub(crate) fn measure_systems(plan: &Plan, systems: &[Topology]) -> Result<Vec<Row>> {
    let mut rows = Rows::default();
    let is_beside = plan.company.name().is_some();
    for load in LOADS.iter().filter(|it| is_beside || !it.only_beside) {
        for way in load.ways {
            measure_way(plan, systems, (load, *way), &mut rows)?;
        }
    }
    Ok(rows.0)
}

/// Measures a load on one path of all systems.
fn measure_way(
    plan: &Plan,
    systems: &[Topology],
    (load, way): (&'static Load, Way),
    rows: &mut Rows,
) -> Result<()> {
    let name = format!("{}{}", way.name(), load.suffix);
    // A bare veth pair is the same for all of them, and no system by itself.
    let having = |system: &&Topology| system.has(way);
    if systems.iter().filter(having).count() < 2 {
        return Ok(());
    }
    let pairs: Vec<_> = systems
        .iter()
        .filter(having)
        .map(|it| open(it, way, load))
        .collect::<Result<_>>()?;
    if rows.0.is_empty() {
        warm_up(&pairs)?;
    }
    plan.interleave(&name, plan.short_rounds(), &pairs, |pair| {
        let cost = pinned::run_realtime(pinned::last_cpu(), || pair.cost())
            .with_context(|| format!("{name} through {}", pair.system))?;
        rows.push(Row::new(&name, pair.system, load.unit), cost);
        Ok(())
    })
}

/// Sends the same number of packets through all systems, in turns.
fn warm_up(pairs: &[Pair]) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < BEFORE {
        for pair in pairs {
            pinned::run_realtime(pinned::last_cpu(), || pair.cost())?;
        }
    }
    Ok(())
}

/// Returns the rows with the cost of a bare veth pair in the same round subtracted, at the same
/// size.
pub(crate) fn above_bare(rows: &[Row]) -> Vec<Row> {
    let bare = |row: &Row| {
        rows.iter()
            .find(|it| it.system == system::BARE && it.name == row.name && it.point == row.point)
    };
    rows.iter()
        .filter(|row| row.system != system::BARE)
        .filter_map(|row| {
            let pairs = row.samples.iter().zip(&bare(row)?.samples);
            Some(Row {
                name: format!("{}, above a bare veth pair", row.name),
                samples: pairs.map(|(whole, bare)| whole - bare).collect(),
                ..row.clone()
            })
        })
        .collect()
}

struct Pair {
    system: &'static str,
    load: &'static Load,
    sender: UdpSocket,
    receiver: UdpSocket,
}

/// Opens a sender and a receiver, and sends packets, so that neighbours are resolved. Exchanges
/// packets where the flow is to be established.
fn open(topology: &Topology, way: Way, load: &'static Load) -> Result<Pair> {
    let path = topology.path(way);
    let (sender, receiver) = sockets(path, load.port)?;
    let pair = Pair {
        system: topology.system,
        load,
        sender,
        receiver,
    };
    let context = || format!("no packet arrives: {} through {}", way.name(), pair.system);
    pair.burst().with_context(context)?;
    if load.replies {
        pair.exchange().with_context(context)?;
    } else {
        let start = Instant::now();
        while start.elapsed() < ONE_WAY {
            pair.burst().with_context(context)?;
        }
    }
    Ok(pair)
}

/// Opens a sender that is connected through the path, and a receiver at its end.
pub(crate) fn sockets(path: &Path, port: u16) -> Result<(UdpSocket, UdpSocket)> {
    let receiver = path.to.run(|| UdpSocket::bind(path.serves(port)))?;
    receiver.set_read_timeout(Some(TIMEOUT))?;
    let sender = path.from.run(|| UdpSocket::bind("0.0.0.0:0"))?;
    sender.connect(path.target(port))?;
    Ok((sender, receiver))
}

impl Pair {
    /// Returns the nanoseconds per packet.
    fn cost(&self) -> Result<f64> {
        // One burst first, because the first packet after a pause is not to be measured.
        self.burst()?;
        let (start, mut bursts) = (Instant::now(), 0);
        while start.elapsed() < SAMPLE {
            self.burst()?;
            bursts += 1;
        }
        let packets = f64::from(bursts) * f64::from(self.load.burst);
        Ok(start.elapsed().as_secs_f64() * 1e9 / packets)
    }

    /// Sends bursts in both directions in turns.
    fn exchange(&self) -> Result<()> {
        self.sender.set_read_timeout(Some(TIMEOUT))?;
        let mut buffer = [0; 4096];
        let start = Instant::now();
        while start.elapsed() < EXCHANGE {
            for _ in 0..self.load.burst {
                self.sender.send(self.load.payload)?;
            }
            for _ in 0..self.load.burst {
                let (length, client) = self.receiver.recv_from(&mut buffer)?;
                self.receiver.send_to(&buffer[..length], client)?;
            }
            for _ in 0..self.load.burst {
                self.sender.recv(&mut buffer).context("a reply was lost")?;
            }
        }
        Ok(())
    }

    /// Sends and receives one burst; a lost packet is an error.
    fn burst(&self) -> Result<()> {
        let Load { payload, burst, .. } = *self.load;
        let mut buffer = [0; 4096];
        for _ in 0..burst {
            self.sender.send(payload)?;
        }
        for _ in 0..burst {
            let length = self
                .receiver
                .recv(&mut buffer)
                .context("a packet was lost")?;
            ensure!(length == payload.len(), "{length} bytes arrived");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_bare_veth_pair_is_subtracted_round_by_round() {
        let row = |system: &str, samples: &[f64]| Row {
            samples: samples.to_vec(),
            ..Row::new("pod → pod", system, "ns")
        };
        let rows = [
            row(system::BARE, &[800.0, 900.0]),
            row(system::NFT, &[1300.0, 1500.0]),
        ];
        let above = above_bare(&rows);
        assert_eq!(above.len(), 1);
        assert_eq!(above[0].name, "pod → pod, above a bare veth pair");
        assert_eq!(above[0].samples, [500.0, 600.0]);
    }
}
