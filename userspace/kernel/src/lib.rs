//! Reads and changes the kernel: netlink, network namespaces, sysctls and eBPF.
//!
//! No other crate of the agent has effects on the kernel. This one takes no decisions: it observes
//! the part of the kernel that a [`Question`] is about, and executes one [`Step`] at a time.
//!
//! [`Host`] is the real kernel. `fake::Fake` (feature `fake`) is an in-memory kernel that returns
//! the same errors; the parity tests execute the same random steps on both and compare.

#![deny(unsafe_code)]

mod bpf;
mod error;
mod execute;
#[cfg(feature = "fake")]
pub mod fake;
mod firewall;
mod foreign;
mod host;
mod host_kernel;
mod netlink;
mod node_checks;
mod node_lookups;
mod node_reader;
mod observe;
mod pod;
mod ports;
mod process;
mod syscall;
mod sysctl;
#[cfg(any(test, feature = "fuzzing"))]
pub mod testing;
mod translated_connections;

pub use bpf::cgroup::{NodeCgroup, cgroup_root, configured_cgroup};
pub use bpf::datapath_log::{DatapathLog, DatapathLogRecord, follow_datapath_log};
pub use bpf::datapath_reader::DatapathReader;
pub use bpf::drop_reader::{DropListener, DropReader, DropReport};
pub use bpf::features::{Feature, helper_constants};
pub use bpf::flows::FlowReader;
pub use bpf::offloads::Offloads;
pub use bpf::pins::remove_pins;
pub use error::{ObserveError, OpenError, StepError};
pub use foreign::netfilter::{RuleChanges, RuleReader};
pub use host::{Host, HostOptions, boot_id, memory, possible_cpus};
pub use netlink::event_reporter::EventReporter;
pub use netlink::monitor::{Change, Changes};
pub use netlink::sock_diag::read_sockets;
pub use node_lookups::NodeLookups;
pub use node_reader::NodeReader;
pub use pod::namespace::Namespace;
pub use ports::reservations::raise_file_limit;
pub use ports::users::{PortInUse, ancestors};
pub use process::memory::{release_code, release_free_memory};
pub use process::thread::ThreadId;
pub use steps::Process;
pub use syscall::peer_groups;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use model::DatapathLogLevel;
use steps::{
    AddressQuery, AttachmentQuery, CheckQuery, ForwardingQuery, HostSideQuery, NetnsQuery,
    NodeQuery, PortQuery, PortUserQuery, Question, SettingsQuery, Step, SysctlQuery,
    TrackedConnection,
};

/// Answers one kind of question about the kernel.
pub trait Observe<Q: Question> {
    /// Reads what `question` asks for; changes nothing.
    fn observe(&mut self, question: &Q) -> Result<Q::Answer, ObserveError>;
}

/// Interface between the engine, which decides, and the kernel, which is observed and changed.
pub trait Kernel:
    Observe<NodeQuery>
    + Observe<CheckQuery>
    + Observe<SysctlQuery>
    + Observe<NetnsQuery>
    + Observe<AttachmentQuery>
    + Observe<HostSideQuery>
    + Observe<AddressQuery>
    + Observe<PortQuery>
    + Observe<ForwardingQuery>
    + Observe<PortUserQuery>
    + Observe<SettingsQuery>
{
    /// Executes one step. Idempotent: a step that has already been executed succeeds and changes
    /// nothing.
    fn execute(&mut self, step: &Step) -> Result<(), StepError>;

    /// Ends the takeover from an agent of an older ABI version: copies what its programs have
    /// written until they were replaced, and removes its pins. Called when all programs are
    /// replaced.
    fn finish_migration(&mut self) -> Result<(), ObserveError> {
        Ok(())
    }

    /// Returns the datapath log of the current programs.
    fn datapath_log(&self) -> DatapathLog {
        DatapathLog::default()
    }

    /// Loads the programs with another level of the datapath log. Attached programs become
    /// outdated, until [`Step::AttachHooks`] replaces them. A failure changes nothing.
    fn set_datapath_log(&mut self, _level: DatapathLogLevel) -> Result<(), ObserveError> {
        Ok(())
    }

    /// Reads the counters of all pods, the drop counters and the number of flow entries.
    fn measure(&mut self) -> Result<Measured, ObserveError>;

    /// Returns the egress counters of the pods in these slots, by slot. Empty on a kernel without
    /// TCX, which cannot attach [`steps::Hook::FromBusyPod`].
    fn sent(&mut self, slots: &BTreeSet<u32>)
    -> Result<BTreeMap<u32, abi::Counters>, ObserveError>;

    /// Returns the TCP connections that netfilter translates to one of these addresses.
    fn translated_connections(
        &mut self,
        _addresses: &BTreeSet<IpAddr>,
    ) -> Result<Vec<TrackedConnection>, ObserveError> {
        Ok(Vec::new())
    }

    /// Gives a connection from outside a flow without translation, so that netfilter goes on
    /// translating it when its port gets a hostport. Returns whether it has one, or needs none.
    fn make_flow(&mut self, _connection: &TrackedConnection) -> Result<bool, ObserveError> {
        Ok(false)
    }
}

/// Snapshot of the datapath's counters, summed over all CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Counters of each pod, by slot. Slots without traffic may be missing.
    pub pods: BTreeMap<u32, PodCounters>,
    /// Dropped packets and bytes, by reason. Reasons that never occurred are missing.
    pub drops: BTreeMap<abi::DropReason, abi::DropCount>,
    /// Dropped packets of each pod by reason, by slot; slot 0 is for packets of which no pod is
    /// known. Reasons that never occurred are missing.
    pub pod_drops: BTreeMap<u32, BTreeMap<abi::DropReason, u64>>,
    /// Number of entries in the flow table: two for each flow.
    pub flow_entries: u32,
}

/// Counters of one pod, for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCounters {
    /// Packets and bytes that the pod sent.
    pub egress: abi::Counters,
    /// Packets and bytes that the pod received.
    pub ingress: abi::Counters,
    /// Shaper counters of the egress limit; zeros where the pod has none.
    pub shaped_egress: abi::Shaped,
    /// Shaper counters of the ingress limit; zeros where the pod has none.
    pub shaped_ingress: abi::Shaped,
}
