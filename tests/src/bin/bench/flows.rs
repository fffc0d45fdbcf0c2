//! Cost of a small UDP packet with many flows, which send in turns, on each way. Their receivers
//! have answered before; beside other software, flows without a reply are measured as well.
//!
//! So that 100,000 flows need no 100,000 sockets, each socket sends in several: pods to several
//! ports of the receiver, clients of a hostport from several addresses.

use std::io::IoSlice;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::libc::{in_addr, in_pktinfo};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};

use crate::packet_cost::{BURST, PAYLOAD, above_bare};
use crate::pinned;
use crate::plan::{Plan, print_line};
use crate::row::{Row, Rows};
use crate::topology::{self, PORTS, Topology, Viaduct, Way, client};

/// Shortest sample. With many flows it lasts until each has sent.
const SAMPLE: Duration = Duration::from_millis(50);
/// Packets of each flow before the first sample: more than it takes to be established and cached.
const BEFORE: usize = 12;
/// Time after which the offloaded flows are counted again: the agent counts every two seconds.
const COUNTED: Duration = Duration::from_millis(2500);
/// Time after which flows must bypass the rules.
const OFFLOADED: Duration = Duration::from_mins(2);
/// Most sockets of a sender.
const SOCKETS: u32 = 1000;
/// Time after which a packet is lost.
const TIMEOUT: Duration = Duration::from_secs(3);
/// First of the ports on which the receiver of a pod's packets listens.
const FIRST_PORT: u16 = 20_000;
/// First and last of these ports with the most flows.
pub(crate) const RECEIVING_PORTS: [u16; 2] = [FIRST_PORT, FIRST_PORT + 99];

/// The flows of one way through one system: one for each sender in each lane.
struct Crowd {
    system: &'static str,
    flows: u32,
    senders: Vec<UdpSocket>,
    lanes: Vec<Lane>,
    receivers: Vec<UdpSocket>,
}

/// What the flows of one sender differ in.
struct Lane {
    /// Source address; that of the route if there is none.
    source: Option<in_addr>,
    target: SockaddrStorage,
    /// Index of the socket that receives.
    receiver: usize,
}

/// Makes the systems of one measurement.
type MakeSystems<'a> = dyn Fn() -> Result<Vec<Topology>> + 'a;

/// Whether the receivers of flows have answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replies {
    /// Once for each flow, so that connection tracking has established connections.
    One,
    None,
}

impl Replies {
    /// Those that are measured on a node with other software or without.
    const fn of(is_beside: bool) -> &'static [Self] {
        if is_beside {
            &[Self::One, Self::None]
        } else {
            &[Self::One]
        }
    }

    /// Returns the end of the rows' names.
    const fn suffix(self) -> &'static str {
        match self {
            Self::One => "",
            Self::None => ", without replies",
        }
    }
}

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let sizes = plan.pick(
        &[10, 1000, 10_000][..],
        &[1, 10, 1000, 5000, 10_000, 100_000][..],
    );
    let mut rows = measure_sizes(plan, sizes, &|| topology::all(plan.company))?;
    let above = above_bare(&rows);
    rows.extend(above);
    Ok(rows)
}

/// Measures these numbers of flows on each way. `make` makes the systems.
pub(crate) fn measure_sizes(
    plan: &Plan,
    sizes: &[u32],
    make: &MakeSystems<'_>,
) -> Result<Vec<Row>> {
    let mut rows = Rows::default();
    let is_beside = plan.company.name().is_some();
    for way in Way::ALL {
        for flows in sizes {
            for replies in Replies::of(is_beside) {
                measure_one(plan, &make()?, way, (*flows, *replies), &mut rows)?;
            }
        }
    }
    Ok(rows.0)
}

/// Measures one number of flows. Each has systems of its own, since flows of an earlier measurement
/// would still fill their tables.
fn measure_one(
    plan: &Plan,
    systems: &[Topology],
    way: Way,
    (flows, replies): (u32, Replies),
    rows: &mut Rows,
) -> Result<()> {
    let is_beside = plan.company.name().is_some();
    let crowds: Vec<_> = systems
        .iter()
        .map(|it| -> Result<Crowd> {
            let crowd = open(it, way, flows)?;
            crowd
                .establish(replies)
                .with_context(|| format!("{} through {}", way.name(), it.system))?;
            Ok(crowd)
        })
        .collect::<Result<_>>()?;
    if is_beside {
        await_offload(systems, &crowds)?;
    }
    let name = format!("{}{}", way.name(), replies.suffix());
    let what = format!("{name}, {flows} flows");
    plan.interleave(&what, plan.rounds(), &crowds, |crowd| {
        let cost = pinned::run_realtime(pinned::last_cpu(), || crowd.cost())
            .with_context(|| format!("{what} through {}", crowd.system))?;
        let row = Row::new(name.as_str(), crowd.system, "ns per packet");
        rows.push(row.at("flows", flows.into()), cost);
        Ok(())
    })
}

/// Sends packets of each flow until those of all systems are offloaded. The systems take turns: the
/// offload of a flow ends where it is silent while flows of another system are established.
fn await_offload(systems: &[Topology], crowds: &[Crowd]) -> Result<()> {
    let start = Instant::now();
    let pairs = systems.iter().zip(crowds);
    let offloading: Vec<(&Viaduct, &Crowd)> = pairs
        .filter_map(|(system, crowd)| Some((system.viaduct()?, crowd)))
        .collect();
    let mut before = vec![0; offloading.len()];
    loop {
        let mut is_stable = true;
        for ((viaduct, crowd), before) in offloading.iter().zip(&mut before) {
            let offloaded = viaduct.offloaded()?;
            // A pod with very many flows has its share of the table only.
            let grows = *before == 0 || offloaded > *before + *before / 50;
            is_stable &= offloaded >= u64::from(crowd.flows) || !grows;
            *before = offloaded;
        }
        if is_stable {
            print_line(&format!(
                "   flow directions that bypass the rules: {before:?}"
            ));
            return Ok(());
        }
        ensure!(start.elapsed() < OFFLOADED, "flows are still offloaded");
        let counted = Instant::now();
        while counted.elapsed() < COUNTED {
            for (_, crowd) in &offloading {
                crowd.turn()?;
            }
        }
    }
}

/// Opens the sockets.
fn open(topology: &Topology, way: Way, flows: u32) -> Result<Crowd> {
    let path = topology.path(way);
    let lanes = u16::try_from(flows.div_ceil(SOCKETS))?;
    let ports: Vec<u16> = match way {
        Way::WorldToHostport => vec![PORTS[0]],
        Way::PodToPod | Way::PodToWorld | Way::PodToService => {
            (FIRST_PORT..FIRST_PORT + lanes).collect()
        }
    };
    let lane = |number: u16| -> Result<Lane> {
        let receiver = usize::from(number) % ports.len();
        Ok(Lane {
            source: match way {
                Way::WorldToHostport => Some(ipv4(client(1 + number))?),
                Way::PodToPod | Way::PodToWorld | Way::PodToService => None,
            },
            target: path.target(ports[receiver]).into(),
            receiver,
        })
    };
    let listen = |port: &u16| -> Result<UdpSocket> {
        let receiver = UdpSocket::bind(path.serves(*port))?;
        receiver.set_read_timeout(Some(TIMEOUT))?;
        Ok(receiver)
    };
    let bind = |_| -> Result<UdpSocket> {
        let sender = UdpSocket::bind("0.0.0.0:0")?;
        sender.set_read_timeout(Some(TIMEOUT))?;
        Ok(sender)
    };
    let count = flows.min(SOCKETS);
    Ok(Crowd {
        system: topology.system,
        flows,
        senders: path
            .from
            .run(|| (0..count).map(bind).collect::<Result<_>>())?,
        lanes: (0..lanes).map(lane).collect::<Result<_>>()?,
        receivers: path
            .to
            .run(|| ports.iter().map(listen).collect::<Result<_>>())?,
    })
}

fn ipv4(address: IpAddr) -> Result<in_addr> {
    match address {
        IpAddr::V4(address) => Ok(in_addr {
            s_addr: u32::from_ne_bytes(address.octets()),
        }),
        IpAddr::V6(_) => bail!("{address} is no IPv4 address"),
    }
}

impl Crowd {
    /// Sends packets of each flow until it is established and cached.
    fn establish(&self, replies: Replies) -> Result<()> {
        if replies == Replies::One {
            self.answers()?;
        }
        for _ in 0..BEFORE {
            self.turn()?;
        }
        Ok(())
    }

    /// Sends a packet of each flow, and an answer to it.
    fn answers(&self) -> Result<()> {
        let mut left = self.flows as usize;
        for lane in &self.lanes {
            let senders = &self.senders[..left.min(self.senders.len())];
            for burst in senders.chunks(BURST as usize) {
                lane.answers(burst, &self.receivers[lane.receiver])?;
            }
            left -= senders.len();
        }
        Ok(())
    }

    /// Returns the nanoseconds per packet, after each flow has sent one.
    fn cost(&self) -> Result<f64> {
        self.turn()?;
        let (start, mut packets) = (Instant::now(), 0);
        while start.elapsed() < SAMPLE {
            packets += self.turn()?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(packets))
    }

    /// Sends and receives packets of all flows in bursts, and returns their number: one of each
    /// flow, or with fewer flows than a burst has packets, the same number of each. A lost packet
    /// is an error.
    fn turn(&self) -> Result<u32> {
        let repeated = (BURST / self.flows).max(1);
        let mut left = self.flows as usize;
        for lane in &self.lanes {
            let senders = &self.senders[..left.min(self.senders.len())];
            for burst in senders.chunks(BURST as usize) {
                lane.exchange(burst, repeated, &self.receivers[lane.receiver])?;
            }
            left -= senders.len();
        }
        Ok(self.flows * repeated)
    }
}

impl Lane {
    /// Sends `repeated` packets from each sender in turns, and receives them.
    fn exchange(&self, senders: &[UdpSocket], repeated: u32, receiver: &UdpSocket) -> Result<()> {
        for _ in 0..repeated {
            for sender in senders {
                self.send(sender)?;
            }
        }
        let mut buffer = [0; 64];
        for _ in 0..senders.len() * repeated as usize {
            receiver.recv(&mut buffer).context("a packet was lost")?;
        }
        Ok(())
    }

    /// Sends a packet from each sender, and answers each.
    fn answers(&self, senders: &[UdpSocket], receiver: &UdpSocket) -> Result<()> {
        let mut buffer = [0; 64];
        for sender in senders {
            self.send(sender)?;
        }
        for _ in senders {
            let (length, client) = receiver
                .recv_from(&mut buffer)
                .context("a packet was lost")?;
            receiver.send_to(&buffer[..length], client)?;
        }
        for sender in senders {
            sender.recv(&mut buffer).context("an answer was lost")?;
        }
        Ok(())
    }

    fn send(&self, sender: &UdpSocket) -> Result<()> {
        let source = self.source.map(|address| in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: address,
            ipi_addr: in_addr { s_addr: 0 },
        });
        let message = source.as_ref().map(ControlMessage::Ipv4PacketInfo);
        sendmsg(
            sender.as_raw_fd(),
            &[IoSlice::new(&PAYLOAD)],
            message.as_slice(),
            MsgFlags::empty(),
            Some(&self.target),
        )?;
        Ok(())
    }
}
