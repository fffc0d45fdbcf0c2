//! Pod CIDR file (`--pod-cidr-file`): sets the pod CIDRs from a file that other software writes
//! (behaviours K10 to K12). After any change in its directory the file is read again, and applied
//! if its content has changed.

use std::path::{Path, PathBuf};

use anyhow::Result;
use engine::{EngineError, Handle, UpdateOutcome};
use tokio::sync::mpsc;

use crate::config::{pod_cidrs, watched_file};

/// Starts to watch the file at `path`; must be called inside a tokio runtime, and ends with it.
pub(crate) fn watch(path: PathBuf, handle: Handle) -> Result<()> {
    let changes = watched_file::changes(&path, "pod-cidr-file")?;
    tokio::spawn(follow(path, changes, handle));
    Ok(())
}

async fn follow(path: PathBuf, mut changes: mpsc::Receiver<()>, handle: Handle) {
    let mut last = None;
    loop {
        if let Some(text) = read(&path)
            && last.as_ref() != Some(&text)
        {
            apply(&path, &text, &handle).await;
            last = Some(text);
        }
        if changes.recv().await.is_none() {
            return;
        }
    }
}

fn read(path: &Path) -> Option<String> {
    match ipam::small_files::read(path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(%error, file = %path.display(), "cannot read the pod CIDR file");
            None
        }
    }
}

/// Sets the pod CIDRs in `text`. An error is logged and changes nothing.
async fn apply(path: &Path, text: &str, handle: &Handle) {
    let file = path.display();
    let ranges = match pod_cidrs::parse(text.lines()) {
        Ok(ranges) if ranges.is_empty() => {
            tracing::warn!(%file, "pod CIDR file ignored: it contains no pod CIDR");
            return;
        }
        Ok(ranges) => ranges,
        Err(error) => {
            tracing::warn!(%file, "pod CIDR file ignored: {error:#}");
            return;
        }
    };
    match handle.set_pod_cidrs(ranges).await {
        Ok(UpdateOutcome::Updated | UpdateOutcome::Unchanged)
        | Err(EngineError::PodCidrsInUse { .. }) => {}
        Err(error) => tracing::error!(%file, %error, "cannot set the pod CIDRs of the file"),
    }
}
