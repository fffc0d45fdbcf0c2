//! A flood of SYNs with forged sources, for tests of what it costs others.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use abi::Address;
use anyhow::{Context as _, Result};
use verdict::simulator::frame::{Body, Frame, flag};

use crate::wait::pace;
use crate::{Machine, RawSocket, until};

/// SYNs sent by one system call, at most.
const BURST: u64 = 64;

/// Time of which the sender makes up for SYNs that it could not send, at most.
const BACKLOG: Duration = Duration::from_millis(100);

/// Sends SYNs from forged addresses at a constant rate.
#[derive(Debug)]
pub struct SynFlood {
    /// The sender stops when this end of the channel is closed.
    stop: Sender<()>,
    sent: Arc<AtomicU64>,
    sender: JoinHandle<Result<Duration>>,
}

/// What a flood has sent.
#[derive(Clone, Copy, Debug)]
pub struct FloodRate {
    /// Number of SYNs.
    pub sent: u64,
    /// SYNs per second, without the time in which the sender waited for a CPU.
    pub per_second: u64,
}

impl SynFlood {
    /// Starts to send `per_second` SYNs each second from `machine`, each with another source
    /// address and port. On a busy machine the rate is lower.
    pub fn start(machine: &Machine, target: SocketAddr, per_second: u32) -> Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let sent = Arc::new(AtomicU64::new(0));
        let (raw, count) = (RawSocket::sender(machine, target.ip())?, Arc::clone(&sent));
        let sender = thread::spawn(move || send(&raw, target, per_second, &stopped, &count));
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

    /// Stops sending; returns what was sent, or the error of the sender.
    pub fn end(self) -> Result<FloodRate> {
        drop(self.stop);
        let took = self.sender.join().ok().context("the sender panicked")??;
        let sent = self.sent.load(Ordering::Relaxed);
        let per_second = u128::from(sent) * 1_000_000_000 / took.as_nanos().max(1);
        Ok(FloodRate {
            sent,
            per_second: u64::try_from(per_second)?,
        })
    }
}

/// Sends until it is stopped; returns the time that this took, without waits for a CPU.
fn send(
    raw: &RawSocket,
    target: SocketAddr,
    per_second: u32,
    stopped: &Receiver<()>,
    sent: &AtomicU64,
) -> Result<Duration> {
    let interval = Duration::from_secs(1) / per_second;
    let (start, waited) = (Instant::now(), waited_for_cpu());
    // Time at which the next SYN is due.
    let mut due = start;
    while stopped.try_recv() == Err(TryRecvError::Empty) {
        let now = Instant::now();
        due = due.max(now.checked_sub(BACKLOG).unwrap_or(start));
        let mut packets = Vec::new();
        let first = sent.load(Ordering::Relaxed);
        for number in first..first + BURST {
            if due > now {
                break;
            }
            packets.push(forged_syn(target, number)?);
            due += interval;
        }
        if packets.is_empty() {
            pace();
            continue;
        }
        raw.send_all(&packets, target.ip())?;
        sent.fetch_add(packets.len() as u64, Ordering::Relaxed);
    }
    let waited = waited_for_cpu().saturating_sub(waited);
    Ok(start.elapsed().saturating_sub(waited))
}

/// Returns the time in which the calling thread could run, and waited for a CPU: the second number
/// of `schedstat`, in nanoseconds. Zero where the kernel does not count it.
fn waited_for_cpu() -> Duration {
    let counted = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = counted.split_whitespace().nth(1);
    Duration::from_nanos(waited.and_then(|waited| waited.parse().ok()).unwrap_or(0))
}

/// Returns a SYN of the benchmark ranges (RFC 2544, RFC 5180), from the IP header on.
fn forged_syn(target: SocketAddr, number: u64) -> Result<Vec<u8>> {
    let number = u32::try_from(number)?;
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
