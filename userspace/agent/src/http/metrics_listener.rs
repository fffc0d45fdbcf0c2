//! `--metrics-listen`: metrics, health and readiness over TCP, for monitoring systems that cannot
//! use the sockets. Serves nothing else and changes nothing, since every host and pod that reaches
//! the address may connect.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use cni::Error;
use engine::Status;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::app::App;
use crate::cni::readiness::readiness;
use crate::config::default_name;
use crate::http::connections;
use crate::http::failure::Failure;
use crate::telemetry::exposition::Exposition;

/// Listens at `address`; must be called inside a tokio runtime.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("metrics-listen: cannot listen on {address}"))
}

/// Serves until `stopped` is `true`.
pub(crate) async fn serve(listener: TcpListener, app: Arc<App>, stopped: watch::Receiver<bool>) {
    let router = Router::new()
        .route(api::path::METRICS, get(metrics))
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .with_state(app);
    let most = connections::MAX_METRICS_CONNECTIONS;
    connections::serve_at_most(most, listener, router, stopped).await;
}

/// Returns all metrics in the format that the client prefers.
pub(crate) async fn metrics(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let accept: Vec<&str> = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    let format = Exposition::negotiate(&accept.join(","));
    let turn = app.answers.turn().await?;
    let records = app.handle.attachments().await?;
    let measured = app.handle.measure().await?;
    let status = app.handle.live_status();
    let (events, uptime) = (app.events.counters(), app.started.elapsed());
    let text = (app.metrics)
        .text(&status, &records, &measured, events, uptime)
        .map_err(|error| Error::internal(error.to_string()))?;
    let text = format.of_open_metrics(text);
    Ok(turn
        .respond(format.content_type(), text.into_bytes())
        .await?)
}

/// Returns 200 while the engine works, else 503: the agent should be restarted.
async fn health(State(app): State<Arc<App>>) -> Response {
    match app.handle.stuck() {
        None => answer(StatusCode::OK, "ok"),
        Some(stuck) => answer(StatusCode::SERVICE_UNAVAILABLE, stuck.reason().word()),
    }
}

/// Returns 200 if an ADD to the default network would give a working pod, else 503 with reasons.
async fn ready(State(app): State<Arc<App>>) -> Response {
    readiness_answer(&app.handle.live_status())
}

fn readiness_answer(status: &Status) -> Response {
    if readiness(status, &default_name()).is_ok() {
        return answer(StatusCode::OK, "ok");
    }
    // The words only: messages name links and addresses of the node.
    let degraded = status.degraded.iter();
    let words: Vec<&str> = degraded.map(|one| one.reason().word()).collect();
    answer(StatusCode::SERVICE_UNAVAILABLE, &words.join("\n"))
}

fn answer(status: StatusCode, text: &str) -> Response {
    let plain = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    (status, plain, format!("{text}\n")).into_response()
}
