//! Network namespaces of pods: finding out which one a path leads to, and opening a netlink socket inside of one. And new
//! ones, for trials.
//!
//! The only place that enters a namespace: for the few calls that it takes to open a socket, which then stays inside
//! while the thread comes back. A thread of its own for that would be a wake-up on another CPU, three times in an ADD.
//! Only a thread that makes new ones is one of its own, and ends in them.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::mpsc;

use model::{Netns, NetnsPath};
use nix::errno::Errno;
use nix::sched::CloneFlags;
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

/// A namespace that is kept alive while this is.
pub(crate) struct OpenNetns {
    file: File,
    identity: Netns,
}

impl OpenNetns {
    /// What `path` leads to now; `None` when it leads to no namespace (any more).
    pub(crate) fn find(path: &NetnsPath) -> io::Result<Option<Self>> {
        let file = match File::open(path.as_path()) {
            Ok(file) => file,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // A file in /run/netns stays behind as an ordinary one when its mount is gone.
        if fstatfs(&file)?.filesystem_type() != NSFS_MAGIC {
            return Ok(None);
        }
        let metadata = file.metadata()?;
        let identity = Netns {
            path: path.clone(),
            device: metadata.dev(),
            inode: metadata.ino(),
        };
        Ok(Some(Self { file, identity }))
    }

    /// The very namespace that `netns` was; `None` when it is gone or another one is at its path.
    pub(crate) fn find_same(netns: &Netns) -> io::Result<Option<Self>> {
        Ok(Self::find(&netns.path)?.filter(|open| open.identity == *netns))
    }

    /// As [`OpenNetns::find_same`], for whom a vanished namespace is an error.
    pub(crate) fn open(netns: &Netns) -> io::Result<Self> {
        Self::find_same(netns)?.ok_or_else(|| Errno::ENOENT.into())
    }

    /// Which one it is.
    pub(crate) fn identity(&self) -> &Netns {
        &self.identity
    }

    /// The descriptor, for `IFLA_NET_NS_FD`.
    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `work` with the calling thread inside of the namespace.
    pub(crate) fn run<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let _visit = Visit::begin(&self.file)?;
        work()
    }
}

/// Runs `work` on a thread of its own, which may go into new namespaces. A namespace ends with the thread and with what
/// was opened inside. What `work` gives beside its answer is closed when nobody waits any more.
pub(crate) fn aside<T: Send + 'static, Open>(
    work: impl FnOnce(&Aside) -> io::Result<(T, Open)> + Send + 'static,
) -> io::Result<T> {
    let (tell, told) = mpsc::sync_channel(1);
    let work = move || {
        let (answer, _open) = match work(&Aside(())) {
            Ok((answer, open)) => (Ok(answer), Some(open)),
            Err(error) => (Err(error), None),
        };
        // It is waited for below.
        let _heard = tell.send(answer);
    };
    std::thread::Builder::new()
        .name("aside".to_owned())
        .stack_size(128 * 1024)
        .spawn(work)?;
    told.recv()
        .unwrap_or_else(|_| Err(io::Error::other("the thread has panicked")))
}

/// Whoever has it is on a thread that nobody else needs.
pub(crate) struct Aside(());

impl Aside {
    /// Goes into a new namespace, which lives for as long as what is returned, or the thread stays.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place, and the thread needs no way back"
    )]
    #[expect(clippy::unused_self, reason = "not every thread may")]
    pub(crate) fn enter_new(&self) -> io::Result<File> {
        nix::sched::unshare(CloneFlags::CLONE_NEWNET)?;
        File::open("/proc/thread-self/ns/net")
    }
}

/// The thread is in another namespace for as long as this lives.
struct Visit {
    home: File,
}

impl Visit {
    fn begin(namespace: &File) -> io::Result<Self> {
        let home = File::open("/proc/thread-self/ns/net")?;
        enter(namespace)?;
        Ok(Self { home })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Err(error) = enter(&self.home) {
            // Whatever this thread did next, it would do to a pod instead of the node.
            tracing::error!(%error, "cannot leave a network namespace");
            std::process::abort();
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place, and the way back is certain"
)]
fn enter(namespace: &File) -> io::Result<()> {
    nix::sched::setns(namespace, CloneFlags::CLONE_NEWNET)?;
    Ok(())
}

/// `/proc/<pid>/ns/net` of a process that is just ending gives `ESRCH`, of one that has ended `ENOENT`.
fn is_missing(error: &io::Error) -> bool {
    crate::error::is_gone(error) || crate::error::is(error, Errno::ENOTDIR)
}
