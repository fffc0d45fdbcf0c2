//! Bulk TCP with verified content: the receiver compares each byte with a known pattern, or both
//! ends compute the SHA-256 of all bytes.

use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

use crate::{Machine, bound, patient, until};

/// Number of bytes that are written or compared at a time.
const BLOCK: usize = 128 << 10;
/// Length of the pattern from which blocks are taken. Prime, so that no two consecutive blocks are
/// equal.
const PATTERN: usize = 1_048_573;
/// Timeout of connects, reads and writes.
const PATIENCE: Duration = Duration::from_secs(15);

/// One TCP connection between two machines, on which one end sends and the other verifies.
#[derive(Debug)]
pub struct Stream {
    received: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    sender: JoinHandle<Result<Transferred>>,
    receiver: JoinHandle<Result<Transferred>>,
}

/// Number of bytes that one end has sent or received, and their SHA-256 with [`Check::Hash`].
#[derive(Debug, PartialEq, Eq)]
struct Transferred {
    bytes: u64,
    hash: Option<Vec<u8>>,
}

/// Verification of the bytes.
#[derive(Clone, Copy, Debug)]
enum Check {
    Comparison,
    Hash,
}

/// Number of bytes of a stream that ends with [`Stream::stop`]. Its sender pauses for [`PACE`]
/// between blocks.
pub const ENDLESS: u64 = u64::MAX;

/// Makes 16 MB a second at most: processors are left for what happens beside the stream.
const PACE: Duration = Duration::from_millis(8);

/// Which side of a connection sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sends {
    /// The end that connects.
    Client,
    /// The end that listens.
    Server,
}

impl Stream {
    /// Listens on a port of `server`, connects from `client` to an address, and sends `bytes` in
    /// the direction of `sends`. The receiver compares each byte.
    pub fn start(
        client: (&Machine, SocketAddr),
        server: (&Machine, u16),
        sends: Sends,
        bytes: u64,
    ) -> Result<Self> {
        Self::open(Check::Comparison, client, server, sends, bytes)
    }

    /// Does the same as [`Stream::start`], but verifies the bytes with SHA-256 at the end.
    pub fn hashed(
        client: (&Machine, SocketAddr),
        server: (&Machine, u16),
        sends: Sends,
        bytes: u64,
    ) -> Result<Self> {
        Self::open(Check::Hash, client, server, sends, bytes)
    }

    fn open(
        check: Check,
        (client, to): (&Machine, SocketAddr),
        (server, port): (&Machine, u16),
        sends: Sends,
        bytes: u64,
    ) -> Result<Self> {
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let listener = bound(server, address, TcpListener::bind)?;
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
        let stopped = Arc::clone(&stop);
        Ok(Self {
            received,
            stop,
            sender: thread::spawn(move || send(from, bytes, &stopped, check)),
            receiver: thread::spawn(move || match check {
                Check::Comparison => compare(into, &counter),
                Check::Hash => hash(into, &counter),
            }),
        })
    }

    /// Waits until `more` further bytes have arrived.
    pub fn await_progress(&self, more: u64) -> Result<()> {
        let now = self.received.load(Ordering::Relaxed);
        until("bytes of the stream arrive", || {
            let over = self.received.load(Ordering::Relaxed) >= now + more;
            Ok((over || self.receiver.is_finished()).then_some(()))
        })?;
        ensure!(
            self.received.load(Ordering::Relaxed) >= now + more,
            "the stream ended early"
        );
        Ok(())
    }

    /// Stops sending, and waits as [`Stream::end`].
    pub fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.end()
    }

    /// Waits for the last byte. A missing or changed byte is an error.
    pub fn end(self) -> Result<()> {
        let received = self.receiver.join().ok().context("the receiver panicked")?;
        let sent = self.sender.join().ok().context("the sender panicked")?;
        let (sent, received) = (sent?, received?);
        ensure!(sent == received, "sent {sent:x?}, received {received:x?}");
        Ok(())
    }
}

fn send(mut stream: TcpStream, bytes: u64, stop: &AtomicBool, check: Check) -> Result<Transferred> {
    let pattern = pattern();
    let mut hash = match check {
        Check::Comparison => None,
        Check::Hash => Some(Sha256::new()),
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
            thread::sleep(PACE);
        }
    }
    Ok(Transferred {
        bytes: sent,
        hash: hash.map(|hash| hash.finalize().to_vec()),
    })
}

fn compare(stream: TcpStream, received: &AtomicU64) -> Result<Transferred> {
    let pattern = pattern();
    let bytes = read_all(stream, received, |bytes, position| {
        let expected = &block(&pattern, position, u64::MAX)[..bytes.len()];
        ensure!(bytes == expected, "wrong bytes after position {position}");
        Ok(())
    })?;
    Ok(Transferred { bytes, hash: None })
}

fn hash(stream: TcpStream, received: &AtomicU64) -> Result<Transferred> {
    let mut hash = Sha256::new();
    let bytes = read_all(stream, received, |bytes, _| {
        hash.update(bytes);
        Ok(())
    })?;
    let hash = Some(hash.finalize().to_vec());
    Ok(Transferred { bytes, hash })
}

/// Reads to the end, and returns the number of bytes. Calls `take` with each block and its
/// position.
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

/// Returns the next block at `position` of a stream of `end` bytes.
fn block(pattern: &[u8], position: u64, end: u64) -> &[u8] {
    let length = usize::try_from(end - position).map_or(BLOCK, |left| left.min(BLOCK));
    let start = usize::try_from(position % PATTERN as u64).unwrap_or(0);
    &pattern[start..start + length]
}

/// Returns pseudo-random bytes (xorshift64), followed by the first block again, so that a block can
/// start at any position.
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
