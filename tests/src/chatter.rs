//! Datagrams without a pause, which hit any moment at which a node does the wrong thing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};

use crate::{Machine, udp_socket, until};

/// A machine that sends datagrams of one old flow and of ever new ones to each of some servers.
#[derive(Debug)]
pub struct Chatter {
    /// It ends when this is gone.
    stop: Sender<()>,
    sent: Arc<AtomicU64>,
    sender: JoinHandle<Result<()>>,
}

impl Chatter {
    /// Starts to send from `machine`.
    pub fn start(machine: &Machine, servers: &[SocketAddr]) -> Self {
        let (stop, stopped) = mpsc::channel();
        let sent = Arc::new(AtomicU64::new(0));
        let (machine, servers, count) = (machine.clone(), servers.to_vec(), Arc::clone(&sent));
        let sender = thread::spawn(move || machine.run(move || send(&servers, &stopped, &count)));
        Self { stop, sent, sender }
    }

    /// Waits until so many more datagrams have been sent.
    pub fn goes_on(&self, more: u64) -> Result<()> {
        let before = self.sent.load(Ordering::Relaxed);
        until("there is chatter", || {
            Ok((self.sent.load(Ordering::Relaxed) > before + more).then_some(()))
        })
    }

    /// Ends it.
    pub fn end(self) -> Result<()> {
        drop(self.stop);
        self.sender.join().ok().context("the chatter panicked")?
    }
}

fn send(servers: &[SocketAddr], stopped: &Receiver<()>, sent: &AtomicU64) -> Result<()> {
    let old = servers
        .iter()
        .map(|server| udp_socket(0, *server))
        .collect::<std::io::Result<Vec<_>>>()?;
    while stopped.try_recv() == Err(TryRecvError::Empty) {
        for (server, old) in servers.iter().zip(&old) {
            // While routes are moving, sending may fail; what leaves the node is what counts.
            let _ = old.send(b"old");
            let _ = udp_socket(0, *server)?.send(b"new");
            sent.fetch_add(2, Ordering::Relaxed);
        }
        // Enough to hit any moment, and not so much that the node has no time for anything else.
        thread::yield_now();
    }
    Ok(())
}
