//! Events: one for each CNI request, repair and degradation, emitted when it ends.

use serde::{Deserialize, Serialize};

use crate::PodView;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// Sequence number, consecutive from 1 at the first start of the agent after a boot; it goes on
    /// over restarts.
    pub sequence: u64,
    /// Time of its end, in seconds since 1970 (UTC).
    pub at: u64,
    /// The same time in the format of RFC 3339.
    #[serde(default)]
    pub time: String,
    /// Kind of event. CNI requests: `add`, `del`, `check`, `gc`, `status`; `replay` is a spooled
    /// DEL that the agent executes at its start. Agent: `start`, `reload`, `stop`, `uninstall`,
    /// `bypass` (a temporary mode of the netfilter bypass begins or ends),
    /// `reconcile` (a difference between records and kernel), `degraded` (a degradation begins or
    /// ends), `refuse` (new flows for which there was no entry or port), and `gap` (events are
    /// missing: the subscriber was too slow, or their file was damaged).
    pub action: String,
    /// Object: an attachment, a link, the node, or a reason word.
    pub subject: String,
    /// The Kubernetes pod that the subject belongs to, if its name is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodView>,
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
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
