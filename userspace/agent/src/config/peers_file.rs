//! Peers file (`--peers-file`): sets the list of peers from a file that other software writes.

use std::path::PathBuf;

use anyhow::Result;
use engine::Handle;

use crate::clock;
use crate::config::peers;
use crate::config::watched_file::{self, FollowedFile};

/// Starts to watch the file at `path`; must be called inside a tokio runtime, and ends with it.
pub(crate) fn watch(path: PathBuf, handle: Handle) -> Result<()> {
    let changes = watched_file::changes(&path, "peers-file")?;
    tokio::spawn(watched_file::follow(path, changes, PeersFile(handle)));
    Ok(())
}

/// The list of peers of the engine.
struct PeersFile(Handle);

impl FollowedFile for PeersFile {
    async fn apply(&self, text: &str) -> Result<()> {
        self.0.set_peers(peers::parse(text)?, clock::now()).await?;
        Ok(())
    }

    async fn report(&self, why: Option<String>) {
        if let Some(why) = &why {
            tracing::warn!("peers file ignored, the last list of peers stays: {why}");
        }
        // An engine that has stopped has no status. The reconciliation emits the events.
        let _stopped = self.0.set_peers_unreadable(why).await;
        self.0.reconcile(clock::now());
    }
}
