//! Numbered datagrams, a few hundred a second for as long as it takes: each that is lost or doubled is known by its
//! number.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::{Machine, udp_socket, until};

/// Between two datagrams. So few that no queue overflows, and so many that no gap of the datapath passes between two.
const PACE: Duration = Duration::from_millis(4);
/// How long the receiver waits before it looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(50);

/// One direction of traffic that nothing may break.
#[derive(Debug)]
pub struct Drip {
    name: String,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    arrived: Arc<AtomicU64>,
    sender: JoinHandle<Result<()>>,
    receiver: JoinHandle<Result<Vec<u64>>>,
}

impl Drip {
    /// Sends from `from` to `to`, which leads to `at` on `into`.
    pub fn start(
        name: &str,
        (from, to): (&Machine, SocketAddr),
        (into, at): (&Machine, SocketAddr),
    ) -> Result<Self> {
        let inbox = into.run(|| UdpSocket::bind(at))?;
        inbox.set_read_timeout(Some(PATIENCE))?;
        let outbox = from.run(|| udp_socket(0, to))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (sent, arrived) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let sender = {
            let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
            thread::spawn(move || send(&outbox, &stop, &sent))
        };
        let receiver = {
            let (stop, sent, arrived) =
                (Arc::clone(&stop), Arc::clone(&sent), Arc::clone(&arrived));
            thread::spawn(move || receive(&inbox, &stop, &sent, &arrived))
        };
        Ok(Self {
            name: name.to_owned(),
            stop,
            sent,
            arrived,
            sender,
            receiver,
        })
    }

    /// Waits until everything that has been sent so far has arrived.
    pub fn goes_on(&self) -> Result<()> {
        let sent = self.sent.load(Ordering::Acquire);
        until(&format!("{} goes on", self.name), || {
            Ok((self.arrived.load(Ordering::Acquire) >= sent).then_some(()))
        })
    }

    /// Ends it. How many were sent, of which each has arrived once.
    pub fn end(self) -> Result<u64> {
        self.stop.store(true, Ordering::Release);
        let name = self.name;
        self.sender
            .join()
            .ok()
            .context("the sender panicked")?
            .with_context(|| name.clone())?;
        let numbers = self
            .receiver
            .join()
            .ok()
            .context("the receiver panicked")??;
        let sent = self.sent.load(Ordering::Acquire);
        let mut times = vec![0_u32; usize::try_from(sent)?];
        for number in numbers {
            let time = times.get_mut(usize::try_from(number)?);
            *time.with_context(|| format!("{name}: {number} was never sent"))? += 1;
        }
        let lost = times.iter().filter(|times| **times == 0).count();
        let doubled = times.iter().filter(|times| **times > 1).count();
        ensure!(
            lost + doubled == 0,
            "{name}: of {sent} datagrams {lost} are lost and {doubled} doubled; the first lost one is {:?}",
            times.iter().position(|times| *times == 0)
        );
        Ok(sent)
    }
}

fn send(outbox: &UdpSocket, stop: &AtomicBool, sent: &AtomicU64) -> Result<()> {
    while !stop.load(Ordering::Acquire) {
        let number = sent.load(Ordering::Acquire);
        outbox
            .send(&number.to_be_bytes())
            .with_context(|| format!("datagram {number}"))?;
        sent.store(number + 1, Ordering::Release);
        thread::park_timeout(PACE);
    }
    Ok(())
}

/// Ends when it is told to and all has arrived, or nothing arrives any more.
fn receive(
    inbox: &UdpSocket,
    stop: &AtomicBool,
    sent: &AtomicU64,
    arrived: &AtomicU64,
) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    let mut buffer = [0; 8];
    let mut quiet = 0;
    loop {
        let all = numbers.len() as u64 >= sent.load(Ordering::Acquire);
        if stop.load(Ordering::Acquire) && (all || quiet > 10) {
            return Ok(numbers);
        }
        match inbox.recv(&mut buffer) {
            Ok(_) => {
                numbers.push(u64::from_be_bytes(buffer));
                arrived.store(numbers.len() as u64, Ordering::Release);
                quiet = 0;
            }
            Err(_) => quiet += 1,
        }
    }
}
