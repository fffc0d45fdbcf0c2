//! Clients and their connections: how many there may be, and how long each may take. Knows no path and no request.
//!
//! A client that is not served is told so at once and in the words of CNI, so that its runtime comes again. One that
//! says nothing, or does not read, loses its place (behaviours A1, A2).

use std::sync::Arc;
use std::time::Duration;

use api::{ErrorBody, TRY_AGAIN_LATER};
use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::sleep;

use crate::stall::Stall;

/// Connections at a time: more than there may be requests in the engine's queue, and fewer than a process may have
/// files where nobody has raised the limit.
pub(crate) const CONNECTIONS: usize = 640;
/// How long a client may take from its connection, or its last answer, to the end of a request's head.
pub(crate) const HEAD: Duration = Duration::from_secs(10);
/// How long clients may take to read their answers after the agent was told to stop.
const GRACE: Duration = Duration::from_secs(30);

/// What a client hears that comes when the agent has been told to stop.
pub(crate) const STOPPING: &str = "the agent is stopping";
const TOO_MANY: &str = "too many clients are connected to the agent";

/// Serves until `stopped` becomes true; then finishes what runs, and refuses what comes.
pub(crate) async fn serve<L>(mut listener: L, router: Router, mut stopped: watch::Receiver<bool>)
where
    L: Listener<Io = UnixStream>,
{
    let open = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        tokio::select! {
            (stream, _) = listener.accept() => match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => {
                    tokio::spawn(converse(stream, router.clone(), open.watcher(), place));
                }
                Err(_) => refuse(&stream, TOO_MANY),
            },
            // The sender goes only after it has sent.
            _ = stopped.wait_for(|stopped| *stopped) => break,
        }
    }
    tokio::select! {
        () = open.shutdown() => {}
        () = sleep(GRACE) => tracing::warn!("a client did not take its answer"),
        () = refuse_all(&mut listener) => {}
    }
}

/// One connection, from its first request to its end.
async fn converse(
    stream: UnixStream,
    router: Router,
    watcher: Watcher,
    _place: OwnedSemaphorePermit,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let io = TokioIo::new(Stall::new(stream));
    let connection = http.serve_connection(io, TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection broke");
    }
}

async fn refuse_all(listener: &mut impl Listener<Io = UnixStream>) {
    loop {
        let (stream, _) = listener.accept().await;
        refuse(&stream, STOPPING);
    }
}

/// Answers before a request is read, as HTTP allows: what the client sends meanwhile is thrown away.
fn refuse(stream: &UnixStream, why: &str) {
    let body = ErrorBody {
        code: TRY_AGAIN_LATER,
        message: why.to_owned(),
        details: String::new(),
    };
    let body = serde_json::to_string(&body).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    // There is room for it in a fresh connection; who has gone already needs no answer.
    let _sent = stream.try_write(answer.as_bytes());
    tracing::warn!(why, "a client was refused");
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

    /// A server whose requests begin and end under the eyes of the test.
    struct Server {
        _directory: TempDir,
        path: PathBuf,
        stop: watch::Sender<bool>,
        served: JoinHandle<()>,
        /// A request has begun: what answers it, and what says that it was dropped.
        begun: mpsc::UnboundedReceiver<(oneshot::Sender<()>, oneshot::Receiver<()>)>,
    }

    impl Server {
        fn start() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("v.sock");
            let listener = UnixListener::bind(&path).unwrap();
            let (stop, stopped) = watch::channel(false);
            let (tell, begun) = mpsc::unbounded_channel();
            let slow = move || {
                let (go_on, may_go_on) = oneshot::channel();
                let (alive, dropped) = oneshot::channel();
                tell.send((go_on, dropped)).unwrap();
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

    /// Everything that the server at `path` says to a client that asks.
    async fn ask(path: &Path) -> String {
        let mut client = UnixStream::connect(path).await.unwrap();
        // A client that is refused may find the connection broken before it has asked.
        let _broken = client.write_all(REQUEST).await;
        rest(&mut client).await
    }

    async fn rest(client: &mut UnixStream) -> String {
        let mut bytes = Vec::new();
        // A client whose request was not read may find the connection broken behind the answer.
        let _broken = client.read_to_end(&mut bytes).await;
        String::from_utf8(bytes).unwrap()
    }

    fn assert_come_again(answer: &str, why: &str) {
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        let body: ErrorBody = serde_json::from_str(answer.lines().last().unwrap()).unwrap();
        assert_eq!((body.code, body.message.as_str()), (TRY_AGAIN_LATER, why));
    }

    #[tokio::test]
    async fn what_runs_is_finished_and_what_comes_is_told_to_come_again() {
        let mut server = Server::start();
        let mut client = server.connect().await;
        client.write_all(REQUEST).await.unwrap();
        let (go_on, _) = server.begun.recv().await.unwrap();
        server.stop.send_replace(true);
        // Until the server has heard of it, it may take a request on.
        let refusal = loop {
            tokio::select! {
                answer = ask(&server.path) => break answer,
                begun = server.begun.recv() => begun.unwrap().0.send(()).unwrap(),
            }
        };
        assert_come_again(&refusal, STOPPING);
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
    async fn clients_beyond_the_most_are_told_to_come_again_until_one_goes() {
        // Both ends are files of this process.
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
        let mut server = Server::start();
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS {
            idle.push(server.connect().await);
        }
        assert_come_again(&ask(&server.path).await, TOO_MANY);
        drop(idle.pop());
        loop {
            tokio::select! {
                answer = ask(&server.path) => assert_come_again(&answer, TOO_MANY),
                _ = server.begun.recv() => break,
            }
        }
    }

    /// behaviour A2. The clock of this test goes on by itself when nothing else can happen.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_ask_loses_its_place() {
        let server = Server::start();
        for said in ["", "GET /slow HTTP/1.1\r\nhost: vi"] {
            let begun = Instant::now();
            let mut client = server.connect().await;
            client.write_all(said.as_bytes()).await.unwrap();
            let answer = rest(&mut client).await;
            assert!(!answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert!(begun.elapsed() >= HEAD, "{:?}", begun.elapsed());
        }
    }

    /// behaviour A4: what it waits for ends with it.
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
