//! A blocking client: one connection, one request, one response, and no thread, because the plugin is started for every
//! ADD and DEL. Refuses to retry: whoever asked knows better whether that is wise.

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

/// How long to wait for the agent to accept a connection. A living agent does so at once.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(700);

/// How long a request and its response may take together. An ADD waits its turn behind others.
const DEADLINE: Duration = Duration::from_mins(1);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens, or not for us.
    #[error("{}", unreachable(socket, source))]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// Why the connection failed.
        source: io::Error,
    },
    /// The agent accepted the request and was then silent for too long. It may still execute it.
    #[error("the agent on {} did not answer within {} s", socket.display(), after.as_secs())]
    Timeout {
        /// The socket.
        socket: PathBuf,
        /// The time that it had.
        after: Duration,
    },
    /// The connection broke.
    #[error("the connection to the agent on {} broke", socket.display())]
    Broken {
        /// The socket.
        socket: PathBuf,
        /// How.
        source: io::Error,
    },
    /// What answered is not an agent of ours.
    #[error("what listens on {} does not answer as an agent", socket.display())]
    Response {
        /// The socket.
        socket: PathBuf,
        /// What is wrong with the answer.
        source: ResponseError,
    },
    /// The body is not what the path promises.
    #[error("the agent's answer cannot be understood; are agent and client of the same version?")]
    Body(#[from] serde_json::Error),
    /// The agent said no.
    #[error("{0}")]
    Refused(ErrorBody),
}

fn unreachable(socket: &Path, source: &io::Error) -> String {
    let socket = socket.display();
    let kind = source.kind();
    if kind == io::ErrorKind::PermissionDenied {
        format!("only root may speak to the agent on {socket}")
    } else if kind == io::ErrorKind::TimedOut {
        format!("the agent on {socket} accepts no connection")
    } else {
        format!("no agent listens on {socket}")
    }
}

/// A response, whatever its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status code.
    pub status: u16,
    /// Body.
    pub body: Vec<u8>,
}

impl Reply {
    /// Whether the request was granted.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The agent's reason for a refusal; where the body gives none, one that tells the status.
    pub fn error(&self) -> ErrorBody {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| ErrorBody {
            code: 999,
            message: format!("the agent answered with HTTP status {}", self.status),
            details: String::from_utf8_lossy(&self.body).trim().to_owned(),
        })
    }

    /// The typed body, or the agent's reason for a refusal.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        if self.is_success() {
            Ok(serde_json::from_slice(&self.body)?)
        } else {
            Err(ClientError::Refused(self.error()))
        }
    }
}

/// A way to ask the agent.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    connect_timeout: Duration,
    deadline: Duration,
}

impl Client {
    /// A client of the agent that listens on `socket`.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
            connect_timeout: CONNECT_TIMEOUT,
            deadline: DEADLINE,
        }
    }

    /// With another limit for request and response together.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// `GET`.
    pub fn get(&self, path: &str) -> Result<Reply, ClientError> {
        self.exchange("GET", path, &[])
    }

    /// `POST` of a value as JSON.
    pub fn post(&self, path: &str, body: &impl Serialize) -> Result<Reply, ClientError> {
        self.exchange("POST", path, &serde_json::to_vec(body)?)
    }

    /// `PUT` of a value as JSON.
    pub fn put(&self, path: &str, body: &impl Serialize) -> Result<Reply, ClientError> {
        self.exchange("PUT", path, &serde_json::to_vec(body)?)
    }

    /// `GET` of a body of lines that may go on for ever: each is given to `each`, until that says `false`.
    pub fn follow(
        &self,
        path: &str,
        mut each: impl FnMut(&str) -> bool,
    ) -> Result<Reply, ClientError> {
        let unreachable = |source| ClientError::Unreachable {
            socket: self.socket.clone(),
            source,
        };
        let mut stream = connect(&self.socket, self.connect_timeout).map_err(unreachable)?;
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
        let stream = connect(&self.socket, self.connect_timeout).map_err(unreachable)?;
        let mut timed = Timed {
            stream,
            until: Instant::now() + self.deadline,
        };
        // An agent that refuses a request by its head may close before it has read all of it: its answer counts.
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

/// Connects within `timeout`. Where the backlog is full, the kernel waits as long as it would to send
/// (`unix_stream_connect` in `net/unix/af_unix.c`).
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

/// A stream whose every read and write ends at the same moment.
struct Timed {
    stream: UnixStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            Ok(Some(left))
        }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed {
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
