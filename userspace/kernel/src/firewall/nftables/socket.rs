//! A netlink socket for rulesets.

use crate::netlink::messages::messages;
use nix::libc::{self, MSG_DONTWAIT};
use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::sys::Socket;
use std::io;

use super::batch::Batch;
use super::family::HEADER;
use crate::netlink::socket;

/// `NLMSG_ERROR` and `NLMSG_DONE`.
pub(super) const ERROR: u16 = 2;
const DONE: u16 = 3;

/// Failure of a transaction, of which nothing has taken effect.
#[derive(Debug)]
pub(crate) struct Rejected {
    /// Number of the message in the batch, from zero; `None` where the whole batch is refused.
    pub(crate) message: Option<usize>,
    /// Error of the kernel. `ERESTART` for a ruleset that is no longer of the batch's generation.
    pub(crate) error: io::Error,
}

impl From<io::Error> for Rejected {
    fn from(error: io::Error) -> Self {
        Self {
            message: None,
            error,
        }
    }
}

impl From<Rejected> for io::Error {
    fn from(rejected: Rejected) -> Self {
        rejected.error
    }
}

impl Rejected {
    /// Returns whether the ruleset has changed since its generation was read: read it again.
    pub(crate) fn is_outdated(&self) -> bool {
        /// `ERESTART` of the kernel's `linux/errno.h`.
        const RESTART: i32 = 85;
        self.message.is_none() && self.error.raw_os_error() == Some(RESTART)
    }
}

/// A netlink socket for the rulesets of one network namespace.
pub(crate) struct Nftables {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Nftables {
    /// Opens a socket in the namespace of the calling thread; `None` where the kernel has no
    /// netfilter netlink.
    pub(crate) fn open() -> io::Result<Option<Self>> {
        let Some(socket) = socket::open_netfilter()? else {
            return Ok(None);
        };
        Ok(Some(Self {
            socket,
            buffer: Vec::with_capacity(64 * 1024),
        }))
    }

    /// Executes the transaction.
    pub(crate) fn commit(&mut self, batch: Batch) -> Result<(), Rejected> {
        if batch.is_empty() {
            return Ok(());
        }
        let (bytes, messages) = batch.finish();
        // One call must take the whole batch. The acknowledgements of failures quote the messages.
        let _larger = setsockopt(
            &self.socket,
            sockopt::SndBufForce,
            &(bytes.len() * 2 + 4096),
        );
        self.socket.send(&bytes, 0)?;
        let outcome = self.acknowledged(messages);
        crash::point();
        outcome
    }

    /// Reads the acknowledgements, which are there when `send` returns: of the last message, or of
    /// each that failed. Message `n` has sequence number `n + 1`, the batch's begin has zero.
    pub(super) fn acknowledged(&mut self, count: usize) -> Result<(), Rejected> {
        let mut done = false;
        let mut failure: Option<Rejected> = None;
        loop {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer, MSG_DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
            for (sequence, code) in results(&self.buffer) {
                let sequence = sequence as usize;
                done |= code == 0 && sequence == count;
                if code != 0 && failure.is_none() {
                    failure = Some(Rejected {
                        message: sequence.checked_sub(1),
                        error: io::Error::from_raw_os_error(-code),
                    });
                }
            }
        }
        match failure {
            Some(failure) => Err(failure),
            None if done => Ok(()),
            None => Err(socket::no_answer().into()),
        }
    }

    /// Sends a request that the kernel answers with objects, and returns those of `kind`: payloads
    /// after `struct nlmsghdr`. An object that does not exist is an empty answer.
    pub(super) fn request(&mut self, request: &[u8], kind: u16) -> io::Result<Vec<Vec<u8>>> {
        self.socket.send(request, 0)?;
        let mut found = Vec::new();
        loop {
            socket::receive(&self.socket, &mut self.buffer)?;
            let mut finished = false;
            for (this, body) in messages(&self.buffer) {
                match this {
                    DONE => finished = true,
                    ERROR => {
                        let code = body
                            .first_chunk::<4>()
                            .map_or(0, |it| i32::from_ne_bytes(*it));
                        if code != 0 && code != -libc::ENOENT {
                            return Err(io::Error::from_raw_os_error(-code));
                        }
                        finished = true;
                    }
                    _ if this == kind => found.push(body.to_vec()),
                    _ => {}
                }
            }
            if finished {
                return Ok(found);
            }
        }
    }
}

/// Returns sequence number and error of each acknowledgement (`struct nlmsgerr`).
pub(crate) fn results(bytes: &[u8]) -> Vec<(u32, i32)> {
    let word = |at: usize| {
        bytes
            .get(at..)
            .and_then(|rest| rest.first_chunk::<4>())
            .map(|word| u32::from_ne_bytes(*word))
    };
    let mut found = Vec::new();
    let mut at = 0;
    while let (Some(length), Some(kind), Some(sequence), Some(code)) =
        (word(at), word(at + 4), word(at + 8), word(at + HEADER))
    {
        if kind & 0xffff == u32::from(ERROR).to_le() {
            found.push((sequence, code.cast_signed()));
        }
        at += (length as usize).max(HEADER).next_multiple_of(4);
    }
    found
}
