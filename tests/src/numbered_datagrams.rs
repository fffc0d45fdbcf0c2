//! A stream of numbered UDP datagrams, 250 a second, that detects each loss and duplicate by
//! number.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::{Machine, bound, enlarge_receive_buffer, patient, udp_socket, until};

/// Interval between two datagrams: long enough that no queue overflows, and short enough to hit
/// every interruption of the datapath.
const PACE: Duration = Duration::from_millis(4);
/// Read timeout of the receiver, after which it checks whether it has to stop.
const PATIENCE: Duration = Duration::from_millis(50);

/// One direction of traffic in which no datagram may be lost or duplicated.
#[derive(Debug)]
pub struct NumberedDatagrams {
    name: String,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    arrived: Arc<AtomicU64>,
    sender: JoinHandle<Result<()>>,
    receiver: JoinHandle<Result<Vec<u64>>>,
}

impl NumberedDatagrams {
    /// Starts to send from `from` to `to`, which reaches the socket bound to `at` on `into`.
    pub fn start(
        name: &str,
        (from, to): (&Machine, SocketAddr),
        (into, at): (&Machine, SocketAddr),
    ) -> Result<Self> {
        let inbox = bound(into, at, UdpSocket::bind)?;
        inbox.set_read_timeout(Some(patient(PATIENCE)))?;
        enlarge_receive_buffer(&inbox)?;
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

    /// Waits until all datagrams that have been sent so far have arrived.
    pub fn await_progress(&self) -> Result<()> {
        let sent = self.sent.load(Ordering::Acquire);
        until(&format!("datagrams {} arrive", self.name), || {
            Ok((self.arrived.load(Ordering::Acquire) >= sent).then_some(()))
        })
    }

    /// Stops; returns the number of datagrams. A lost or duplicated datagram is an error.
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
            *time.with_context(|| format!("{name}: datagram {number} was never sent"))? += 1;
        }
        let lost = times.iter().filter(|times| **times == 0).count();
        let doubled = times.iter().filter(|times| **times > 1).count();
        ensure!(
            lost + doubled == 0,
            "{name}: {lost} of {sent} datagrams lost, {doubled} duplicated; first lost: {:?}",
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

/// Receives until `stop` is set and all datagrams have arrived, or none arrives for ten timeouts.
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
