//! Peers file (`--peers-file`): sets the list of peers from a file that other software writes.
//!
//! A file that is missing, unreadable or half-written changes nothing: the last list stays in
//! effect, and the status says so until the file is valid again.

use std::path::PathBuf;

use anyhow::Result;
use engine::Handle;
use tokio::sync::mpsc;

use crate::clock;
use crate::config::{peers, watched_file};

/// Starts to watch the file at `path`; must be called inside a tokio runtime, and ends with it.
pub(crate) fn watch(path: PathBuf, handle: Handle) -> Result<()> {
    let changes = watched_file::changes(&path, "peers-file")?;
    tokio::spawn(follow(path, changes, handle));
    Ok(())
}

async fn follow(path: PathBuf, mut changes: mpsc::Receiver<()>, handle: Handle) {
    let (mut applied, mut reported) = (None, None);
    loop {
        let text = ipam::small_files::read(&path).map_err(anyhow::Error::from);
        // A list that was set over the API stays until the file changes.
        if !text
            .as_ref()
            .is_ok_and(|text| applied.as_ref() == Some(text))
        {
            let why = match apply(text, &handle).await {
                Ok(text) => {
                    applied = Some(text);
                    None
                }
                Err(error) => {
                    applied = None;
                    Some(format!("{}: {error:#}", path.display()))
                }
            };
            if why != reported {
                report(why.clone(), &handle).await;
                reported = why;
            }
        }
        if changes.recv().await.is_none() {
            return;
        }
    }
}

/// Sets the peers of the file, and returns its text.
async fn apply(text: Result<String>, handle: &Handle) -> Result<String> {
    let text = text?;
    handle.set_peers(peers::parse(&text)?, clock::now()).await?;
    Ok(text)
}

/// Reports why the file is ignored; `None` if it no longer is.
async fn report(why: Option<String>, handle: &Handle) {
    if let Some(why) = &why {
        tracing::warn!("peers file ignored, the last list of peers stays: {why}");
    }
    // An engine that has stopped has no status. The reconciliation emits the events.
    let _stopped = handle.set_peers_unreadable(why).await;
    handle.reconcile(clock::now());
}
