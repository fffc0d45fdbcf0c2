//! The packet decisions: parsing, classification, NAT, port allocation, flow expiry.
//!
//! Sees packets ([`Packet`]) and the node's tables ([`Node`]) as traits, and nothing of eBPF, aya
//! or the kernel. The same source is compiled into the BPF object, where the traits are helpers and
//! maps, and into tests, where they are a byte slice and ordinary maps (the `simulator` feature).
//!
//! There are two layers. [`hooks`] holds the order of decisions of each hook, one function each,
//! over the [`HookStages`] trait. The methods of [`HookStages`] are stages, and each stage is one
//! function of [`stages`] over ([`Packet`], [`Node`], [`Work`]). Stages pass each other only small
//! numbers and [`Work`]: the kernel verifies each stage once, by itself, and one function per stage
//! keeps the sum of paths small.

#![cfg_attr(not(any(test, feature = "simulator")), no_std)]
#![forbid(unsafe_code)]
#![expect(
    clippy::inline_always,
    reason = "in BPF what is not inlined is a call with a stack frame and pointers that the verifier must follow"
)]

mod access;
pub mod address;
mod admission;
mod bypass;
pub mod checksum;
pub mod crc;
mod discovery;
pub mod drop_record;
mod duplicate;
mod eviction;
mod exit;
pub mod flow;
pub mod flow_cache;
pub mod fragment;
mod fragment_store;
#[macro_use]
mod hook_stages;
pub mod hooks;
mod hostport;
pub mod hostport_from_node;
mod hostport_from_pod;
mod icmp;
mod masquerade;
mod network_policy;
mod node;
mod offload;
mod outcome;
mod packet;
mod parse;
mod policy;
mod rewrite;
mod role;
mod row_cache;
mod sender;
pub mod shape;
#[cfg(any(test, feature = "simulator"))]
pub mod simulator;
pub mod stages;
mod sweep;
mod tcp;
mod tunnel;
mod work;
pub mod xdp_prefilter;

pub use eviction::Search;
pub use fragment_store::FragmentStore;
pub use hook_stages::HookStages;
pub use network_policy::has_policies;
pub use node::{Insertion, Lookups, Node, Socket, Touch};
pub use outcome::{Code, Decision, Verdict};
pub use packet::{ChecksumKind, Packet};
pub use sweep::{Sweep, remove_dead};
pub use work::{
    Content, Fit, Fragment, Headers, Hook, HostportMatch, Lack, Origin, Pair, PendingSearch,
    QuotaUsage, Tracked, Transport, Work,
};
