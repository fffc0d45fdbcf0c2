//! Errors of the engine. The agent maps them to error codes of CNI and HTTP.

use std::error::Error;
use std::time::Duration;

use kernel::{ObserveError, PortInUse, StepError};
use model::{AttachmentKey, IfName, IngressPolicy, InterfaceSettings, PortMapping};
use planner::{Difference, Refusal};
use store::StoreError;

use crate::NetworkClash;

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The planner refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The network conflicts with another network of the node.
    #[error(transparent)]
    Clash(#[from] NetworkClash),
    /// The kernel could not be observed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// A step failed; the steps before it were undone.
    #[error("failed to {step}")]
    Step {
        /// The step, as the planner prints it.
        step: String,
        /// Error of the kernel.
        #[source]
        source: StepError,
    },
    /// A process of the node uses the hostport; the steps before it were undone.
    #[error(transparent)]
    PortInUse(PortInUse),
    /// Steps of a removal failed. All others were executed, and the record stays for the next try.
    #[error("cannot remove attachment {key}: {}", failures.join("; "))]
    Incomplete {
        /// The attachment.
        key: AttachmentKey,
        /// Failed steps, one line for each.
        failures: Vec<String>,
    },
    /// The kernel does not match the record of the attachment.
    #[error("attachment {key} does not match its record: {}", words(differences))]
    Different {
        /// The attachment.
        key: AttachmentKey,
        /// Differences between record and kernel.
        differences: Vec<Difference>,
    },
    /// Pod CIDRs do not change while pods have addresses of them. The text begins as kubenet's does
    /// (behaviour K11).
    #[error("Ignoring subsequent pod CIDR update to {refused}: pods have addresses of {kept}")]
    PodCidrsInUse {
        /// Current pod CIDRs, separated by commas.
        kept: String,
        /// Requested pod CIDRs, separated by commas.
        refused: String,
    },
    /// A change is recorded but not completely applied yet; the next reconciliation tries again.
    #[error("change recorded but not completely applied yet: {0}")]
    Unfinished(String),
    /// A DEL of the same attachment arrived while the ADD waited in the queue.
    #[error("ADD of {0} was cancelled: a DEL arrived while it waited in the queue")]
    Cancelled(AttachmentKey),
    /// An interface does not have the requested ingress policy.
    #[error("attachment {0} does not have the ingress policy {1}")]
    WrongIngressPolicy(AttachmentKey, IngressPolicy),
    /// There is no link for the addresses that a foreign IPAM plugin allocated.
    #[error("no link of attachment {0} waits for addresses of an IPAM plugin")]
    NotLinked(AttachmentKey),
    /// Settings of a pod's interface differ from the requested ones.
    #[error("settings of interface {ifname} differ: {present:?} in place of {wanted:?}")]
    SettingsDiffer {
        /// The interface.
        ifname: IfName,
        /// Requested settings.
        wanted: Box<InterfaceSettings>,
        /// Current values of the requested settings.
        present: Box<InterfaceSettings>,
    },
    /// The requested limit is above the ceiling of the network. No limit counts as above every
    /// ceiling.
    #[error(
        "{direction} limit of attachment {key} is above the ceiling of its network: {ceiling} bit/s"
    )]
    AboveCeiling {
        /// The attachment.
        key: AttachmentKey,
        /// `ingress` or `egress`.
        direction: &'static str,
        /// Ceiling in bit/s.
        ceiling: u64,
    },
    /// A requested port is not published.
    #[error("attachment {0} does not publish {1}")]
    NotPublished(AttachmentKey, PortMapping),
    /// There is no such attachment, or its ADD is not finished.
    #[error("{0} is not attached")]
    NotAttached(AttachmentKey),
    /// The records could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An uninstall is refused while pods are attached.
    #[error("pods are still attached: {}", names(.0))]
    StillAttached(Vec<AttachmentKey>),
    /// Too many requests wait in the queue.
    #[error("the agent's request queue is full")]
    QueueFull,
    /// The request did not start in time.
    #[error("the request waited longer than {} s in the agent's queue", .0.as_secs())]
    QueueTimeout(Duration),
    /// The engine is stopping.
    #[error("the agent is stopping")]
    Stopped,
}

/// Number of differences or failures that a message lists; an attachment may have thousands of
/// ports.
pub(crate) const MAX_LISTED: usize = 8;

/// Returns differences in one line.
pub(crate) fn words(differences: &[Difference]) -> String {
    let mut words: Vec<String> = differences
        .iter()
        .take(MAX_LISTED)
        .map(ToString::to_string)
        .collect();
    if let Some(rest @ 1..) = differences.len().checked_sub(MAX_LISTED) {
        words.push(format!("and {rest} more"));
    }
    words.join("; ")
}

fn names(keys: &[AttachmentKey]) -> String {
    let names: Vec<String> = keys
        .iter()
        .take(MAX_LISTED)
        .map(ToString::to_string)
        .collect();
    let more = if keys.len() > MAX_LISTED { ", …" } else { "" };
    format!("{}{more}", names.join(", "))
}

/// Returns an error with its causes in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
