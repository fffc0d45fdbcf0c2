//! Blocking client of the API: one connection for each request, and no thread, because a plugin
//! process is started for every ADD and DEL. Never retries: only the caller can decide whether that
//! is safe.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, socket};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ErrorBody;
use crate::http::{self, ResponseError};

/// Timeout of connecting to the agent. A running agent accepts immediately.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(700);

/// Timeout of request and response together. An ADD may be queued behind others.
const DEADLINE: Duration = Duration::from_mins(1);

/// Why a request has no successful response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket could not be connected to.
    #[error("{}", unreachable(socket, source))]
    Unreachable {
        /// Path of the socket.
        socket: PathBuf,
        /// Why the connection failed.
        source: io::Error,
    },
    /// The agent accepted the connection and did not respond in time. It may still execute the
    /// request.
    #[error("the agent on {} did not respond within {} s", socket.display(), after.as_secs())]
    Timeout {
        /// Path of the socket.
        socket: PathBuf,
        /// The timeout.
        after: Duration,
    },
    /// The connection failed before the end of the response.
    #[error("the connection to the agent on {} was lost", socket.display())]
    Broken {
        /// Path of the socket.
        socket: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The response is not HTTP as the agent sends it.
    #[error("unexpected response on {}: the peer is no Viaduct agent", socket.display())]
    Response {
        /// Path of the socket.
        socket: PathBuf,
        /// Parse error of the response.
        source: ResponseError,
    },
    /// The body is not of the type that belongs to the path.
    #[error("cannot parse the agent's response: agent and client may be of different versions")]
    Body(#[from] serde_json::Error),
    /// The agent refused the request.
    #[error("{0}")]
    Refused(ErrorBody),
}

fn unreachable(socket: &Path, source: &io::Error) -> String {
    let socket = socket.display();
    let kind = source.kind();
    if kind == io::ErrorKind::PermissionDenied {
        format!("permission denied on {socket}: only root may connect to the agent")
    } else if kind == io::ErrorKind::TimedOut {
        format!("the agent on {socket} accepts no connection")
    } else {
        format!("no agent listens on {socket}")
    }
}

/// A response with any HTTP status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status code.
    pub status: u16,
    /// Body in bytes, JSON on all paths but metrics.
    pub body: Vec<u8>,
}

impl Reply {
    /// Returns whether the HTTP status is 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns the error body; if the body is none, an error with code 999 that contains status and
    /// body.
    pub fn error(&self) -> ErrorBody {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| ErrorBody {
            code: 999,
            reason: String::new(),
            message: format!("the agent responded with HTTP status {}", self.status),
            details: String::from_utf8_lossy(&self.body).trim().to_owned(),
        })
    }

    /// Returns the deserialised body of a success, or the agent's error.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        if self.is_success() {
            Ok(serde_json::from_slice(&self.body)?)
        } else {
            Err(ClientError::Refused(self.error()))
        }
    }
}

/// A client of the agent's API.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    /// Used where the client may not connect to `socket`.
    read_only: Option<PathBuf>,
    connect_timeout: Duration,
    deadline: Duration,
}

impl Client {
    /// Returns a client of the agent that listens on `socket`; does not connect yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            read_only: None,
            connect_timeout: CONNECT_TIMEOUT,
            deadline: DEADLINE,
        }
    }

    /// Sets the timeout of request and response together.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets a read-only socket of the same agent, for a client without permission to connect to the
    /// first one. The agent refuses other requests than queries on it.
    #[must_use]
    pub fn or_read_only(mut self, socket: impl Into<PathBuf>) -> Self {
        self.read_only = Some(socket.into());
        self
    }

    /// Returns the path of the agent's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a `GET`.
    pub fn get(&self, path: &str) -> Result<Reply, ClientError> {
        self.exchange("GET", path, &[])
    }

    /// Sends a `POST` with a value as JSON.
    pub fn post(&self, path: &str, body: &impl Serialize) -> Result<Reply, ClientError> {
        self.exchange("POST", path, &serde_json::to_vec(body)?)
    }

    /// Sends a `PUT` with a value as JSON.
    pub fn put(&self, path: &str, body: &impl Serialize) -> Result<Reply, ClientError> {
        self.exchange("PUT", path, &serde_json::to_vec(body)?)
    }

    /// Sends a `GET` whose response may be an endless stream of lines; calls `each` with every line
    /// until it returns `false`.
    pub fn follow(
        &self,
        path: &str,
        mut each: impl FnMut(&str) -> bool,
    ) -> Result<Reply, ClientError> {
        let unreachable = |source| ClientError::Unreachable {
            socket: self.socket.clone(),
            source,
        };
        let mut stream = self.connect().map_err(unreachable)?;
        let request = http::request("GET", path, &[]);
        stream.write_all(&request).map_err(unreachable)?;
        match http::read_lines(stream, &mut each) {
            Ok((status, body)) => Ok(Reply { status, body }),
            Err(ResponseError::Io(source)) => Err(self.broken(source)),
            Err(source) => Err(ClientError::Response {
                socket: self.socket.clone(),
                source,
            }),
        }
    }

    fn exchange(&self, method: &str, path: &str, body: &[u8]) -> Result<Reply, ClientError> {
        let unreachable = |source| ClientError::Unreachable {
            socket: self.socket.clone(),
            source,
        };
        let stream = self.connect().map_err(unreachable)?;
        let mut timed = DeadlineStream {
            stream,
            until: Instant::now() + self.deadline,
        };
        // The agent may refuse a request after its head and close before it has read the body: a
        // write error is ignored if there is a response.
        let sent = timed.write_all(&http::request(method, path, body));
        match (http::read_response(&mut timed), sent) {
            (Ok((status, body)), _) => Ok(Reply { status, body }),
            (Err(ResponseError::Io(_)), Err(source)) | (Err(ResponseError::Io(source)), _) => {
                Err(self.broken(source))
            }
            (Err(source), _) => Err(ClientError::Response {
                socket: self.socket.clone(),
                source,
            }),
        }
    }

    /// Connects to the read-only socket if the permission to connect to the first is missing. The
    /// error is that of the first.
    fn connect(&self) -> io::Result<UnixStream> {
        let connected = connect(&self.socket, self.connect_timeout);
        match (&self.read_only, connected) {
            (Some(read_only), Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                connect(read_only, self.connect_timeout).map_err(|_| error)
            }
            (_, connected) => connected,
        }
    }

    fn broken(&self, source: io::Error) -> ClientError {
        let socket = self.socket.clone();
        if matches!(
            source.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
        ) {
            ClientError::Timeout {
                socket,
                after: self.deadline,
            }
        } else {
            ClientError::Broken { socket, source }
        }
    }
}

/// Connects within `timeout`. If the backlog is full, connecting blocks for the socket's send
/// timeout (`unix_stream_connect` in `net/unix/af_unix.c`).
fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let address = UnixAddr::new(path)?;
    let flags = SockFlag::SOCK_CLOEXEC;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let stream = UnixStream::from(stream);
    stream.set_write_timeout(Some(timeout))?;
    match socket::connect(stream.as_raw_fd(), &address) {
        Err(Errno::EAGAIN) => {
            let what = format!("not accepted within {} ms", timeout.as_millis());
            return Err(io::Error::new(io::ErrorKind::TimedOut, what));
        }
        connected => connected?,
    }
    stream.set_write_timeout(None)?;
    Ok(stream)
}

/// A stream with one deadline for all its reads and writes.
struct DeadlineStream {
    stream: UnixStream,
    until: Instant,
}

impl DeadlineStream {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            Ok(Some(left))
        }
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests;
