//! Many bytes by TCP: the receiver compares each with what was sent, or both ends sum up all by SHA-256.

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

use crate::wait::rest;
use crate::{Machine, patient, until};

/// Bytes that are written or compared at a time.
const BLOCK: usize = 128 << 10;
/// Length of the pattern that blocks are cut from. Prime, so that no two neighbours are alike.
const PATTERN: usize = 1_048_573;
/// How long one side may hear nothing.
const PATIENCE: Duration = Duration::from_secs(15);

/// A server and its one client; either sends while the other compares.
#[derive(Debug)]
pub struct Stream {
    received: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    sender: JoinHandle<Result<Passed>>,
    receiver: JoinHandle<Result<Passed>>,
}

/// What has passed one end: how many bytes, and their SHA-256 where it was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Passed {
    bytes: u64,
    hash: Option<Vec<u8>>,
}

/// How the ends make sure of the bytes.
#[derive(Clone, Copy, Debug)]
enum Proof {
    Comparison,
    Hash,
}

/// A number of bytes that no test waits for: see [`Stream::stop`]. On a slow machine they go slowly.
pub const ENDLESS: u64 = u64::MAX;

/// Which side of a connection sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// Whoever has connected.
    Client,
    /// Whoever was connected to.
    Server,
}

impl Stream {
    /// Listens at `port` of `server`, connects from `client` to `to`, and sends `bytes` the way of `sends`.
    pub fn start(
        client: (&Machine, SocketAddr),
        server: (&Machine, u16),
        sends: Sends,
        bytes: u64,
    ) -> Result<Self> {
        Self::prove(Proof::Comparison, client, server, sends, bytes)
    }

    /// As [`Stream::start`], but each end takes the SHA-256 of all bytes and knows nothing else about them.
    pub fn hashed(
        client: (&Machine, SocketAddr),
        server: (&Machine, u16),
        sends: Sends,
        bytes: u64,
    ) -> Result<Self> {
        Self::prove(Proof::Hash, client, server, sends, bytes)
    }

    fn prove(
        proof: Proof,
        (client, to): (&Machine, SocketAddr),
        (server, port): (&Machine, u16),
        sends: Sends,
        bytes: u64,
    ) -> Result<Self> {
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let listener = server.run(|| TcpListener::bind(address))?;
        let connected = client
            .run(|| TcpStream::connect_timeout(&to, patient(Duration::from_secs(5))))
            .with_context(|| format!("{}: no connection to {to}", client.name()))?;
        let (accepted, _) = listener.accept()?;
        for stream in [&connected, &accepted] {
            stream.set_read_timeout(Some(patient(PATIENCE)))?;
            stream.set_write_timeout(Some(patient(PATIENCE)))?;
        }
        let (from, into) = match sends {
            Sends::Client => (connected, accepted),
            Sends::Server => (accepted, connected),
        };
        let received = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&received);
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        Ok(Self {
            received,
            stop,
            sender: thread::spawn(move || send(from, bytes, &told, proof)),
            receiver: thread::spawn(move || match proof {
                Proof::Comparison => compare(into, &counter),
                Proof::Hash => hash(into, &counter),
            }),
        })
    }

    /// Waits until `more` bytes have arrived from now on.
    pub fn goes_on(&self, more: u64) -> Result<()> {
        let now = self.received.load(Ordering::Relaxed);
        until("the stream goes on", || {
            let over = self.received.load(Ordering::Relaxed) >= now + more;
            Ok((over || self.receiver.is_finished()).then_some(()))
        })?;
        ensure!(
            self.received.load(Ordering::Relaxed) >= now + more,
            "the stream has ended early"
        );
        Ok(())
    }

    /// Sends no more than what is under way, and waits for the end.
    pub fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.end()
    }

    /// Waits for the last byte; succeeds when each has arrived as it was sent.
    pub fn end(self) -> Result<()> {
        let received = self.receiver.join().ok().context("the receiver panicked")?;
        let sent = self.sender.join().ok().context("the sender panicked")?;
        let (sent, received) = (sent?, received?);
        ensure!(
            sent == received,
            "{sent:x?} were sent, {received:x?} have arrived"
        );
        Ok(())
    }
}

fn send(mut stream: TcpStream, bytes: u64, stop: &AtomicBool, proof: Proof) -> Result<Passed> {
    let pattern = pattern();
    let mut hash = match proof {
        Proof::Comparison => None,
        Proof::Hash => Some(Sha256::new()),
    };
    let mut sent = 0;
    while sent < bytes && !stop.load(Ordering::Relaxed) {
        let block = block(&pattern, sent, bytes);
        stream
            .write_all(block)
            .with_context(|| format!("after {sent} bytes"))?;
        if let Some(hash) = &mut hash {
            hash.update(block);
        }
        sent += block.len() as u64;
        if bytes == ENDLESS {
            rest();
        }
    }
    Ok(Passed {
        bytes: sent,
        hash: hash.map(|hash| hash.finalize().to_vec()),
    })
}

fn compare(stream: TcpStream, received: &AtomicU64) -> Result<Passed> {
    let pattern = pattern();
    let bytes = read_all(stream, received, |bytes, position| {
        let expected = &block(&pattern, position, u64::MAX)[..bytes.len()];
        ensure!(bytes == expected, "wrong bytes behind {position}");
        Ok(())
    })?;
    Ok(Passed { bytes, hash: None })
}

fn hash(stream: TcpStream, received: &AtomicU64) -> Result<Passed> {
    let mut hash = Sha256::new();
    let bytes = read_all(stream, received, |bytes, _| {
        hash.update(bytes);
        Ok(())
    })?;
    let hash = Some(hash.finalize().to_vec());
    Ok(Passed { bytes, hash })
}

/// Reads to the end, and returns how many bytes there were. `take` gets them with their position.
fn read_all(
    mut stream: TcpStream,
    received: &AtomicU64,
    mut take: impl FnMut(&[u8], u64) -> Result<()>,
) -> Result<u64> {
    let mut buffer = vec![0; BLOCK];
    let mut position = 0;
    loop {
        let length = stream
            .read(&mut buffer)
            .with_context(|| format!("after {position} bytes"))?;
        if length == 0 {
            return Ok(position);
        }
        take(&buffer[..length], position)?;
        position += length as u64;
        received.store(position, Ordering::Relaxed);
    }
}

/// The bytes at `position` of a stream of `end` bytes.
fn block(pattern: &[u8], position: u64, end: u64) -> &[u8] {
    let length = usize::try_from(end - position).map_or(BLOCK, |left| left.min(BLOCK));
    let start = usize::try_from(position % PATTERN as u64).unwrap_or(0);
    &pattern[start..start + length]
}

/// Bytes without order (xorshift64), and the first ones again, so that a block may start anywhere.
fn pattern() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    });
    let mut pattern = words
        .flat_map(u64::to_le_bytes)
        .take(PATTERN)
        .collect::<Vec<_>>();
    pattern.extend_from_within(..BLOCK);
    pattern
}
