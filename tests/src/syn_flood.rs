//! A flood of SYNs with forged sources, for tests of what it costs others.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};

use abi::Address;
use anyhow::{Context as _, Result};
use verdict::simulator::frame::{Body, Frame, flag};

use crate::wait::pace;
use crate::{Machine, RawSocket, until};

/// SYNs sent in a row, about each millisecond.
const BURST: u16 = 8;

/// Sends SYNs from forged addresses, a few thousand in a second.
#[derive(Debug)]
pub struct SynFlood {
    /// The sender stops when this end of the channel is closed.
    stop: Sender<()>,
    sent: Arc<AtomicU64>,
    sender: JoinHandle<Result<()>>,
}

impl SynFlood {
    /// Starts to send from `machine`, each SYN with another source address or port.
    pub fn start(machine: &Machine, target: SocketAddr) -> Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let sent = Arc::new(AtomicU64::new(0));
        let (raw, count) = (RawSocket::sender(machine, target.ip())?, Arc::clone(&sent));
        let sender = thread::spawn(move || send(&raw, target, &stopped, &count));
        Ok(Self { stop, sent, sender })
    }

    /// Waits until `more` further SYNs have been sent.
    pub fn await_progress(&self, more: u64) -> Result<()> {
        let before = self.sent();
        until("more SYNs are sent", || {
            Ok((self.sent() > before + more || self.sender.is_finished()).then_some(()))
        })
    }

    /// Returns how many SYNs have been sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Stops sending; returns how many SYNs were sent, or the error of the sender.
    pub fn end(self) -> Result<u64> {
        drop(self.stop);
        self.sender.join().ok().context("the sender panicked")??;
        Ok(self.sent.load(Ordering::Relaxed))
    }
}

fn send(
    raw: &RawSocket,
    target: SocketAddr,
    stopped: &Receiver<()>,
    sent: &AtomicU64,
) -> Result<()> {
    let mut number = 0_u32;
    while stopped.try_recv() == Err(TryRecvError::Empty) {
        for _ in 0..BURST {
            raw.send(&forged_syn(target, number)?, target.ip())?;
            number = number.wrapping_add(1);
        }
        sent.fetch_add(u64::from(BURST), Ordering::Relaxed);
        pace();
    }
    Ok(())
}

/// Returns a SYN of the benchmark ranges (RFC 2544, RFC 5180), from the IP header on.
fn forged_syn(target: SocketAddr, number: u32) -> Result<Vec<u8>> {
    let [_, high, middle, low] = number.to_be_bytes();
    let (source, destination) = match target.ip() {
        IpAddr::V4(to) => (
            Address::v4([198, 18 + high % 2, middle, low]),
            Address::v4(to.octets()),
        ),
        IpAddr::V6(to) => {
            let mut from = [0; 16];
            from[..6].copy_from_slice(&[0x20, 0x01, 0, 2, 0, 0]);
            from[12..].copy_from_slice(&number.to_be_bytes());
            (Address::v6(from), Address::v6(to.octets()))
        }
    };
    let port = u16::try_from(1_024 + number % 60_000)?;
    let body = Body::Tcp(port, target.port(), flag::SYN, Vec::new());
    let mut frame = Frame::new(source, destination, body);
    frame.ethernet = None;
    Ok(frame.packet())
}
