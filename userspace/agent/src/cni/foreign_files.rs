//! Access to files that requests name: off the API's thread, and with a time limit.
//!
//! A path of a request may lie on a file system that does not answer. Nothing can end the thread
//! that waits for it, so the number of such threads is limited: for each path, so that one file
//! system delays no request for another, and for all together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cni::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Time that a request waits for a file. Longer than the wait for the lock of lease files, whose
/// error says more.
const ACCESS_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum number of threads that access the same path.
const THREADS_OF_PATH: usize = 4;
/// Maximum number of threads that access files of requests.
const MAX_THREADS: usize = 64;

/// Running accesses.
#[derive(Clone, Debug)]
pub(crate) struct FileAccess {
    threads: Arc<Semaphore>,
    paths: Arc<Mutex<BTreeMap<PathBuf, Arc<Semaphore>>>>,
}

impl Default for FileAccess {
    fn default() -> Self {
        Self {
            threads: Arc::new(Semaphore::new(MAX_THREADS)),
            paths: Arc::default(),
        }
    }
}

impl FileAccess {
    /// Runs `work`, which accesses `path`, on a separate thread. An access that does not end in
    /// time is an error with code 11; `key` is the name of the path in the request.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        key: &str,
        path: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let run = async {
            let permits = self.permits(path).await?;
            let run = move || {
                let done = work();
                drop(permits);
                done
            };
            spawn_blocking(run).await.ok()
        };
        match timeout(ACCESS_TIMEOUT, run).await {
            Ok(Some(done)) => Ok(done),
            Ok(None) => Err(Error::internal(format!("{key}: the access was aborted"))),
            Err(_elapsed) => Err(Error::try_again_later(format!(
                "{key}: {}: no answer from the file system within {ACCESS_TIMEOUT:?}",
                path.display()
            ))),
        }
    }

    async fn permits(&self, path: &Path) -> Option<Permits> {
        // The path's first: a request that waits for it must not use up those of all.
        let mut permits = Permits {
            access: self.clone(),
            path: path.to_owned(),
            of_path: None,
            of_all: None,
        };
        let of_path = Arc::clone(
            self.lock()
                .entry(path.to_owned())
                .or_insert_with(|| Arc::new(Semaphore::new(THREADS_OF_PATH))),
        );
        permits.of_path = Some(of_path.acquire_owned().await.ok()?);
        permits.of_all = Some(Arc::clone(&self.threads).acquire_owned().await.ok()?);
        Some(permits)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<Semaphore>>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permits of one thread. Dropping the last ones of a path forgets the path.
struct Permits {
    access: FileAccess,
    path: PathBuf,
    of_path: Option<OwnedSemaphorePermit>,
    of_all: Option<OwnedSemaphorePermit>,
}

impl Drop for Permits {
    fn drop(&mut self) {
        let mut paths = self.access.lock();
        drop((self.of_path.take(), self.of_all.take()));
        // Waiting requests hold a reference.
        if let Some(semaphore) = paths.get(&self.path)
            && Arc::strong_count(semaphore) == 1
        {
            paths.remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Each access waits until its sender is dropped, as one of a file system that does not answer.
    /// The paused clock advances whenever all tasks are idle, but not while a thread works, so the
    /// waits are bounded by the limit of the path.
    #[tokio::test]
    async fn accesses_that_do_not_end_delay_no_other_path() {
        let access = FileAccess::default();
        let stuck = Path::new("/stuck");
        let mut senders = Vec::new();
        let mut waiting = Vec::new();
        for _ in 0..THREADS_OF_PATH {
            let (sender, receiver) = mpsc::channel::<()>();
            senders.push(sender);
            let (access, started) = (access.clone(), tokio::sync::oneshot::channel());
            let work = move || {
                started.0.send(()).unwrap();
                receiver.recv().unwrap_err();
            };
            let wait = async move { access.run("key", Path::new("/stuck"), work).await };
            waiting.push(tokio::spawn(wait));
            started.1.await.unwrap();
        }
        let further = access.run("key", stuck, || ());
        assert!(timeout(Duration::from_millis(50), further).await.is_err());
        let other = access.run("key", Path::new("/other"), || 7).await;
        assert_eq!(other.unwrap(), 7);
        drop(senders);
        for one in waiting {
            one.await.unwrap().unwrap();
        }
        assert!(access.lock().is_empty(), "{access:?}");
    }

    #[tokio::test]
    async fn an_access_that_does_not_end_fails_with_code_11_and_names_its_path() {
        let access = FileAccess::default();
        let (sender, receiver) = mpsc::channel::<()>();
        let wait = move || {
            let _ended = receiver.recv();
        };
        let error = access
            .run("ipam.dataDir", Path::new("/stuck"), wait)
            .await
            .unwrap_err();
        assert_eq!(error.code, api::TRY_AGAIN_LATER);
        assert!(error.msg.contains("ipam.dataDir: /stuck"), "{error:?}");
        drop(sender);
    }
}
