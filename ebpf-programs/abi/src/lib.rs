//! Byte layouts of the BPF maps that the eBPF datapath and the agent share.
//!
//! The crate depends neither on aya nor on std and holds no policy. Addresses and ports are stored
//! in network byte order and built by constructors, so that no caller can confuse the order. Every
//! layout is `repr(C)` with explicit padding, which zerocopy's derives check at compile time; its
//! size is asserted next to it.
//!
//! A change of a layout, map type or capacity requires a new [`ABI_VERSION`]. It is part of the pin
//! path, so an agent of another version never opens maps that it would misread.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod logged_verdict;
pub mod maps;
mod reason;

pub use address::{Address, Family, Mac, Port};
pub use logged_verdict::LoggedVerdict;
pub use maps::layouts::*;
pub use reason::DropReason;

/// Version of all layouts, map types and capacities in this crate; part of the maps' pin path.
///
/// The feature `next-layout`, only for upgrade tests, builds the version after the released one. In
/// it the layout of [`Egress`] has changed.
pub const ABI_VERSION: u32 = RELEASED + cfg!(feature = "next-layout") as u32;

/// [`ABI_VERSION`] of builds without the feature `next-layout`.
const RELEASED: u32 = 4;

/// IP protocol numbers that the datapath distinguishes (IANA "Assigned Internet Protocol Numbers").
pub mod protocol {
    /// ICMP for IPv4 (RFC 792).
    pub const ICMP: u8 = 1;
    /// TCP (RFC 9293).
    pub const TCP: u8 = 6;
    /// UDP (RFC 768).
    pub const UDP: u8 = 17;
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: u8 = 58;
    /// DCCP (RFC 4340).
    pub const DCCP: u8 = 33;
    /// UDP-Lite (RFC 3828).
    pub const UDP_LITE: u8 = 136;
    /// SCTP (RFC 9260).
    pub const SCTP: u8 = 132;
}
