//! What to do with a packet: parse, classify, translate, allocate ports, forget flows.
//!
//! Knows packets ([`Packet`]) and the node's tables ([`Node`]) as traits, and nothing of eBPF, aya or the kernel: the
//! same source is compiled into the BPF object, where the traits are helpers and maps, and into tests, where they
//! are a byte slice and ordinary maps (the `simulator` feature).
//!
//! There are two layers. [`hooks`] holds the order of decisions of each hook, one function each, over the [`Hook`]
//! trait. The methods of [`Hook`] are stages, and each stage is one function of [`stages`] over ([`Packet`],
//! [`Node`], [`Work`]). Between stages nothing is passed but small numbers and [`Work`]: the kernel verifies each
//! stage by itself, once, and a stage per function keeps the sum of paths small.

#![cfg_attr(not(any(test, feature = "simulator")), no_std)]
#![forbid(unsafe_code)]
#![expect(
    clippy::inline_always,
    reason = "in BPF what is not inlined is a call with a stack frame and pointers that the verifier must follow"
)]

pub mod address;
mod bypass;
pub mod checksum;
mod crc;
pub mod dial;
mod duplicate;
mod exit;
pub mod flow;
mod fragment;
pub mod guard;
pub mod hooks;
mod hostport;
mod icmp;
mod known;
mod local;
mod masquerade;
mod node;
mod outcome;
mod packet;
mod parse;
mod policy;
mod rewrite;
mod room;
mod sender;
pub mod shape;
pub mod shortcut;
#[cfg(any(test, feature = "simulator"))]
pub mod simulator;
pub mod stages;
mod sweep;
mod work;

pub use hooks::Hook;
pub use node::{Insertion, Node, Socket, Touch};
pub use outcome::{Code, Decision, Verdict};
pub use packet::{ChecksumKind, Packet};
pub use room::Hand;
pub use sweep::{Sweep, forget};
pub use work::{
    Content, Fragment, Headers, HostportMatch, Origin, Pair, Tracked, Transport, Way, Work,
};
