//! Connections: limits their number and their timeouts. Independent of paths and requests.
//!
//! A client beyond the limit gets an immediate error with CNI code 11 (try again later), so that
//! its runtime retries. A client that sends no request, or does not read its response, is
//! disconnected (behaviours A1, A2).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::{ErrorBody, ErrorReason, TRY_AGAIN_LATER};
use axum::Router;
use axum::serve::Listener;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::sleep;

use crate::http::refusal_log::RefusalLog;
use crate::http::write_timeout::WriteTimeout;

/// Maximum number of connections: more than the requests that the engine queues, and fewer than the
/// default limit of open files of a process.
pub(crate) const MAX_CONNECTIONS: usize = 640;
/// Maximum number of connections of the read-only socket: its clients leave most of the queue and
/// of the open files to root.
pub(crate) const MAX_READ_ONLY_CONNECTIONS: usize = 64;
/// Maximum number of connections of `--metrics-listen`: a few monitoring systems, and no room for
/// more, since everyone may connect who reaches the address.
pub(crate) const MAX_METRICS_CONNECTIONS: usize = 16;
/// Timeout of receiving the head of a request, from the connection or from the previous response.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of delivering the remaining responses when the agent stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Process ID of the client, as an extension of each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerProcess(pub(crate) u32);

/// The server's end of a connection.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Returns the process ID of the client; `None` if it is not known.
    fn peer_process(&self) -> Option<u32>;

    /// Sends as many bytes as the send buffer has room for.
    fn try_send(&self, bytes: &[u8]) -> io::Result<usize>;
}

impl ClientStream for UnixStream {
    fn peer_process(&self) -> Option<u32> {
        let pid = self.peer_cred().ok()?.pid()?;
        u32::try_from(pid).ok()
    }

    fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write(bytes)
    }
}

impl ClientStream for TcpStream {
    fn peer_process(&self) -> Option<u32> {
        None
    }

    fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write(bytes)
    }
}

/// Error message for requests that arrive while the agent stops.
pub(crate) const STOPPING: &str = "the agent is stopping";
const TOO_MANY: &str = "too many clients are connected to the agent";

/// Serves until `stopped` is `true`; then finishes running requests, and refuses new connections.
pub(crate) async fn serve<L>(listener: L, router: Router, stopped: watch::Receiver<bool>)
where
    L: Listener<Io: ClientStream>,
{
    serve_at_most(MAX_CONNECTIONS, listener, router, stopped).await;
}

/// Does the same as [`serve`], with at most `connections` at a time.
pub(crate) async fn serve_at_most<L>(
    connections: usize,
    mut listener: L,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) where
    L: Listener<Io: ClientStream>,
{
    let open = GracefulShutdown::new();
    let permits = Arc::new(Semaphore::new(connections));
    let mut refusals = RefusalLog::default();
    loop {
        tokio::select! {
            (stream, _) = listener.accept() => match Arc::clone(&permits).try_acquire_owned() {
                Ok(permit) => {
                    tokio::spawn(serve_connection(stream, router.clone(), open.watcher(), permit));
                }
                Err(_) => refuse(&stream, TOO_MANY, &mut refusals),
            },
            refused = refusals.due() => log_refused(refused, TOO_MANY),
            // The sender is never dropped before it has sent.
            _ = stopped.wait_for(|stopped| *stopped) => break,
        }
    }
    tokio::select! {
        () = open.shutdown() => {}
        () = sleep(SHUTDOWN_TIMEOUT) => tracing::warn!("agent stopping: a client did not read its response in time"),
        () = refuse_all(&mut listener) => {}
    }
}

/// Serves the requests of one connection until it closes.
async fn serve_connection(
    stream: impl ClientStream,
    router: Router,
    watcher: Watcher,
    _permit: OwnedSemaphorePermit,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT);
    let peer = stream.peer_process();
    let io = TokioIo::new(WriteTimeout::new(stream));
    let inner = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(pid) = peer {
            request.extensions_mut().insert(PeerProcess(pid));
        }
        inner.call(request)
    });
    let connection = http.serve_connection(io, service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "client connection failed");
    }
}

async fn refuse_all(listener: &mut impl Listener<Io: ClientStream>) {
    let mut refusals = RefusalLog::default();
    loop {
        tokio::select! {
            (stream, _) = listener.accept() => refuse(&stream, STOPPING, &mut refusals),
            refused = refusals.due() => log_refused(refused, STOPPING),
        }
    }
}

fn log_refused(connections: u64, why: &str) {
    tracing::warn!(connections, "connection refused: {why}");
}

/// Responds with 503 before the request is read, as HTTP allows; the request is discarded.
fn refuse(stream: &impl ClientStream, why: &str, refusals: &mut RefusalLog) {
    let body = ErrorBody {
        code: TRY_AGAIN_LATER,
        reason: ErrorReason::TryAgainLater.word().to_owned(),
        message: why.to_owned(),
        details: String::new(),
    };
    let body = serde_json::to_string(&body).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    // The send buffer of a new connection is empty, so the response fits; a client that has gone
    // needs none.
    let _sent = stream.try_send(answer.as_bytes());
    if let Some(refused) = refusals.count() {
        log_refused(refused, why);
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use axum::routing::get;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;
    use tokio::sync::{mpsc, oneshot};
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;

    const REQUEST: &[u8] = b"GET /slow HTTP/1.1\r\nhost: viaduct\r\n\r\n";

    /// A server whose test controls when each request ends.
    struct Server {
        _directory: TempDir,
        path: PathBuf,
        stop: watch::Sender<bool>,
        served: JoinHandle<()>,
        /// For each request that has begun: a sender that finishes it, and a receiver that closes
        /// when it is dropped.
        begun: mpsc::UnboundedReceiver<(oneshot::Sender<()>, oneshot::Receiver<()>)>,
    }

    impl Server {
        fn start() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("v.sock");
            let listener = UnixListener::bind(&path).unwrap();
            let (stop, stopped) = watch::channel(false);
            let (report_begun, begun) = mpsc::unbounded_channel();
            let slow = move || {
                let (go_on, may_go_on) = oneshot::channel();
                let (alive, dropped) = oneshot::channel();
                report_begun.send((go_on, dropped)).unwrap();
                async move {
                    let _alive: oneshot::Sender<()> = alive;
                    may_go_on.await.unwrap();
                    "done"
                }
            };
            let router = Router::new().route("/slow", get(slow));
            let served = tokio::spawn(serve(listener, router, stopped));
            Self {
                _directory: directory,
                path,
                stop,
                served,
                begun,
            }
        }

        async fn connect(&self) -> UnixStream {
            UnixStream::connect(&self.path).await.unwrap()
        }
    }

    /// Sends a request to the server at `path`, and returns the whole response.
    async fn exchange(path: &Path) -> String {
        let mut client = UnixStream::connect(path).await.unwrap();
        // The connection of a refused client may be closed before it has sent its request.
        let _broken = client.write_all(REQUEST).await;
        rest(&mut client).await
    }

    async fn rest(client: &mut UnixStream) -> String {
        let mut bytes = Vec::new();
        // If the request was not read, the connection may be reset after the response.
        let _broken = client.read_to_end(&mut bytes).await;
        String::from_utf8(bytes).unwrap()
    }

    fn assert_code_11(answer: &str, why: &str) {
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        let body: ErrorBody = serde_json::from_str(answer.lines().last().unwrap()).unwrap();
        assert_eq!((body.code, body.message.as_str()), (TRY_AGAIN_LATER, why));
    }

    #[tokio::test]
    async fn shutdown_finishes_running_requests_and_refuses_new_ones_with_code_11() {
        let mut server = Server::start();
        let mut client = server.connect().await;
        client.write_all(REQUEST).await.unwrap();
        let (go_on, _) = server.begun.recv().await.unwrap();
        server.stop.send_replace(true);
        // The server may still accept a request until it has received the stop signal.
        let refusal = loop {
            tokio::select! {
                answer = exchange(&server.path) => break answer,
                begun = server.begun.recv() => begun.unwrap().0.send(()).unwrap(),
            }
        };
        assert_code_11(&refusal, STOPPING);
        assert!(!server.served.is_finished(), "one request still runs");
        go_on.send(()).unwrap();
        let answer = rest(&mut client).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("done"),
            "{answer}"
        );
        server.served.await.unwrap();
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_are_refused_with_code_11_until_one_closes() {
        // Both ends of each connection are open files of this process.
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
        let mut server = Server::start();
        let mut idle = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            idle.push(server.connect().await);
        }
        assert_code_11(&exchange(&server.path).await, TOO_MANY);
        drop(idle.pop());
        loop {
            tokio::select! {
                answer = exchange(&server.path) => assert_code_11(&answer, TOO_MANY),
                _ = server.begun.recv() => break,
            }
        }
    }

    /// behaviour A2. The paused clock advances whenever all tasks are idle.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_no_request_is_disconnected() {
        let server = Server::start();
        for said in ["", "GET /slow HTTP/1.1\r\nhost: vi"] {
            let begun = Instant::now();
            let mut client = server.connect().await;
            client.write_all(said.as_bytes()).await.unwrap();
            let answer = rest(&mut client).await;
            assert!(!answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert!(begun.elapsed() >= HEAD_TIMEOUT, "{:?}", begun.elapsed());
        }
    }

    /// behaviour A4: the request's future is dropped with the connection.
    #[tokio::test]
    async fn a_client_that_hangs_up_ends_its_request() {
        let mut server = Server::start();
        let mut client = server.connect().await;
        client.write_all(REQUEST).await.unwrap();
        let (_go_on, dropped) = server.begun.recv().await.unwrap();
        drop(client);
        dropped.await.unwrap_err();
    }
}
