//! A continuous stream of frames, to observe what others still get beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};

use crate::wait::pace;
use crate::{FrameSender, until};

/// Frames between two pauses of a millisecond.
const BURST: u64 = 4;

/// Sends frames until it is ended, at most 4,000 in a second.
#[derive(Debug)]
pub struct FrameFlood {
    /// The sender stops when this end of the channel is closed.
    stop: Sender<()>,
    sent: Arc<AtomicU64>,
    sender: JoinHandle<Result<()>>,
}

impl FrameFlood {
    /// Starts to send; `frame` returns the frame of this number.
    pub fn start(sender: FrameSender, frame: impl Fn(u64) -> Vec<u8> + Send + 'static) -> Self {
        let (stop, stopped) = mpsc::channel();
        let sent = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&sent);
        let sender = thread::spawn(move || send(&sender, &frame, &stopped, &count));
        Self { stop, sent, sender }
    }

    /// Waits until at least this many frames have been sent in all.
    pub fn await_sent(&self, frames: u64) -> Result<()> {
        until("the flood has sent its frames", || {
            Ok((self.sent.load(Ordering::Relaxed) >= frames).then_some(()))
        })
    }

    /// Stops sending; returns the number of frames sent.
    pub fn end(self) -> Result<u64> {
        drop(self.stop);
        self.sender.join().ok().context("the sender panicked")??;
        Ok(self.sent.load(Ordering::Relaxed))
    }
}

fn send(
    sender: &FrameSender,
    frame: &impl Fn(u64) -> Vec<u8>,
    stopped: &Receiver<()>,
    sent: &AtomicU64,
) -> Result<()> {
    while stopped.try_recv() == Err(TryRecvError::Empty) {
        for _ in 0..BURST {
            sender.send(&frame(sent.fetch_add(1, Ordering::Relaxed)))?;
        }
        pace();
    }
    Ok(())
}
