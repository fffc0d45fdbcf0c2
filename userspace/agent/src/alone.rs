//! One agent for each state directory, set of pins and bridge: two that write at once would undo each other's work.
//!
//! Each claim is a lock that the kernel takes back when its holder ends, however it ends: a stale one never blocks.
//! Directories are locked as such, for whoever may open them. A bridge belongs to a network namespace, and so does the
//! name of the abstract socket that stands for it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::linux::fs::MetadataExt as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Context, Result, bail};
use model::IfName;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{UnixCredentials, getsockopt};
use nix::sys::stat::{major, minor};

/// What nobody else may have while this lives.
#[derive(Debug)]
pub(crate) struct Alone {
    _state: Flock<File>,
    _bridge: Option<UnixListener>,
}

impl Alone {
    /// Claims the state directory and the bridge. The pins are locked by whoever opens them, behind a look here that
    /// tells who has them.
    pub(crate) fn claim(state_dir: &Path, pins: &Path, bridge: &IfName) -> Result<Self> {
        let state = lock(state_dir)?;
        if pins.exists() {
            drop(lock(pins)?);
        }
        let bridge = claim_bridge(bridge)?;
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
            let holder = holder(&file).unwrap_or_default();
            return error.context(format!("{} has {shown}", another(holder)));
        }
        error
    })
}

/// An agent by its process, where it can be seen from here.
pub(crate) fn another(pid: Option<i32>) -> String {
    let process = pid.filter(|pid| *pid > 0).map_or_else(
        || "of a process that cannot be seen from here".to_owned(),
        |pid| format!("of process {pid}"),
    );
    format!("another agent, {process},")
}

/// The process that has locked a file, as the kernel lists it.
fn holder(file: &File) -> io::Result<Option<i32>> {
    let metadata = file.metadata()?;
    let device = metadata.st_dev();
    let inode = format!(
        "{:02x}:{:02x}:{}",
        major(device),
        minor(device),
        metadata.st_ino()
    );
    Ok(holder_in(&fs::read_to_string("/proc/locks")?, &inode))
}

/// A line is `1: FLOCK  ADVISORY  WRITE 4711 00:19:1026 0 EOF`; that of one who waits has an arrow behind its number.
fn holder_in(locks: &str, inode: &str) -> Option<i32> {
    let mut lines = locks.lines().map(|line| line.split_whitespace());
    lines.find_map(|mut words| {
        let is_flock = words.nth(1)? == "FLOCK";
        let pid = words.nth(2)?.parse().ok()?;
        (is_flock && words.next()? == inode && pid > 0).then_some(pid)
    })
}

/// Who listens on the other end.
pub(crate) fn peer(stream: &UnixStream) -> io::Result<UnixCredentials> {
    Ok(getsockopt(stream, PeerCredentials)?)
}

/// The name of a bridge, in this network namespace. Anybody may take a name: only one that root has keeps us out.
fn claim_bridge(bridge: &IfName) -> Result<Option<UnixListener>> {
    let name = format!("viaduct/bridge/{bridge}");
    let address = SocketAddr::from_abstract_name(&name)?;
    loop {
        match UnixListener::bind_addr(&address) {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot claim bridge {bridge}"));
            }
        }
        match UnixStream::connect_addr(&address).and_then(|stream| peer(&stream)) {
            Ok(peer) if peer.uid() == 0 => {
                bail!("{} has bridge {bridge}", another(Some(peer.pid())))
            }
            Ok(peer) => {
                tracing::warn!(
                    pid = peer.pid(),
                    uid = peer.uid(),
                    "a process that is not root has the name {name:?}: another agent for {bridge} would not be noticed"
                );
                return Ok(None);
            }
            // It has ended since.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot tell who has bridge {bridge}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bridge(name: &str) -> IfName {
        name.parse().unwrap()
    }

    fn refused(claim: Result<Alone>) -> String {
        format!("{:#}", claim.unwrap_err())
    }

    #[test]
    fn whoever_comes_second_is_told_which_process_has_what() {
        let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let pins = Path::new("/nowhere");
        let own = format!("process {},", std::process::id());
        let held = Alone::claim(first.path(), pins, &bridge("vdtest0")).unwrap();

        let state = refused(Alone::claim(first.path(), pins, &bridge("vdtest1")));
        assert!(state.contains(&own), "{state}");
        assert!(
            state.contains(&first.path().display().to_string()),
            "{state}"
        );
        let same_bridge = refused(Alone::claim(second.path(), pins, &bridge("vdtest0")));
        assert!(same_bridge.contains("bridge vdtest0"), "{same_bridge}");
        let same_pins = refused(Alone::claim(
            second.path(),
            first.path(),
            &bridge("vdtest1"),
        ));
        assert!(same_pins.contains(&own), "{same_pins}");

        drop(held);
        Alone::claim(first.path(), second.path(), &bridge("vdtest0")).unwrap();
    }

    #[test]
    fn the_kernels_list_names_who_holds_a_lock_and_not_who_waits() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 00:19:1026 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 8 00:19:10 0 EOF\n\
            3: FLOCK  ADVISORY  WRITE 4711 00:19:1026 0 EOF\n\
            3: -> FLOCK  ADVISORY  WRITE 9 00:19:1026 0 EOF\n";
        assert_eq!(holder_in(locks, "00:19:1026"), Some(4711));
        assert_eq!(holder_in(locks, "00:19:1027"), None);
        assert_eq!(
            holder_in("1: FLOCK ADVISORY WRITE 0 00:19:1 0 EOF", "00:19:1"),
            None
        );
    }
}
