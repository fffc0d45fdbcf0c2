//! Instance lock: one agent for each state directory, pin directory and bridge. Two agents that
//! write at once would undo each other's work.
//!
//! The kernel releases each lock when its process ends, however it ends: a stale lock never blocks.
//! Directories are locked with `flock(2)`. A bridge belongs to a network namespace, and so does the
//! name of the abstract socket that is its lock.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::linux::fs::MetadataExt as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Context, Result, bail};
use model::IfName;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, UnixCredentials, connect, getsockopt, socket,
};
use nix::sys::stat::{major, minor};

/// The locks of this agent, released on drop.
#[derive(Debug)]
pub(crate) struct InstanceLock {
    _state: Flock<File>,
    _bridge: Option<UnixListener>,
}

impl InstanceLock {
    /// Locks the state directory and the bridge. The pin directory is locked by `kernel` when it is
    /// opened; here it is locked for a moment only, so that the error names the process that holds
    /// it.
    pub(crate) fn acquire(state_dir: &Path, pins: &Path, bridge: &IfName) -> Result<Self> {
        let state = lock(state_dir)?;
        if pins.exists() {
            drop(lock(pins)?);
        }
        let bridge = lock_bridge(bridge)?;
        Ok(Self {
            _state: state,
            _bridge: bridge,
        })
    }
}

fn lock(directory: &Path) -> Result<Flock<File>> {
    let shown = directory.display();
    let file = File::open(directory).with_context(|| format!("cannot open {shown}"))?;
    let locked = Flock::lock(file, FlockArg::LockExclusiveNonblock);
    locked.map_err(|(file, errno)| {
        let error = anyhow::Error::from(errno).context(format!("cannot lock {shown}"));
        if errno == Errno::EWOULDBLOCK {
            let holder = lock_holder(&file).unwrap_or_default();
            return error.context(format!("{} holds {shown}", other_agent(holder)));
        }
        error
    })
}

/// Describes another agent by its process ID; `None` or 0 for a process of another PID namespace.
pub(crate) fn other_agent(pid: Option<i32>) -> String {
    let process = pid.filter(|pid| *pid > 0).map_or_else(
        || "process of another PID namespace".to_owned(),
        |pid| format!("process {pid}"),
    );
    format!("another agent, {process},")
}

/// Returns the process that has locked a file, according to `/proc/locks`.
fn lock_holder(file: &File) -> io::Result<Option<i32>> {
    let metadata = file.metadata()?;
    let device = metadata.st_dev();
    let inode = format!(
        "{:02x}:{:02x}:{}",
        major(device),
        minor(device),
        metadata.st_ino()
    );
    Ok(parse_lock_holder(
        &fs::read_to_string("/proc/locks")?,
        &inode,
    ))
}

/// Parses `/proc/locks`. A line is `1: FLOCK  ADVISORY  WRITE 4711 00:19:1026 0 EOF`; that of a
/// waiting process has an arrow after its number.
fn parse_lock_holder(locks: &str, inode: &str) -> Option<i32> {
    let mut lines = locks.lines().map(|line| line.split_whitespace());
    lines.find_map(|mut words| {
        let is_flock = words.nth(1)? == "FLOCK";
        let pid = words.nth(2)?.parse().ok()?;
        (is_flock && words.next()? == inode && pid > 0).then_some(pid)
    })
}

/// Returns the credentials of the process that listens on the other end.
pub(crate) fn peer_credentials(stream: &UnixStream) -> io::Result<UnixCredentials> {
    Ok(getsockopt(stream, PeerCredentials)?)
}

/// Binds the abstract socket that is the lock of a bridge in this network namespace.
///
/// Any process of the namespace can bind such a name, so the name alone proves nothing: only a
/// process that could be an agent counts as one. Otherwise this agent runs without this lock, and
/// the locks of the directories decide alone.
fn lock_bridge(bridge: &IfName) -> Result<Option<UnixListener>> {
    let name = format!("viaduct/bridge/{bridge}");
    let address = SocketAddr::from_abstract_name(&name)?;
    for _ in 0..BIND_ATTEMPTS {
        match UnixListener::bind_addr(&address) {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot lock bridge {bridge}"));
            }
        }
        match socket_owner(&name) {
            Ok(peer) if may_be_agent(&peer) => {
                bail!("{} holds bridge {bridge}", other_agent(Some(peer.pid())))
            }
            Ok(peer) => {
                warn_unlocked(bridge, &name, Some(&peer));
                return Ok(None);
            }
            // Its process has ended meanwhile, or does not listen: try again.
            Err(Errno::ECONNREFUSED) => {}
            // The queue of connections is full: an agent accepts none, but has room for many.
            Err(_) => break,
        }
    }
    warn_unlocked(bridge, &name, None);
    Ok(None)
}

/// Number of times that the bridge's socket is bound, while its name is taken by a socket that does
/// not listen.
const BIND_ATTEMPTS: usize = 3;

/// Returns the credentials of the process that listens on an abstract socket. Never blocks.
fn socket_owner(name: &str) -> Result<UnixCredentials, Errno> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(
        socket.as_raw_fd(),
        &UnixAddr::new_abstract(name.as_bytes())?,
    )?;
    getsockopt(&socket, PeerCredentials)
}

/// Returns whether a process could be an agent: it runs as root, in this process's user namespace,
/// and may change the network. One that is not visible, in another PID namespace, does not count.
fn may_be_agent(peer: &UnixCredentials) -> bool {
    let folder = Path::new("/proc").join(peer.pid().to_string());
    let user_namespace = |folder: &Path| fs::read_link(folder.join("ns/user")).ok();
    let own = user_namespace(Path::new("/proc/self"));
    let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
    peer.uid() == 0 && has_net_admin(&status) && user_namespace(&folder) == own
}

/// Returns whether the effective capabilities in a `/proc/<pid>/status` contain `CAP_NET_ADMIN`.
fn has_net_admin(status: &str) -> bool {
    const CAP_NET_ADMIN: u32 = 12;
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set & 1 << CAP_NET_ADMIN != 0)
}

fn warn_unlocked(bridge: &IfName, socket: &str, peer: Option<&UnixCredentials>) {
    tracing::warn!(
        pid = peer.map(UnixCredentials::pid),
        uid = peer.map(UnixCredentials::uid),
        socket,
        "instance lock of bridge {bridge} unavailable: a process that is no agent has bound its socket; \
         another agent for this bridge, with other directories, would not be detected"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bridge(name: &str) -> IfName {
        name.parse().unwrap()
    }

    fn refused(claim: Result<InstanceLock>) -> String {
        format!("{:#}", claim.unwrap_err())
    }

    #[test]
    fn a_second_agent_gets_an_error_that_names_lock_and_process() {
        let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let pins = Path::new("/nowhere");
        let own = format!("process {},", std::process::id());
        let held = InstanceLock::acquire(first.path(), pins, &bridge("vdtest0")).unwrap();

        let state = refused(InstanceLock::acquire(
            first.path(),
            pins,
            &bridge("vdtest1"),
        ));
        assert!(state.contains(&own), "{state}");
        assert!(
            state.contains(&first.path().display().to_string()),
            "{state}"
        );
        let same_bridge = refused(InstanceLock::acquire(
            second.path(),
            pins,
            &bridge("vdtest0"),
        ));
        assert!(same_bridge.contains("bridge vdtest0"), "{same_bridge}");
        let same_pins = refused(InstanceLock::acquire(
            second.path(),
            first.path(),
            &bridge("vdtest1"),
        ));
        assert!(same_pins.contains(&own), "{same_pins}");

        drop(held);
        InstanceLock::acquire(first.path(), second.path(), &bridge("vdtest0")).unwrap();
    }

    /// A socket that is bound and does not listen refuses connections, as one whose process has
    /// ended does.
    #[test]
    fn a_bound_socket_that_does_not_listen_does_not_keep_the_agent_from_starting() {
        let directory = tempfile::tempdir().unwrap();
        let flags = SockFlag::SOCK_CLOEXEC;
        let squatter = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        let address = UnixAddr::new_abstract(b"viaduct/bridge/vdtest9").unwrap();
        nix::sys::socket::bind(squatter.as_raw_fd(), &address).unwrap();
        let pins = Path::new("/nowhere");
        InstanceLock::acquire(directory.path(), pins, &bridge("vdtest9")).unwrap();
    }

    #[test]
    fn only_a_process_that_may_change_the_network_counts_as_an_agent() {
        for (status, may) in [
            ("Name:\tx\nCapEff:\t000001ffffffffff\n", true),
            ("CapEff:\t0000000000001000\n", true),
            ("CapEff:\t0000000000000000\n", false),
            (
                "CapPrm:\t000001ffffffffff\nCapEff:\t00000000a80425fb\n",
                false,
            ),
            ("", false),
        ] {
            assert_eq!(has_net_admin(status), may, "{status}");
        }
        let invisible = UnixCredentials::from(nix::libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        });
        assert!(!may_be_agent(&invisible));
    }

    #[test]
    fn proc_locks_names_the_holder_of_a_lock_and_not_a_waiter() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 00:19:1026 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 8 00:19:10 0 EOF\n\
            3: FLOCK  ADVISORY  WRITE 4711 00:19:1026 0 EOF\n\
            3: -> FLOCK  ADVISORY  WRITE 9 00:19:1026 0 EOF\n";
        assert_eq!(parse_lock_holder(locks, "00:19:1026"), Some(4711));
        assert_eq!(parse_lock_holder(locks, "00:19:1027"), None);
        assert_eq!(
            parse_lock_holder("1: FLOCK ADVISORY WRITE 0 00:19:1 0 EOF", "00:19:1"),
            None
        );
    }
}
