//! Listening sockets of the API: created only when the agent can serve, and never taken over from a
//! running agent. The agent's socket is accessible to root only, the read-only one to a group too.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt as _, PermissionsExt, chown};
use std::os::unix::net::{UnixListener as BlockingListener, UnixStream as BlockingStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use axum::serve::Listener;

use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};

use crate::config::ReadOnlyAddress;
use crate::http::refusal_log::RefusalLog;
use crate::process::instance_lock;

/// The machine's groups, a line each: name, password, number, members (group(5)). Not read by the C
/// library: `getgrnam` loads shared objects, which a static program cannot rely on.
const GROUPS: &str = "/etc/group";

/// Where the agent listens.
#[derive(Debug)]
pub(crate) enum ListenAddress {
    /// On a socket that the agent creates at this path.
    Path(PathBuf),
    /// On a socket that the service manager has created, and keeps.
    Passed(BlockingListener),
}

impl ListenAddress {
    /// Starts to listen; must be called inside a tokio runtime.
    pub(crate) fn listen(self) -> Result<Socket> {
        match self {
            Self::Path(path) => Socket::bind(&path),
            Self::Passed(listener) => Socket::from_service_manager(listener),
        }
    }
}

/// Where the agent listens for queries.
#[derive(Debug)]
pub(crate) struct ReadOnlyListener {
    path: PathBuf,
    clients: Clients,
}

impl ReadOnlyListener {
    /// Looks the group up.
    pub(crate) fn of(address: &ReadOnlyAddress) -> Result<Self> {
        let clients = match &address.group {
            Some(group) => Clients::Group(group_id(group)?),
            None => Clients::Root,
        };
        Ok(Self {
            path: address.path.clone(),
            clients,
        })
    }

    /// Starts to listen; must be called inside a tokio runtime.
    pub(crate) fn listen(self) -> Result<Socket> {
        if let (Clients::Group(group), Some(directory)) = (self.clients, self.path.parent()) {
            open_directory(directory, group)?;
        }
        Socket::bind_for(&self.path, self.clients)
    }
}

/// Users that may connect to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clients {
    /// Root only.
    Root,
    /// Root, and users with this primary or supplementary group.
    Group(u32),
}

impl Clients {
    /// Returns whether the client at the other end of `stream` may use the socket, and its user and
    /// process for the log.
    fn admits(self, stream: &UnixStream) -> io::Result<(bool, u32, Option<i32>)> {
        let peer = stream.peer_cred()?;
        let is_member = match self {
            Self::Root => false,
            Self::Group(group) => {
                peer.gid() == group || kernel::peer_groups(stream.as_fd())?.contains(&group)
            }
        };
        Ok((peer.uid() == 0 || is_member, peer.uid(), peer.pid()))
    }
}

/// Returns the number of a group that is given by name or number.
fn group_id(group: &str) -> Result<u32> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let groups = fs::read_to_string(GROUPS)
        .with_context(|| format!("socket-group: cannot read {GROUPS}"))?;
    number_of(&groups, group)
        .with_context(|| format!("socket-group: no group {group:?} in {GROUPS}"))
}

/// Returns the number of a group in a text as that of [`GROUPS`].
fn number_of(groups: &str, name: &str) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(name);
        fields.nth(1).filter(|_| is_it)?.parse().ok()
    })
}

/// Lets a group pass through the directory of its socket. A directory that is closed to all but
/// root, as the agent's own is, gets the group and the right to search, not to list. Any other
/// directory stays as it is.
fn open_directory(directory: &Path, group: u32) -> Result<()> {
    let shown = directory.display();
    let metadata =
        fs::symlink_metadata(directory).with_context(|| format!("cannot read {shown}"))?;
    let mode = metadata.permissions().mode();
    let is_open = mode & 0o001 != 0 || metadata.gid() == group && mode & 0o010 != 0;
    if is_open {
        return Ok(());
    }
    if mode & 0o077 != 0 || metadata.uid() != 0 {
        bail!("read-only-socket: members of the group cannot search {shown}: set its mode");
    }
    chown(directory, None, Some(group))
        .and_then(|()| {
            fs::set_permissions(directory, Permissions::from_mode(mode & 0o7777 | 0o010))
        })
        .with_context(|| format!("cannot change the mode of {shown}"))
}

/// A listening socket. Its file is removed on drop, unless the service manager has created it.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    clients: Clients,
    refusals: RefusalLog,
    /// Removes the file on drop.
    _file: Option<SocketFile>,
}

#[derive(Debug)]
struct SocketFile(PathBuf);

impl Socket {
    fn from_service_manager(listener: BlockingListener) -> Result<Self> {
        let address = listener.local_addr();
        let path = address
            .ok()
            .and_then(|own| own.as_pathname().map(Path::to_owned));
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener: UnixListener::from_std(listener)?,
            path: path.unwrap_or_default(),
            clients: Clients::Root,
            refusals: RefusalLog::default(),
            _file: None,
        })
    }

    /// Returns the path of the socket; empty for a passed socket without a path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Listens at `path`. A socket file without a listener is left over from a crash and is
    /// replaced.
    pub(crate) fn bind(path: &Path) -> Result<Self> {
        Self::bind_for(path, Clients::Root)
    }

    fn bind_for(path: &Path, clients: Clients) -> Result<Self> {
        ensure_unused(path)?;
        let draft = path.with_extension("draft");
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", draft.display()));
            }
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&draft)
            .with_context(|| format!("cannot listen on {}", draft.display()))?;
        crash::point_at("draft-socket");
        let (group, mode) = match clients {
            Clients::Root => (None, 0o600),
            Clients::Group(group) => (Some(group), 0o660),
        };
        // Permissions before the final name: at `path`, the socket is accessible to its clients.
        chown(&draft, None, group)
            .and_then(|()| fs::set_permissions(&draft, Permissions::from_mode(mode)))
            .and_then(|()| fs::rename(&draft, path))
            .with_context(|| format!("cannot create {}", path.display()))?;
        crash::point_at("name-socket");
        Ok(Self {
            listener,
            path: path.to_owned(),
            clients,
            refusals: RefusalLog::default(),
            _file: Some(SocketFile(path.to_owned())),
        })
    }
}

/// Removes the socket files of an agent that was killed; a file that is no socket is foreign and
/// stays.
pub(crate) fn remove_stale(path: &Path) -> Result<()> {
    for path in [path.with_extension("draft"), path.to_owned()] {
        if fs::symlink_metadata(&path).is_ok_and(|file| file.file_type().is_socket()) {
            ensure_unused(&path)?;
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

fn ensure_unused(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        Ok(file) if !file.file_type().is_socket() => {
            bail!(
                "cannot listen on {}: the file exists and is not a socket",
                path.display()
            )
        }
        Ok(_) => {}
    }
    match BlockingStream::connect(path) {
        Ok(other) => bail!(
            "{} listens on {}",
            instance_lock::other_agent(
                instance_lock::peer_credentials(&other)
                    .map(|peer| peer.pid())
                    .ok()
            ),
            path.display()
        ),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(error)
            .with_context(|| format!("cannot find out whether {} has a listener", path.display())),
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove the socket file");
        }
    }
}

impl Listener for Socket {
    type Io = UnixStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (UnixStream, SocketAddr) {
        let clients = self.clients;
        loop {
            let (stream, address) = tokio::select! {
                accepted = Listener::accept(&mut self.listener) => accepted,
                connections = self.refusals.due() => {
                    tracing::warn!(
                        connections,
                        ?clients,
                        "connections refused: the clients may not use the socket"
                    );
                    continue;
                }
            };
            let refused = match clients.admits(&stream) {
                Ok((true, ..)) => return (stream, address),
                refused => refused.map(|(_, uid, pid)| (uid, pid)),
            };
            let Some(connections) = self.refusals.count() else {
                continue;
            };
            match refused {
                Ok((uid, pid)) => tracing::warn!(
                    connections,
                    uid,
                    pid,
                    ?clients,
                    "connection refused: the client may not use the socket"
                ),
                Err(error) => tracing::warn!(
                    connections,
                    %error,
                    "connection refused: cannot read the client's credentials"
                ),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_their_whole_name() {
        let groups = "root:x:0:\nviaduct-old:x:5:a,b\nviaduct:x:998:\nbroken\n";
        assert_eq!(number_of(groups, "viaduct"), Some(998));
        assert_eq!(number_of(groups, "root"), Some(0));
        assert_eq!(number_of(groups, "duct"), None);
        assert_eq!(number_of(groups, "broken"), None);
    }

    #[tokio::test]
    async fn the_socket_is_for_root_only_and_goes_with_the_agent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("v.sock");
        let socket = Socket::bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn the_read_only_socket_admits_members_of_its_group() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("v-ro.sock");
        // Any process is a member of its own group.
        let own = nix::unistd::getgid().as_raw();
        let socket = Socket::bind_for(&path, Clients::Group(own)).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o660);
        assert_eq!(metadata.gid(), own);
        let _client = BlockingStream::connect(&path).unwrap();
        let (stream, _) = socket.listener.accept().await.unwrap();
        assert!(Clients::Group(own).admits(&stream).unwrap().0);
        let is_root = nix::unistd::getuid().is_root();
        for others in [Clients::Root, Clients::Group(4_000_000)] {
            assert_eq!(others.admits(&stream).unwrap().0, is_root, "{others:?}");
        }
    }

    #[test]
    fn a_group_is_given_by_name_or_number() {
        assert_eq!(group_id("root").unwrap(), 0);
        assert_eq!(group_id("4711").unwrap(), 4711);
        let error = group_id("no such group").unwrap_err().to_string();
        assert!(error.contains("socket-group: no group"), "{error}");
    }

    #[tokio::test]
    async fn a_socket_that_was_passed_stays_when_the_agent_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("v.sock");
        let of_manager = BlockingListener::bind(&path).unwrap();
        let passed = of_manager.try_clone().unwrap();
        let mut socket = ListenAddress::Passed(passed).listen().unwrap();
        assert_eq!(socket.path(), path);
        let _client = BlockingStream::connect(&path).unwrap();
        Listener::accept(&mut socket).await;
        drop(socket);
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_stale_file_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("v.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a crash leaves the file");
        let socket = Socket::bind(&path).unwrap();
        let error = Socket::bind(&path).unwrap_err();
        assert!(
            error.to_string().contains(&format!(
                "another agent, process {}, listens",
                std::process::id()
            )),
            "{error}"
        );
        drop(socket);
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("v.sock");
        fs::write(&path, "precious").unwrap();
        let error = Socket::bind(&path).unwrap_err();
        assert!(error.to_string().contains("is not a socket"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }
}
