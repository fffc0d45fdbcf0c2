//! `--metrics-listen`: metrics, health and readiness over TCP. Serves nothing else and changes
//! nothing, since every host and pod that reaches the address may connect.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::metrics::Metrics;

/// Connections at a time: a few monitoring systems.
const MAX_CONNECTIONS: usize = 16;
/// Time for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after a failed accept: open files may be exhausted.
const RETRY: Duration = Duration::from_millis(100);
const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Listens at `address`.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("--metrics-listen: cannot listen on {address}"))
}

/// Serves without an end. Connections beyond the limit are closed.
pub(crate) async fn serve(listener: TcpListener, metrics: Metrics) {
    let router = router(metrics);
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted: io::Result<(TcpStream, SocketAddr)> = listener.accept().await;
        let Ok((stream, _)) = accepted else {
            sleep(RETRY).await;
            continue;
        };
        if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
            let router = router.clone();
            tokio::spawn(async move {
                serve_connection(stream, router).await;
                drop(permit);
            });
        }
    }
}

async fn serve_connection(stream: TcpStream, router: Router) {
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT);
    let service = TowerToHyperService::new(router);
    // The client has gone, or has sent no request: neither concerns the others.
    let _result = server.serve_connection(TokioIo::new(stream), service).await;
}

fn router(metrics: Metrics) -> Router {
    Router::new()
        .route("/metrics", get(text))
        .route("/healthz", get(|| async { answer(StatusCode::OK, "ok") }))
        .route("/readyz", get(ready))
        .with_state(metrics)
}

async fn text(State(metrics): State<Metrics>) -> Response {
    match metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// Returns 200 once the agent has pod CIDRs and peers, else 503 with what is missing.
async fn ready(State(metrics): State<Metrics>) -> Response {
    let missing = metrics.unready();
    if missing.is_empty() {
        answer(StatusCode::OK, "ok")
    } else {
        answer(StatusCode::SERVICE_UNAVAILABLE, &missing.join("\n"))
    }
}

fn answer(status: StatusCode, text: &str) -> Response {
    (status, [(header::CONTENT_TYPE, TEXT)], format!("{text}\n")).into_response()
}
