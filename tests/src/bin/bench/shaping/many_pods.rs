//! Many pods with limits at the same time, each of which sends UDP at twice its rate.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use e2e::{Machine, WORLD};

use super::site::{self, Site};
use super::{Direction, Way};
use crate::plan::Plan;
use crate::row::{Row, Rows};

const PODS: usize = 100;
const RATE: u64 = 1_000_000;
const FIRST_PORT: u16 = 20_000;
/// Payload of a datagram, and its length with headers, in bytes.
const PAYLOAD: usize = 1_172;
const WEIGHT: u32 = 1_200;
/// Warm-up, after which the bursts are used up.
const WARM: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(5);

struct Pods {
    site: Site,
    senders: Vec<UdpSocket>,
    receivers: Vec<UdpSocket>,
    // Keeps the namespaces of the senders.
    _machines: Vec<Machine>,
}

pub(super) fn measure(plan: &Plan, rows: &mut Rows) -> Result<()> {
    let nodes: Vec<_> = site::pair(plan.company, &[], site::Distance::Near)?
        .into_iter()
        .map(Pods::attach)
        .collect::<Result<_>>()?;
    let way = Way {
        rate: RATE,
        direction: Direction::From,
    };
    let name = format!("{PODS} pods, {way}");
    plan.interleave(&name, plan.pick(1, 3), &nodes, |pods| {
        let shares = pods.shares(Duration::from_secs(plan.pick(4, 10)))?;
        let system = pods.site.system();
        #[expect(clippy::cast_precision_loss, reason = "there are a hundred")]
        let sum = shares.iter().sum::<f64>() / shares.len() as f64;
        let worst = shares.iter().map(|share| (share - 1.0).abs());
        let row = Row::new(format!("{name}, total"), system, "of the rate");
        rows.push(row.higher().within(0.98, 1.02), sum);
        let row = Row::new(
            format!("{name}, largest deviation of a pod"),
            system,
            "of the rate",
        );
        rows.push(row.within(0.0, 0.05), worst.fold(0.0, f64::max));
        Ok(())
    })
}

impl Pods {
    fn attach(site: Site) -> Result<Self> {
        let (mut senders, mut receivers, mut pods) = (Vec::new(), Vec::new(), Vec::new());
        for (number, port) in (0..PODS).zip(FIRST_PORT..) {
            let pod = site.attach(&format!("crowd-{number}"), RATE)?;
            let at = SocketAddr::new(WORLD[0], port);
            let receiver = site.world().run(|| UdpSocket::bind(at))?;
            receiver.set_nonblocking(true)?;
            let sender = pod.run(|| UdpSocket::bind("0.0.0.0:0"))?;
            sender.connect(at)?;
            senders.push(sender);
            receivers.push(receiver);
            pods.push(pod);
        }
        Ok(Self {
            site,
            senders,
            receivers,
            _machines: pods,
        })
    }

    /// Returns the share of its rate that each pod gets over `span`.
    fn shares(&self, span: Duration) -> Result<Vec<f64>> {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| self.offer(&stop));
            let counted = self.count(span);
            stop.store(true, Ordering::Relaxed);
            counted
        })
    }

    fn offer(&self, stop: &AtomicBool) {
        let start = Instant::now();
        let mut sent = 0_u128;
        while !stop.load(Ordering::Relaxed) {
            let due = start.elapsed().as_micros() * u128::from(2 * RATE) / 8_000_000;
            while sent < due {
                for sender in &self.senders {
                    // An error is a full queue of the sender, and the load is still too high.
                    let _ = sender.send(&[7; PAYLOAD]);
                }
                sent += u128::from(WEIGHT);
            }
            thread::sleep(TICK);
        }
    }

    fn count(&self, span: Duration) -> Result<Vec<f64>> {
        let start = Instant::now();
        let mut before = vec![0; self.receivers.len()];
        let mut counts = before.clone();
        let mut began = None;
        loop {
            for (receiver, count) in self.receivers.iter().zip(&mut counts) {
                *count += waiting(receiver)?;
            }
            match began {
                None if start.elapsed() > WARM => {
                    began = Some(Instant::now());
                    before.clone_from(&counts);
                }
                Some(began) if began.elapsed() > span => break,
                _ => {}
            }
            thread::sleep(TICK);
        }
        let seconds = began
            .context("the warm-up is over")?
            .elapsed()
            .as_secs_f64()
            - TICK.as_secs_f64();
        let counts = counts.iter().zip(&before);
        #[expect(clippy::cast_precision_loss, reason = "the rate is a round number")]
        let whole = seconds * RATE as f64 / 8.0;
        Ok(counts
            .map(|(after, before)| f64::from((after - before) * WEIGHT) / whole)
            .collect())
    }
}

/// Reads the datagrams that have arrived; returns their number.
fn waiting(receiver: &UdpSocket) -> Result<u32> {
    let mut buffer = [0; 2_048];
    let mut count = 0;
    loop {
        match receiver.recv(&mut buffer) {
            Ok(_) => count += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(count),
            Err(error) => return Err(error.into()),
        }
    }
}
