//! Watches a file of the configuration that other software writes.
//!
//! Watches the directory with inotify, not the file: the file may not exist yet, may be replaced by
//! renaming, or may be a symbolic link whose target changes, as Kubernetes mounts it.

use std::path::{Path, PathBuf};
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

/// What is set from a file as a whole.
pub(crate) trait FollowedFile: Send + Sync + 'static {
    /// Parses and applies the text of the file, completely or not at all.
    fn apply(&self, text: &str) -> impl Future<Output = Result<()>> + Send;

    /// Reports why the file is ignored; `None` if it no longer is.
    fn report(&self, why: Option<String>) -> impl Future<Output = ()> + Send;
}

/// Applies the file at `path` now and after each message, until the channel is closed.
///
/// A file that is missing, unreadable or half-written changes nothing: what was applied last stays
/// in effect, and is reported until the file is valid again.
pub(crate) async fn follow(
    path: PathBuf,
    mut changes: mpsc::Receiver<()>,
    file: impl FollowedFile,
) {
    let (mut applied, mut reported) = (None, None);
    loop {
        let text = ipam::small_files::read(&path).map_err(anyhow::Error::from);
        // What was set over the API stays until the file changes.
        if !text
            .as_ref()
            .is_ok_and(|text| applied.as_ref() == Some(text))
        {
            let why = match apply(text, &file).await {
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
                file.report(why.clone()).await;
                reported = why;
            }
        }
        if changes.recv().await.is_none() {
            return;
        }
    }
}

/// Applies the text that was read, and returns it.
async fn apply(text: Result<String>, file: &impl FollowedFile) -> Result<String> {
    let text = text?;
    file.apply(&text).await?;
    Ok(text)
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use anyhow::ensure;

    use super::*;

    /// What a file has applied and reported. A valid text ends with a full stop.
    #[derive(Clone, Default)]
    struct Journal(Arc<Mutex<Vec<String>>>);

    impl Journal {
        fn push(&self, line: String) {
            self.0.lock().unwrap().push(line);
        }

        /// Returns the lines since the last call.
        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    impl FollowedFile for Journal {
        async fn apply(&self, text: &str) -> Result<()> {
            ensure!(text.ends_with('.'), "half-written");
            self.push(format!("apply {text}"));
            Ok(())
        }

        async fn report(&self, why: Option<String>) {
            let why = why.map(|text| text.rsplit(": ").next().unwrap_or_default().to_owned());
            self.push(format!("report {why:?}"));
        }
    }

    #[tokio::test]
    async fn a_followed_file_is_applied_when_it_changes_and_reported_once_while_it_is_invalid() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let journal = Journal::default();
        // Without capacity to spare: a second message is accepted when the first is processed.
        let (sender, receiver) = mpsc::channel(1);
        let following = tokio::spawn(follow(path.clone(), receiver, journal.clone()));
        let changed = async || {
            for _ in 0..3 {
                sender.send(()).await.unwrap();
            }
            journal.take()
        };
        assert_eq!(
            changed().await,
            ["report Some(\"No such file or directory (os error 2)\")"]
        );
        std::fs::write(&path, "one.").unwrap();
        assert_eq!(changed().await, ["apply one.", "report None"]);
        assert!(changed().await.is_empty(), "nothing has changed");
        std::fs::write(&path, "on").unwrap();
        assert_eq!(changed().await, ["report Some(\"half-written\")"]);
        std::fs::write(&path, "one.").unwrap();
        assert_eq!(changed().await, ["apply one.", "report None"]);
        std::fs::write(&path, "two.").unwrap();
        assert_eq!(changed().await, ["apply two."]);
        drop(sender);
        following.await.unwrap();
    }
}
