//! Parameters of the token buckets that limit pods.

use std::fmt;

/// Parameters of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Rate in bit/s.
    pub rate: u64,
    /// Burst in bytes.
    pub burst: u64,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bit/s, burst {} bytes", self.rate, self.burst)
    }
}
