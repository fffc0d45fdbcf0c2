//! Listening socket of the API: created only when the agent can serve, accessible to root only, and
//! never taken over from a running agent.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as BlockingListener, UnixStream as BlockingStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use axum::serve::Listener;
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};

use crate::instance_lock;

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

/// A listening socket. Its file is removed on drop, unless the service manager has created it.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
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
        // Permissions before the final name: at `path`, the socket is accessible to root only.
        fs::set_permissions(&draft, Permissions::from_mode(0o600))
            .and_then(|()| fs::rename(&draft, path))
            .with_context(|| format!("cannot create {}", path.display()))?;
        crash::point_at("name-socket");
        Ok(Self {
            listener,
            path: path.to_owned(),
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
        loop {
            let (stream, address) = Listener::accept(&mut self.listener).await;
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == 0 => return (stream, address),
                Ok(peer) => {
                    let (uid, pid) = (peer.uid(), peer.pid());
                    tracing::warn!(uid, pid, "connection refused: the client is not root");
                }
                Err(error) => {
                    tracing::warn!(%error, "connection refused: cannot read the client's credentials");
                }
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
