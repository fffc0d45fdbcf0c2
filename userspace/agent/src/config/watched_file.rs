//! Watches a file of the configuration that other software writes.
//!
//! Watches the directory with inotify, not the file: the file may not exist yet, may be replaced by
//! renaming, or may be a symbolic link whose target changes, as Kubernetes mounts it.

use std::path::Path;
use std::thread;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::mpsc;

/// Returns a channel that receives a message after changes in the file's directory, and is closed
/// if watching fails. Errors name the `key` of the configuration.
pub(crate) fn changes(file: &Path, key: &'static str) -> Result<mpsc::Receiver<()>> {
    let directory = file
        .parent()
        .with_context(|| format!("{key}: the path has no directory"))?;
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    let kinds = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_ONLYDIR;
    inotify
        .add_watch(directory, kinds)
        .with_context(|| format!("{key}: cannot watch {}", directory.display()))?;
    // Capacity 1: the file is read once after any number of changes.
    let (sender, receiver) = mpsc::channel(1);
    let listener = thread::Builder::new().name(key.to_owned());
    listener.spawn(move || listen(&inotify, &sender, key))?;
    Ok(receiver)
}

/// Reads inotify events, which blocks between changes, and sends a message after each.
fn listen(inotify: &Inotify, sender: &mpsc::Sender<()>, key: &'static str) {
    while !sender.is_closed() {
        match inotify.read_events() {
            Ok(_) => drop(sender.try_send(())),
            Err(Errno::EINTR) => {}
            Err(error) => {
                tracing::error!(%error, key, "file is not watched any longer: restart the agent");
                return;
            }
        }
    }
}
