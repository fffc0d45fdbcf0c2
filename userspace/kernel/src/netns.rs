//! Network namespaces of pods: finding out which one a path leads to, and opening a netlink socket inside of one.
//!
//! The only place that enters a namespace. It does so on a thread of its own that ends at once: a thread that stayed
//! would keep the namespace alive, and one that had to come back might fail to.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::MetadataExt as _;

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

    /// Runs `work` on a thread inside of the namespace.
    pub(crate) fn run<T: Send>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let inside = || {
            enter(&self.file)?;
            work()
        };
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("netns".to_owned())
                .stack_size(128 * 1024)
                .spawn_scoped(scope, inside)?
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place, on a thread that ends right after"
)]
fn enter(namespace: &File) -> io::Result<()> {
    nix::sched::setns(namespace, CloneFlags::CLONE_NEWNET)?;
    Ok(())
}

/// `/proc/<pid>/ns/net` of a process that is just ending gives `ESRCH` or, for a zombie, `ENOENT` or `EACCES`.
fn is_missing(error: &io::Error) -> bool {
    crate::error::is_gone(error) || crate::error::is(error, Errno::ENOTDIR)
}
