//! CPU time of a dropped packet, of a pod that sends forged frames as fast as it can: while
//! `viaductctl drops -f` follows the events, and while nothing listens. Both states are measured in
//! turns on one node. In the middle of each flood another pod loses one packet, which the client
//! must print.

use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::{Duration, Instant};

use abi::{Address, Mac};
use anyhow::{Context as _, Result, ensure};
use e2e::{FrameSender, Pod, Process, program, until};
use verdict::simulator::frame::{Body, Frame};

use crate::goals::Goal;
use crate::pinned;
use crate::plan::Plan;
use crate::row::{Row, Rows, system};
use crate::topology::Viaduct;

const SUBJECT: &str = "dropped packet";

/// A dropped packet costs at most three per cent more while a client listens.
pub(crate) const GOALS: &[Goal] = &[Goal {
    subject: SUBJECT,
    other: system::WITHOUT_LISTENER,
    bound: 1.03,
}];

/// Address of the bridge in the benchmark's pod CIDR.
const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 244, 0, 1));
/// Ethernet address that no pod has.
const FORGED: Mac = Mac::new([2, 0, 0, 0, 0, 0x66]);
/// Reason of the drops.
const REASON: &str = "spoofed-mac";
/// Duration of one sample: thousands of packets.
const SAMPLE: Duration = Duration::from_millis(25);
/// The pod that loses one packet in each flood.
const OTHER: &str = "other";
/// Frames between two readings of the clock.
const BURST: u32 = 32;
/// Time between two floods: in it, the agent ends the events of a client that is gone, and the next
/// drop of the other pod is reported again.
const PAUSE: Duration = Duration::from_millis(200);

/// The pod that floods, and what it has sent.
struct Flood {
    pod: Forger,
    sent: u64,
}

/// A pod with a frame that is dropped.
struct Forger {
    sender: FrameSender,
    frame: Vec<u8>,
}

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let viaduct = Viaduct::start(plan.company, 0)?;
    let pod = viaduct.attach("flood", &[])?;
    let other_pod = viaduct.attach(OTHER, &[])?;
    let other = Forger::of(&other_pod)?;
    let mut flood = Flood {
        pod: Forger::of(&pod)?,
        sent: 0,
    };
    let mut rows = Rows::default();
    let systems = [system::VIADUCT, system::WITHOUT_LISTENER];
    let rounds = plan.short_rounds();
    plan.interleave(SUBJECT, rounds, &systems, |system| {
        let listener = if *system == system::VIADUCT {
            Some(flood.listener(&viaduct)?)
        } else {
            None
        };
        // The client prints recent drops first.
        let before = listener.as_ref().map_or(0, drops_of_other);
        let sample = flood.sample(&other)?;
        rows.push(Row::new(SUBJECT, *system, "ns per packet"), sample);
        if let Some(listener) = listener {
            until("the client prints the other pod's drop", || {
                Ok((drops_of_other(&listener) > before).then_some(()))
            })?;
        }
        thread::sleep(PAUSE);
        Ok(())
    })?;
    flood.ensure_dropped(&viaduct, &pod)?;
    Ok(rows.0)
}

/// Returns the number of drops of the other pod that a client has printed.
fn drops_of_other(listener: &Process) -> usize {
    let output = listener.output();
    output.lines().filter(|line| line.contains(OTHER)).count()
}

impl Forger {
    fn of(pod: &Pod) -> Result<Self> {
        let address = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => Address::v4(ip.octets()),
            IpAddr::V6(ip) => Address::v6(ip.octets()),
        };
        let own = *pod.addresses.first().context("a pod has an address")?;
        let body = Body::Udp(40_000, 9, vec![0x55; 18]);
        let frame = Frame::new(address(own), address(GATEWAY), body).from_to(FORGED, FORGED);
        Ok(Self {
            sender: FrameSender::new(&pod.machine, "eth0", GATEWAY)?,
            frame: frame.bytes(),
        })
    }

    fn send(&self) -> Result<()> {
        self.sender.send(&self.frame)?;
        Ok(())
    }
}

impl Flood {
    fn send(&mut self) -> Result<()> {
        self.pod.send()?;
        self.sent += 1;
        Ok(())
    }

    /// Starts a client that follows the events, and returns it once it has printed one.
    fn listener(&mut self, viaduct: &Viaduct) -> Result<Process> {
        let ctl = program("bin/viaductctl").display().to_string();
        let listener = Process::start(&viaduct.sandbox.node, &[&ctl, "drops", "-f"])?;
        until("the client prints a drop", || {
            self.send()?;
            Ok(listener.output().contains(REASON).then_some(()))
        })?;
        Ok(listener)
    }

    /// Sends for the time of a sample, and one frame of the other pod in the middle of it; returns
    /// the CPU time per frame in nanoseconds.
    fn sample(&mut self, other: &Forger) -> Result<f64> {
        pinned::run_realtime(pinned::last_cpu(), || {
            let before = self.sent;
            let mut has_other_sent = false;
            let start = Instant::now();
            while start.elapsed() < SAMPLE {
                if !has_other_sent && start.elapsed() > SAMPLE / 2 {
                    other.send()?;
                    has_other_sent = true;
                }
                for _ in 0..BURST {
                    self.send()?;
                }
            }
            let nanoseconds = start.elapsed().as_secs_f64() * 1e9;
            let frames = u32::try_from(self.sent - before)?;
            Ok(nanoseconds / f64::from(frames))
        })
    }

    /// Returns an error unless all frames were dropped for the reason.
    fn ensure_dropped(&self, viaduct: &Viaduct, pod: &Pod) -> Result<()> {
        let views = viaduct
            .agent
            .get(&format!("/v1/attachments/{}", pod.id()))?;
        let dropped = views[0]["counters"]["drops"][REASON].as_u64();
        let sent = self.sent;
        ensure!(
            dropped == Some(sent),
            "{dropped:?} of {sent} frames were dropped"
        );
        Ok(())
    }
}
