//! The file that pod CIDRs come by: whatever writes it need not know us (behaviours K10 to K12).
//!
//! Its directory is watched, not the file: the file may not be there yet, may be replaced by renaming, or be reached by
//! a symbolic link whose target changes, as Kubernetes mounts it. After any event the file is read again, and what it
//! says is news only when it says something else than before.

use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use engine::{EngineError, Handle, Update};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::mpsc;

use crate::pod_cidrs;

/// Begins to watch the file at `path`; must be called inside of a tokio runtime, and ends with it.
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
            take(&path, &text, &handle).await;
            last = Some(text);
        }
        if changes.recv().await.is_none() {
            return;
        }
    }
}

fn read(path: &Path) -> Option<String> {
    match small_files::read(path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(%error, file = %path.display(), "cannot read the pod CIDRs");
            None
        }
    }
}

/// One event. What is wrong with it is told, and changes nothing.
async fn take(path: &Path, text: &str, handle: &Handle) {
    let file = path.display();
    let ranges = match pod_cidrs::parse(text.lines()) {
        Ok(ranges) if ranges.is_empty() => {
            tracing::warn!(%file, "no pod CIDR in it");
            return;
        }
        Ok(ranges) => ranges,
        Err(error) => {
            tracing::warn!(%file, "no pod CIDR is taken from it: {error:#}");
            return;
        }
    };
    match handle.set_pod_cidrs(ranges).await {
        Ok(Update::Done | Update::Unchanged) | Err(EngineError::PodCidrsKept { .. }) => {}
        Err(error) => tracing::error!(%file, %error, "cannot use the pod CIDRs"),
    }
}

/// Changes in a directory; closed when nobody can hear of them any more.
fn changes(file: &Path) -> Result<mpsc::Receiver<()>> {
    let directory = file
        .parent()
        .context("pod-cidr-file: it has no directory")?;
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    let kinds = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_ONLYDIR;
    inotify
        .add_watch(directory, kinds)
        .with_context(|| format!("pod-cidr-file: cannot watch {}", directory.display()))?;
    // One change that waits stands for all: the file is looked at once after any number of them.
    let (tell, told) = mpsc::channel(1);
    let listener = thread::Builder::new().name("pod-cidr-file".to_owned());
    listener.spawn(move || listen(&inotify, &tell))?;
    Ok(told)
}

/// Sleeps in the kernel between changes.
fn listen(inotify: &Inotify, tell: &mpsc::Sender<()>) {
    while !tell.is_closed() {
        match inotify.read_events() {
            Ok(_) => drop(tell.try_send(())),
            Err(Errno::EINTR) => {}
            Err(error) => {
                tracing::error!(%error, "the file of pod CIDRs is watched no more");
                return;
            }
        }
    }
}
