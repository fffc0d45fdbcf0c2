//! Policies file (`--policies-file`): sets the network policies from a file that other software
//! writes.

use std::path::PathBuf;

use anyhow::Result;
use engine::Handle;
use planner::PolicyIndex;

use crate::clock;
use crate::config::policies;
use crate::config::watched_file::{self, FollowedFile};

/// Starts to watch the file at `path`; must be called inside a tokio runtime, and ends with it.
pub(crate) fn watch(path: PathBuf, handle: Handle) -> Result<()> {
    let changes = watched_file::changes(&path, "policies-file")?;
    tokio::spawn(watched_file::follow(path, changes, PoliciesFile(handle)));
    Ok(())
}

/// The network policies of the engine.
struct PoliciesFile(Handle);

impl FollowedFile for PoliciesFile {
    async fn apply(&self, text: &str) -> Result<()> {
        let wanted = PolicyIndex::new(policies::parse(text)?)?;
        self.0.set_policies(wanted, clock::now()).await?;
        Ok(())
    }

    async fn report(&self, why: Option<String>) {
        if let Some(why) = &why {
            tracing::warn!("policies file ignored, the last network policies stay: {why}");
        }
        // An engine that has stopped has no status. The reconciliation emits the events.
        let _stopped = self.0.set_policies_unreadable(why).await;
        self.0.reconcile(clock::now());
    }
}
