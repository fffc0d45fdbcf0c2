//! Connections that stay open, and that know when they have been broken.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, ensure};

use crate::{Machine, tcp_ask, tcp_source, udp_ask, udp_source, until};

/// An open connection to an [`crate::Echo`], and as whom the server knows its client.
#[derive(Debug)]
pub enum Conversation {
    /// By TCP.
    Tcp(TcpStream, SocketAddr),
    /// By UDP.
    Udp(UdpSocket, SocketAddr),
}

impl Conversation {
    /// Connects by TCP.
    pub fn tcp(client: &Machine, server: SocketAddr) -> Result<Self> {
        let (seen, stream) = tcp_source(client, 0, server)?;
        Ok(Self::Tcp(stream, seen))
    }

    /// Asks by UDP.
    pub fn udp(client: &Machine, server: SocketAddr) -> Result<Self> {
        let (seen, socket) = udp_source(client, 0, server)?;
        Ok(Self::Udp(socket, seen))
    }

    /// As whom the server sees the client.
    pub fn seen(&self) -> SocketAddr {
        match self {
            Self::Tcp(_, seen) | Self::Udp(_, seen) => *seen,
        }
    }

    /// Asks again; the server must still see the same client.
    pub fn go_on(&self) -> Result<()> {
        match self {
            Self::Tcp(stream, _) => tcp_ask(stream),
            Self::Udp(socket, seen) => {
                let again = udp_ask(socket)?;
                ensure!(again == *seen, "{seen} has become {again}");
                Ok(())
            }
        }
    }
}

/// Conversations that go on in the background until they are told to end or one of them breaks.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    talker: JoinHandle<Result<()>>,
}

impl Load {
    /// Lets all of them go on, one after the other, again and again.
    pub fn start(conversations: Vec<Conversation>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let (stopped, done) = (Arc::clone(&stop), Arc::clone(&rounds));
        let talker = thread::spawn(move || -> Result<()> {
            while !stopped.load(Ordering::Relaxed) {
                for conversation in &conversations {
                    let broken =
                        || format!("round {}: {conversation:?}", done.load(Ordering::Relaxed));
                    conversation.go_on().with_context(broken)?;
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        Self {
            stop,
            rounds,
            talker,
        }
    }

    /// Waits until each conversation has gone on at least once more from now.
    pub fn another_round(&self) -> Result<()> {
        let now = self.rounds.load(Ordering::Relaxed);
        until("all conversations go on", || {
            let over = self.rounds.load(Ordering::Relaxed) > now + 1 || self.talker.is_finished();
            Ok(over.then_some(()))
        })
    }

    /// Ends them, and tells whether they were all unbroken, and how many rounds they made.
    pub fn end(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.talker.join().ok().context("the talker panicked")??;
        Ok(self.rounds.load(Ordering::Relaxed))
    }
}
