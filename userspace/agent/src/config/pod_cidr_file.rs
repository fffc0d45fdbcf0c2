//! Pod CIDR file (`--pod-cidr-file`): sets the pod CIDRs from a file that other software writes
//! (behaviours K10 to K12).
//!
//! Watches the directory with inotify, not the file: the file may not exist yet, may be replaced by
//! renaming, or may be a symbolic link whose target changes, as Kubernetes mounts it. After any
//! event in the directory the file is read again, and applied if its content has changed.

use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use engine::{EngineError, Handle, UpdateOutcome};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::mpsc;

use crate::config::pod_cidrs;

/// Starts to watch the file at `path`; must be called inside a tokio runtime, and ends with it.
pub(crate) fn watch(path: PathBuf, handle: Handle) -> Result<()> {
    let changes = changes(&path)?;
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

/// Returns a channel that receives a message after changes in the file's directory, and is closed
/// if watching fails.
fn changes(file: &Path) -> Result<mpsc::Receiver<()>> {
    let directory = file
        .parent()
        .context("pod-cidr-file: the path has no directory")?;
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    let kinds = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_ONLYDIR;
    inotify
        .add_watch(directory, kinds)
        .with_context(|| format!("pod-cidr-file: cannot watch {}", directory.display()))?;
    // Capacity 1: the file is read once after any number of changes.
    let (sender, receiver) = mpsc::channel(1);
    let listener = thread::Builder::new().name("pod-cidr-file".to_owned());
    listener.spawn(move || listen(&inotify, &sender))?;
    Ok(receiver)
}

/// Reads inotify events, which blocks between changes, and sends a message after each.
fn listen(inotify: &Inotify, sender: &mpsc::Sender<()>) {
    while !sender.is_closed() {
        match inotify.read_events() {
            Ok(_) => drop(sender.try_send(())),
            Err(Errno::EINTR) => {}
            Err(error) => {
                tracing::error!(%error, "pod CIDR file is not watched any longer: restart the agent");
                return;
            }
        }
    }
}
