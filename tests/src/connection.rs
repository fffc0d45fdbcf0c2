//! Connections that stay open during a test and detect that they were broken.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, ensure};

use crate::{Machine, tcp_echo, tcp_source, udp_seen_as, udp_source, until};

/// An open connection to an [`crate::Echo`], with the client address that the server sees.
#[derive(Debug)]
pub enum Connection {
    /// A TCP connection.
    Tcp(TcpStream, SocketAddr),
    /// A connected UDP socket.
    Udp(UdpSocket, SocketAddr),
}

impl Connection {
    /// Opens a TCP connection from `client`.
    pub fn tcp(client: &Machine, server: SocketAddr) -> Result<Self> {
        let (seen, stream) = tcp_source(client, 0, server)?;
        Ok(Self::Tcp(stream, seen))
    }

    /// Opens a UDP flow from `client`.
    pub fn udp(client: &Machine, server: SocketAddr) -> Result<Self> {
        let (seen, socket) = udp_source(client, 0, server)?;
        Ok(Self::Udp(socket, seen))
    }

    /// Returns the client address that the server sees.
    pub fn seen(&self) -> SocketAddr {
        match self {
            Self::Tcp(_, seen) | Self::Udp(_, seen) => *seen,
        }
    }

    /// Sends a request and reads the response; the server must still see the same client address.
    pub fn exchange(&self) -> Result<()> {
        match self {
            Self::Tcp(stream, _) => tcp_echo(stream),
            Self::Udp(socket, seen) => {
                let again = udp_seen_as(socket)?;
                ensure!(
                    again == *seen,
                    "the client's address {seen} changed to {again}"
                );
                Ok(())
            }
        }
    }
}

/// Exchanges on several connections in the background, until it is stopped or one of them breaks.
#[derive(Debug)]
pub struct ConnectionLoad {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    worker: JoinHandle<Result<()>>,
}

impl ConnectionLoad {
    /// Starts a thread that exchanges on all connections in turns.
    pub fn start(connections: Vec<Connection>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let (stopped, done) = (Arc::clone(&stop), Arc::clone(&rounds));
        let worker = thread::spawn(move || -> Result<()> {
            while !stopped.load(Ordering::Relaxed) {
                for connection in &connections {
                    let broken =
                        || format!("round {}: {connection:?}", done.load(Ordering::Relaxed));
                    connection.exchange().with_context(broken)?;
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        Self {
            stop,
            rounds,
            worker,
        }
    }

    /// Waits until each connection has made at least one more exchange, or one has failed.
    pub fn await_round(&self) -> Result<()> {
        let now = self.rounds.load(Ordering::Relaxed);
        until("all connections make an exchange", || {
            let over = self.rounds.load(Ordering::Relaxed) > now + 1 || self.worker.is_finished();
            Ok(over.then_some(()))
        })
    }

    /// Stops; returns the number of rounds, or the error of the connection that broke.
    pub fn end(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.join().ok().context("the worker panicked")??;
        Ok(self.rounds.load(Ordering::Relaxed))
    }
}
