//! A continuous stream of UDP datagrams of established and new flows, to catch short moments in
//! which a node forwards wrongly.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};

use crate::wait::pace;
use crate::{Machine, udp_socket, until};

/// Datagrams of the established flow for each one of a new flow. The node forgets a flow half a
/// minute after its only datagram: new flows for the time of a test must fit into its tables.
const BURST: u64 = 4;

/// Sends datagrams to each of several servers, a few thousand in a second: of an established flow,
/// and of a new flow now and then.
#[derive(Debug)]
pub struct DatagramFlood {
    /// The sender stops when this end of the channel is closed.
    stop: Sender<()>,
    sent: Arc<AtomicU64>,
    sender: JoinHandle<Result<()>>,
}

impl DatagramFlood {
    /// Starts to send from `machine`.
    pub fn start(machine: &Machine, servers: &[SocketAddr]) -> Self {
        let (stop, stopped) = mpsc::channel();
        let sent = Arc::new(AtomicU64::new(0));
        let (machine, servers, count) = (machine.clone(), servers.to_vec(), Arc::clone(&sent));
        let sender = thread::spawn(move || machine.run(move || send(&servers, &stopped, &count)));
        Self { stop, sent, sender }
    }

    /// Waits until `more` further datagrams have been sent.
    pub fn await_progress(&self, more: u64) -> Result<()> {
        let before = self.sent.load(Ordering::Relaxed);
        until("more datagrams are sent", || {
            Ok((self.sent.load(Ordering::Relaxed) > before + more).then_some(()))
        })
    }

    /// Stops sending; returns the error of the sender, if any.
    pub fn end(self) -> Result<()> {
        drop(self.stop);
        self.sender.join().ok().context("the sender panicked")?
    }
}

fn send(servers: &[SocketAddr], stopped: &Receiver<()>, sent: &AtomicU64) -> Result<()> {
    let old = servers
        .iter()
        .map(|server| udp_socket(0, *server))
        .collect::<std::io::Result<Vec<_>>>()?;
    while stopped.try_recv() == Err(TryRecvError::Empty) {
        for (server, old) in servers.iter().zip(&old) {
            // Sending may fail while routes change; the test observes the packets that leave the
            // node.
            for _ in 0..BURST {
                let _ = old.send(b"old");
            }
            let _ = udp_socket(0, *server)?.send(b"new");
            sent.fetch_add(1 + BURST, Ordering::Relaxed);
        }
        pace();
    }
    Ok(())
}
