//! Network namespaces of containers: runs code inside of one, and finds interfaces by name.
//!
//! A thread of its own enters the namespace and ends there, so no other thread changes its
//! namespace.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread;

use nix::fcntl::OFlag;
use nix::sched::CloneFlags;
use nix::sys::statfs::{NSFS_MAGIC, fstatfs};

/// Whether an interface exists in a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The namespace has an interface of this name.
    Present,
    /// The namespace has no interface of this name, or there is no namespace at the path.
    Absent,
    /// The namespace cannot be entered.
    Unknown,
}

/// Runs `work` on a thread in the network namespace at `path`. A path without a namespace is
/// [`ErrorKind::NotFound`].
pub fn run_in_netns<T: Send>(
    path: &Path,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    // O_NONBLOCK: a FIFO at the path must not block.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    // When its mount is gone, a file in /run/netns is a regular file.
    if fstatfs(&file)?.filesystem_type() != NSFS_MAGIC {
        return Err(ErrorKind::NotFound.into());
    }
    let enter = || -> io::Result<T> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the thread ends in the namespace and never returns"
        )]
        nix::sched::setns(&file, CloneFlags::CLONE_NEWNET)?;
        work()
    };
    thread::scope(|scope| {
        thread::Builder::new()
            .spawn_scoped(scope, enter)?
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    })
}

/// Returns whether the namespace at `path` has an interface `name`.
pub(crate) fn find_interface(path: &str, name: &str) -> Presence {
    let names = run_in_netns(Path::new(path), || {
        std::fs::read_to_string("/proc/thread-self/net/dev")
    });
    match names {
        Ok(list) if lists(&list, name) => Presence::Present,
        Ok(_) => Presence::Absent,
        Err(error) if is_missing(&error) => Presence::Absent,
        Err(_) => Presence::Unknown,
    }
}

/// Returns whether `/proc/net/dev` lists the interface: two lines of headings, then
/// `name: counters`.
fn lists(list: &str, name: &str) -> bool {
    list.lines()
        .skip(2)
        .filter_map(|line| line.rsplit_once(": "))
        .any(|(found, _)| found.trim() == name)
}

fn is_missing(error: &io::Error) -> bool {
    const ESRCH: i32 = nix::errno::Errno::ESRCH as i32;
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_proc_net_dev_are_found_by_their_whole_name() {
        let list =
            "Inter-|   Receive\n face |bytes\n    lo:  840  10 0\neth0:1: 5 1 0\n  eth0: 7 1 0\n";
        for (name, found) in [
            ("lo", true),
            ("eth0", true),
            ("eth", false),
            ("eth1", false),
        ] {
            assert_eq!(lists(list, name), found, "{name}");
        }
    }

    #[test]
    fn a_path_without_a_network_namespace_has_no_interface() {
        for path in [
            "",
            "/nonexistent",
            "/proc/self/status",
            "/proc/self/status/x",
        ] {
            assert_eq!(find_interface(path, "lo"), Presence::Absent, "{path}");
        }
    }
}
