//! Opens network namespaces: identifies the one at a path, runs code inside, and creates new ones
//! for probes.
//!
//! The only place that enters a namespace: for the few calls that open a socket, which then stays
//! inside while the thread returns. A separate thread for that would cost a wake-up on another CPU,
//! three times in each ADD. Only probes, which create namespaces, use a separate thread: it never
//! returns to the node's namespace and ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc;

use model::{Netns, NetnsPath};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sched::CloneFlags;
use nix::sys::stat::Mode;
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

/// An open network namespace: it exists at least as long as this.
pub(crate) struct OpenNetns {
    file: File,
    identity: Netns,
}

impl OpenNetns {
    /// Opens the namespace at `path`; `None` when there is none.
    pub(crate) fn find(path: &NetnsPath) -> io::Result<Option<Self>> {
        // The path comes from a request: without O_PATH, opening a FIFO would wait for its other
        // end, and opening a device would run its driver.
        let located = match open(path.as_path(), OFlag::O_PATH) {
            Ok(located) => located,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        // When its mount is gone, a file in /run/netns is a regular file.
        if fstatfs(&located)?.filesystem_type() != NSFS_MAGIC {
            return Ok(None);
        }
        // `setns` refuses descriptors of O_PATH.
        let same = format!("/proc/self/fd/{}", located.as_raw_fd());
        let file = open(Path::new(&same), OFlag::O_NONBLOCK | OFlag::O_NOCTTY)?;
        let metadata = file.metadata()?;
        let identity = Netns {
            path: path.clone(),
            device: metadata.dev(),
            inode: metadata.ino(),
        };
        Ok(Some(Self { file, identity }))
    }

    /// Opens the namespace at the path of `netns`; `None` when it is gone or has another identity.
    pub(crate) fn find_same(netns: &Netns) -> io::Result<Option<Self>> {
        Ok(Self::find(&netns.path)?.filter(|open| open.identity == *netns))
    }

    /// As [`OpenNetns::find_same`]; a namespace that is gone is `ENOENT`.
    pub(crate) fn open(netns: &Netns) -> io::Result<Self> {
        Self::find_same(netns)?.ok_or_else(|| Errno::ENOENT.into())
    }

    /// Returns path, device and inode of the namespace.
    pub(crate) fn identity(&self) -> &Netns {
        &self.identity
    }

    /// Returns the file descriptor, for `IFLA_NET_NS_FD`.
    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `work` with the calling thread in the namespace.
    pub(crate) fn run<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        run_in(&self.file, work)
    }

    /// Returns the open file.
    pub(crate) fn into_file(self) -> File {
        self.file
    }
}

/// Runs `work` with the calling thread in `namespace`.
pub(crate) fn run_in<T>(namespace: &File, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let _entered = Entered::begin(namespace)?;
    work()
}

/// Runs `work` on a separate thread, which may enter new namespaces. A namespace ends with the
/// thread and the descriptors that were opened inside. The second part of `work`'s result is
/// dropped on that thread, after the first part has been returned.
pub(crate) fn run_on_own_thread<T: Send + 'static, Open>(
    work: impl FnOnce(&OwnThread) -> io::Result<(T, Open)> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let work = move || {
        let (answer, _open) = match work(&OwnThread(())) {
            Ok((answer, open)) => (Ok(answer), Some(open)),
            Err(error) => (Err(error), None),
        };
        // The receiver waits below.
        let _sent = sender.send(answer);
    };
    std::thread::Builder::new()
        .name("probe".to_owned())
        .stack_size(128 * 1024)
        .spawn(work)?;
    receiver
        .recv()
        .unwrap_or_else(|_| Err(io::Error::other("the probe's thread panicked")))
}

/// Proof that the code runs on a thread of its own, which may leave its namespace for good.
pub(crate) struct OwnThread(());

impl OwnThread {
    /// Creates a namespace and enters it. It exists for as long as the returned file, or until the
    /// thread leaves it.
    #[expect(
        clippy::disallowed_methods,
        reason = "the only place that unshares, on a thread that never returns to its namespace"
    )]
    #[expect(
        clippy::unused_self,
        reason = "`self` proves that the thread may leave its namespace"
    )]
    pub(crate) fn enter_new(&self) -> io::Result<File> {
        nix::sched::unshare(CloneFlags::CLONE_NEWNET)?;
        File::open("/proc/thread-self/ns/net")
    }
}

/// Keeps the thread in another namespace; dropping it returns to the previous one.
struct Entered {
    home: File,
}

impl Entered {
    fn begin(namespace: &File) -> io::Result<Self> {
        let home = File::open("/proc/thread-self/ns/net")?;
        enter(namespace)?;
        Ok(Self { home })
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Err(error) = enter(&self.home) {
            // In the wrong namespace, every later change of this thread would hit a pod instead of
            // the node.
            tracing::error!(%error, "cannot return to the node's network namespace: aborting");
            std::process::abort();
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the only place that enters a namespace; dropping the guard always returns"
)]
fn enter(namespace: &File) -> io::Result<()> {
    nix::sched::setns(namespace, CloneFlags::CLONE_NEWNET)?;
    Ok(())
}

/// Opens a path for reading. Unlike `OpenOptions`, passes `O_PATH` with every C library.
fn open(path: &Path, flags: OFlag) -> io::Result<File> {
    let opened = nix::fcntl::open(path, flags | OFlag::O_CLOEXEC, Mode::empty())?;
    Ok(opened.into())
}

/// Whether there is no namespace. `/proc/<pid>/ns/net` of an exiting process returns `ESRCH`, of
/// one that has exited `ENOENT`.
fn is_missing(error: &io::Error) -> bool {
    const NO_FILE: [Errno; 3] = [Errno::ENOTDIR, Errno::ELOOP, Errno::ENAMETOOLONG];
    crate::error::is_gone(error) || NO_FILE.iter().any(|code| crate::error::is(error, *code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_a_namespace_has_none_and_no_open_waits() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        nix::unistd::mkfifo(at("fifo").as_str(), Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(at("fifo"), at("link")).unwrap();
        std::os::unix::fs::symlink(at("loop"), at("loop")).unwrap();
        let others = ["/", "/dev/tty", "/dev/zero", "/proc/kmsg", "/etc/passwd/x"];
        let own = ["fifo", "link", "loop", "none", "fifo/x"].map(at);
        for path in others.map(str::to_owned).into_iter().chain(own) {
            let found = OpenNetns::find(&path.parse().unwrap()).unwrap();
            assert!(found.is_none(), "{path}");
        }
        let own = "/proc/self/ns/net".parse().unwrap();
        assert!(OpenNetns::find(&own).unwrap().is_some());
    }
}
