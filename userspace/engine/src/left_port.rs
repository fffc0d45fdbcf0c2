//! A runtime that is about to bind the ports of an attachment.

use std::time::{Duration, Instant};

/// A runtime that is about to bind the ports of an attachment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftPorts {
    pub(crate) process: u32,
    pub(crate) since: Instant,
    pub(crate) interval: Duration,
    pub(crate) next: Instant,
}
