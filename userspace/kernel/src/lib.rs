//! The only crate with effects on the kernel: netlink, namespaces, sysctls, eBPF. It does not decide: it observes
//! what a [`Scope`] asks for, and executes one [`Step`] at a time.
//!
//! [`Host`] is the real kernel; `fake::Fake` (feature `fake`) an in-memory one with the same errors, kept honest by
//! tests that run the same steps against both.

#![deny(unsafe_code)]

mod addresses;
mod batch;
mod behind;
mod busy;
mod bytes;
mod counters;
mod entries;
mod error;
mod events;
mod execute;
#[cfg(feature = "fake")]
pub mod fake;
mod features;
mod filters;
mod flows;
mod guards;
mod heap;
mod holders;
mod host;
mod instructions;
mod ipsec;
mod kept;
mod limits;
mod links;
mod names;
mod netfilter;
mod netlink;
mod netns;
mod observe;
mod peers;
mod pinned;
mod pins;
mod pod;
mod port;
mod port_user;
mod programs;
mod raw;
mod removal;
mod routes;
mod scrub;
mod sockets;
mod succession;
mod switching;
mod sysctl;
mod tables;
mod tuning;
mod usable;
mod xtables;

pub use error::{ObserveError, OpenError, StepError};
pub use events::{Change, Changes};
pub use features::Feature;
pub use flows::FlowReader;
pub use host::{Host, HostOptions, boot_id, memory};
pub use netfilter::{RuleChanges, RuleReader};
pub use pins::remove_pins;
pub use port_user::{PortInUse, Process};
pub use sockets::cgroup_root;

use std::collections::{BTreeMap, BTreeSet};

use planner::{Observed, Scope, Step};

/// The seam between decisions and effects.
pub trait Kernel {
    /// Looks at the kernel; changes nothing.
    fn observe(&mut self, scope: &Scope) -> Result<Observed, ObserveError>;

    /// Executes one step. Idempotent: a step that is already done succeeds and changes nothing.
    fn execute(&mut self, step: &Step) -> Result<(), StepError>;

    /// Reads the counters.
    fn measure(&mut self) -> Result<Measured, ObserveError>;

    /// Reads what these pods have sent, by slot. Nothing where the kernel has no room for [`planner::Hook::FromBusyPod`].
    fn sent(&mut self, slots: &BTreeSet<u32>)
    -> Result<BTreeMap<u32, abi::Counters>, ObserveError>;
}

/// Counters at one moment, added up over all CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// By the pod's slot: egress (from the pod) and ingress (to the pod). Slots without traffic may be missing.
    pub pods: BTreeMap<u32, PodCounters>,
    /// By drop reason; reasons never met are missing.
    pub drops: BTreeMap<abi::DropReason, abi::DropCount>,
    /// Entries in the flow table (two for each flow).
    pub flow_entries: u32,
}

/// Both directions of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCounters {
    /// From the pod.
    pub egress: abi::Counters,
    /// To the pod.
    pub ingress: abi::Counters,
    /// From the pod, as far as it is limited.
    pub shaped_egress: abi::Shaped,
    /// To the pod, as far as it is limited.
    pub shaped_ingress: abi::Shaped,
}
