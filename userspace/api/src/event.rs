//! Events: one for each CNI request, repair and degradation, emitted when it ends.

use serde::{Deserialize, Serialize};

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Sequence number, consecutive from 1 at the start of the agent.
    pub sequence: u64,
    /// Time of its end, in seconds since 1970 (UTC).
    pub at: u64,
    /// Kind of event. CNI requests: `add`, `del`, `check`, `gc`, `status`; `replay` is a spooled
    /// DEL that the agent executes at its start. Agent: `start`, `reload`, `stop`, `uninstall`,
    /// `bypass` (a temporary mode of the netfilter bypass begins or ends),
    /// `reconcile` (a difference between records and kernel), `degraded` (a degradation begins or
    /// ends), `refuse` (new flows for which there was no entry or port), and `gap` (the subscriber
    /// was too slow and missed events).
    pub action: String,
    /// Object: an attachment, a link, the node, or a reason word.
    pub subject: String,
    /// Result of the action.
    pub outcome: EventOutcome,
    /// Details, or the reason for a failure; may be empty.
    #[serde(default)]
    pub message: String,
    /// Duration in microseconds; 0 if it was not measured.
    #[serde(default)]
    pub duration_us: u64,
}

/// Result of the action that an event reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventOutcome {
    /// The request succeeded.
    Done,
    /// The object was repaired, or the degradation has ended.
    Repaired,
    /// The object was created by Viaduct and belongs to no record: it was removed.
    Removed,
    /// The object is in use or not provably Viaduct's: it was left in place.
    LeftAlone,
    /// The request or repair failed, or the degradation has begun.
    Failed,
    /// A value that is newer than this version of the crate.
    #[serde(other)]
    Other,
}

impl EventOutcome {
    /// Returns the value as in JSON and in metric labels, for example `left-alone`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Repaired => "repaired",
            Self::Removed => "removed",
            Self::LeftAlone => "left-alone",
            Self::Failed => "failed",
            Self::Other => "other",
        }
    }
}
