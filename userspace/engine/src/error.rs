//! Why the engine did not do what it was asked. Knows no code of CNI or HTTP.

use std::error::Error;
use std::time::Duration;

use kernel::{ObserveError, PortInUse, StepError};
use model::{AttachmentKey, IfName, IngressPolicy, InterfaceSettings, PortMapping};
use planner::{Difference, Refusal};
use store::StoreError;

use crate::NetworkClash;

/// An operation that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The planner will not plan it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The network cannot be beside those that are there.
    #[error(transparent)]
    Clash(#[from] NetworkClash),
    /// The kernel could not be looked at.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// A step failed; those before it have been undone.
    #[error("failed to {step}")]
    Step {
        /// The step, as the planner prints it.
        step: String,
        /// What the kernel said.
        #[source]
        source: StepError,
    },
    /// A port of the node belongs to somebody else; what was done has been undone.
    #[error(transparent)]
    PortInUse(PortInUse),
    /// Steps of a removal failed; all others were done, and the record stays.
    #[error("{key} could not be removed: {}", failures.join("; "))]
    Incomplete {
        /// The attachment.
        key: AttachmentKey,
        /// One line for each.
        failures: Vec<String>,
    },
    /// What is there is not what was decided.
    #[error("{key} is not as it was made: {}", words(differences))]
    Different {
        /// The attachment.
        key: AttachmentKey,
        /// What is not as decided.
        differences: Vec<Difference>,
    },
    /// The pod CIDRs are not changed while pods have addresses of them. The first words are kubenet's (behaviour K11).
    #[error("Ignoring subsequent pod CIDR update to {refused}: pods have addresses of {kept}")]
    PodCidrsKept {
        /// The pod CIDRs that stay.
        kept: String,
        /// The pod CIDRs that were wished for.
        refused: String,
    },
    /// A change was decided and is not wholly done yet; it is tried again.
    #[error("not everything has followed yet: {0}")]
    Unfinished(String),
    /// A DEL for the same attachment came while the ADD waited.
    #[error("the ADD of {0} was not begun: a DEL came while it waited")]
    Cancelled(AttachmentKey),
    /// Other pods are kept from an interface otherwise than they should.
    #[error("{0} does not have the ingress policy {1}")]
    NotKeptApart(AttachmentKey, IngressPolicy),
    /// The link that another plugin has given addresses for is not there (any more).
    #[error("there is no link of {0} that waits for addresses")]
    NotLinked(AttachmentKey),
    /// Settings of a pod's interface are not as they were made.
    #[error("{ifname} has {present:?} and should have {wanted:?}")]
    NotTuned {
        /// The interface.
        ifname: IfName,
        /// What it should have.
        wanted: Box<InterfaceSettings>,
        /// What it has of that.
        present: Box<InterfaceSettings>,
    },
    /// A limit is above what the network allows; no limit is above all.
    #[error("{key}: its network allows no more than {ceiling} bit/s of {direction}")]
    AboveCeiling {
        /// The attachment.
        key: AttachmentKey,
        /// `ingress` or `egress`.
        direction: &'static str,
        /// Bits per second.
        ceiling: u64,
    },
    /// A port is not published that should be.
    #[error("{0} does not publish {1}")]
    NotPublished(AttachmentKey, PortMapping),
    /// There is no such attachment, or it is not finished.
    #[error("{0} is not attached")]
    Unknown(AttachmentKey),
    /// The records could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Viaduct is not taken off a node whose pods live by it.
    #[error("attached are still {}", names(.0))]
    StillAttached(Vec<AttachmentKey>),
    /// Too many requests wait already.
    #[error("too many requests are waiting")]
    Busy,
    /// Others before it took too long.
    #[error("its turn did not come within {} s", .0.as_secs())]
    Overdue(Duration),
    /// The engine has stopped.
    #[error("the agent is stopping")]
    Stopped,
}

/// Differences or failures that are told one by one: an attachment may have thousands of ports.
pub(crate) const MANY: usize = 8;

/// Differences in one line.
pub(crate) fn words(differences: &[Difference]) -> String {
    let mut words: Vec<String> = differences
        .iter()
        .take(MANY)
        .map(ToString::to_string)
        .collect();
    if let Some(rest @ 1..) = differences.len().checked_sub(MANY) {
        words.push(format!("and {rest} more"));
    }
    words.join("; ")
}

fn names(keys: &[AttachmentKey]) -> String {
    let told: Vec<String> = keys.iter().take(MANY).map(ToString::to_string).collect();
    let more = if keys.len() > MANY { ", …" } else { "" };
    format!("{}{more}", told.join(", "))
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
