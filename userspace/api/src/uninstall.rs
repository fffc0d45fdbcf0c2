//! Taking Viaduct off a node.

use serde::{Deserialize, Serialize};

/// What is to become of pods that are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UninstallRequest {
    /// Whether they lose their interfaces; else they are in the way.
    #[serde(default)]
    pub drain: bool,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uninstalled {
    /// Attachments that were removed.
    pub detached: Vec<String>,
    /// Everything else that was taken away, one line for each.
    pub removed: Vec<String>,
    /// What Viaduct has made or changed and that stays, and why.
    pub left: Vec<String>,
}
