//! What happens: one event for each request and each repair, as it ends.

use serde::{Deserialize, Serialize};

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Grows by one with each event, from 1 at the start of the agent.
    pub sequence: u64,
    /// When it ended, in seconds since 1970 (UTC).
    pub at: u64,
    /// What was done. Of runtimes' requests: `add`, `del`, `check`, `gc`, `status`; `replay` is a DEL that waited for the
    /// agent. Of the agent itself: `start`, `reload`, `stop`, `uninstall`, `reconcile` (something was not as it should
    /// be), `degraded` (something does not work, or does again), `refuse` (new flows that found no room), and `gap`:
    /// whoever listens was too slow, and has missed those events.
    pub action: String,
    /// To what: an attachment, a link, the node.
    pub subject: String,
    /// How it ended.
    pub outcome: EventOutcome,
    /// More of it, or why it failed.
    #[serde(default)]
    pub message: String,
    /// How long it took, in microseconds; 0 where that is not known.
    #[serde(default)]
    pub duration_us: u64,
}

/// How something ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventOutcome {
    /// As was asked for.
    Done,
    /// It was not as it should be, and is now.
    Repaired,
    /// It was ours, and nobody's any more: it is gone.
    Removed,
    /// It is not provably ours, and stays.
    LeftAlone,
    /// Not.
    Failed,
    /// A word that is newer than its reader.
    #[serde(other)]
    Other,
}

impl EventOutcome {
    /// A word for machines.
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
