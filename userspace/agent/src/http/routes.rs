//! HTTP routes of the API: each handler parses the request, calls the engine, and responds in JSON.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use abi::DropReason;
use api::{
    AttachmentView, BandwidthSetting, BypassSetting, CniRequest, CniVerb, CounterView, DropQuery,
    ErrorReason, EventOutcome, FlowQuery, HairpinModeSetting, InterfacePresence, InterfaceQuery,
    Lease, LogLevelSetting, NetworkView, PageQuery, PodCidrs, PortView, UninstallRequest, WhyQuery,
    path,
};
use axum::body::Body;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Extension, Json, Router};
use cni::{Command, Error};
use model::Cidr;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;

use crate::app::App;
use crate::cni::commands::NamespaceQuery;
use crate::http::connections::{PeerProcess, STOPPING};
use crate::http::failure::{Failure, Parameters, no_such_method, no_such_path, read_only};
use crate::http::{
    flows, hostports, metrics_listener, migration, peers, policies, view, web_page, why,
};
use crate::process::uninstall as uninstallation;

type Answer<T> = Result<Json<T>, Failure>;
/// A response that may be large.
type LargeAnswer = Result<Response, Failure>;
/// Process of the client; `None` if it is not known.
type Peer = Option<Extension<PeerProcess>>;

/// Returns the router with all paths; once `stopped` is `true`, every request is refused with code
/// 11.
pub(crate) fn router(app: Arc<App>, stopped: watch::Receiver<bool>) -> Router {
    let unless_stopped = move |request: Request, next: Next| {
        let is_stopped = *stopped.borrow();
        async move {
            if is_stopped {
                Failure::from(Error::try_again_later(STOPPING)).into_response()
            } else {
                next.run(request).await
            }
        }
    };
    paths()
        .layer(from_fn(unless_stopped))
        .layer(map_response(add_version_header))
        .with_state(app)
}

/// Returns the router of the read-only socket: the same paths, for queries only, and the page of
/// `--web-page`.
pub(crate) fn read_only_router(app: Arc<App>, stopped: watch::Receiver<bool>) -> Router {
    let has_page = app.config.get().access.web_page;
    let mut router = router(app, stopped);
    if has_page {
        router = router
            .merge(web_page::router())
            .layer(from_fn(web_page::refuse_foreign_hosts));
    }
    router
        .layer(Extension(ReadOnly))
        .layer(from_fn(refuse_changes))
        .layer(map_response(add_version_header))
}

/// Marks requests of the read-only socket.
#[derive(Clone, Copy, Debug)]
struct ReadOnly;

/// Refuses all methods but those that change nothing. No handler of `GET` changes anything.
async fn refuse_changes(request: Request, next: Next) -> Response {
    match *request.method() {
        Method::GET | Method::HEAD => next.run(request).await,
        _ => read_only(request.method(), request.uri()),
    }
}

async fn add_version_header(mut response: Response) -> Response {
    let name = HeaderName::from_static(api::VERSION_HEADER);
    let version = HeaderValue::from_static(api::VERSION);
    response.headers_mut().insert(name, version);
    response
}

/// Returns the router of all paths.
pub(crate) fn paths() -> Router<Arc<App>> {
    let mut router = Router::new()
        .route(path::OPENAPI, get(openapi))
        .route(path::STATUS, get(status))
        .route(path::POD_CIDRS, get(pod_cidrs).put(put_pod_cidrs))
        .route(path::PEERS, get(peers::list).put(peers::replace))
        .route(path::PEER_SOURCE, put(peers::set_source))
        .route(path::POLICIES, get(policies::list).put(policies::replace))
        .route(path::HAIRPIN_MODE, get(hairpin_mode).put(put_hairpin_mode))
        .route(path::BYPASS, put(put_bypass))
        .route(path::LOG_LEVEL, put(put_log_level))
        .route(path::NETWORKS, get(networks))
        .route(path::ATTACHMENTS, get(attachments))
        .route(path::ATTACHMENT, get(attachment))
        .route(path::INSIDE, post(inside))
        .route(path::NETAVARK_CREATE, post(netavark_create))
        .route(path::BANDWIDTH, put(put_bandwidth))
        .route(path::ONLY_BANDWIDTH, put(put_only_bandwidth))
        .route(path::DRAIN, post(migration::drain_ports))
        .route(path::KEPT_CONNECTIONS, post(migration::keep_connections))
        .route(path::LEASES, get(leases))
        .route(path::HOSTPORTS, get(hostports))
        .route(path::FLOWS, get(flows))
        .route(path::COUNTERS, get(counters))
        .route(path::UNINSTALL, post(uninstall))
        .route(path::RELOAD, post(reload))
        .route(path::EVENTS, get(events))
        .route(path::DROPS, get(drops))
        .route(path::WHY, get(explain))
        .route(path::METRICS, get(metrics_listener::metrics))
        .route(
            path::NON_MASQUERADE_CIDRS,
            get(non_masquerade).put(set_non_masquerade),
        );
    let commands = [
        (CniVerb::Add, Command::Add),
        (CniVerb::Del, Command::Del),
        (CniVerb::Check, Command::Check),
        (CniVerb::Gc, Command::Gc),
        (CniVerb::Status, Command::Status),
    ];
    for (verb, command) in commands {
        let handler = move |State(app): State<Arc<App>>, peer: Peer, body: Body| {
            let pid = peer.map(|Extension(PeerProcess(pid))| pid);
            cni(app, command, body, pid)
        };
        router = router.route(verb.path(), post(handler));
    }
    router
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
}

async fn cni(
    app: Arc<App>,
    command: Command,
    body: Body,
    client: Option<u32>,
) -> Result<Response, Failure> {
    let request = app.request_memory.read::<CniRequest>(body).await?;
    if command == Command::Add {
        // A spooled DEL may be of the same attachment, or free the address or port that this ADD
        // needs.
        app.replay().await;
    }
    let output = app.cni(command, request.value, client).await?;
    Ok(([(CONTENT_TYPE, "application/json")], output).into_response())
}

/// The document that `cargo xtask tidy --bless` writes.
const OPENAPI: &str = include_str!("../../../../docs/reference/openapi.json");

async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

async fn status(State(app): State<Arc<App>>) -> Json<api::Status> {
    let uptime = app.started.elapsed().as_secs();
    let features = app.features.get().map(Vec::as_slice).unwrap_or_default();
    let offloaded = (app.offload_counts.lock())
        .map(|counts| counts.clone())
        .unwrap_or_default();
    let mut status = view::status(&app.handle.live_status(), uptime, features, &offloaded);
    status.losses = app.losses.views().to_vec();
    status.operations = app
        .handle
        .operations()
        .iter()
        .map(view::operation)
        .collect();
    Json(status)
}

async fn pod_cidrs(State(app): State<Arc<App>>) -> Json<PodCidrs> {
    let pod_cidrs = app.pod_cidrs();
    Json(PodCidrs { pod_cidrs })
}

async fn put_pod_cidrs(State(app): State<Arc<App>>, body: Body) -> Answer<PodCidrs> {
    let wanted = app.request_memory.read::<PodCidrs>(body).await?;
    app.set_pod_cidrs(&wanted.value.pod_cidrs).await?;
    Ok(pod_cidrs(State(app)).await)
}

async fn hairpin_mode(State(app): State<Arc<App>>) -> Json<HairpinModeSetting> {
    let mode = app.hairpin_mode().to_string();
    Json(HairpinModeSetting { mode })
}

async fn put_hairpin_mode(State(app): State<Arc<App>>, body: Body) -> Answer<HairpinModeSetting> {
    let wanted = app.request_memory.read::<HairpinModeSetting>(body).await?;
    app.set_hairpin_mode(&wanted.value.mode).await?;
    Ok(hairpin_mode(State(app)).await)
}

async fn put_bypass(State(app): State<Arc<App>>, body: Body) -> Answer<BypassSetting> {
    let wanted = app.request_memory.read::<BypassSetting>(body).await?;
    Ok(Json(app.set_bypass(&wanted.value).await?))
}

async fn put_log_level(State(app): State<Arc<App>>, body: Body) -> Answer<LogLevelSetting> {
    let wanted = app.request_memory.read::<LogLevelSetting>(body).await?;
    app.set_log_level(&wanted.value).await?;
    Ok(Json(wanted.value))
}

async fn networks(State(app): State<Arc<App>>) -> LargeAnswer {
    let turn = app.answers.turn().await?;
    let status = app.handle.status();
    let views: Vec<NetworkView> = status.networks.iter().map(view::network).collect();
    Ok(turn.json(&views).await?)
}

async fn attachments(
    State(app): State<Arc<App>>,
    Parameters(page): Parameters<PageQuery>,
) -> LargeAnswer {
    let turn = app.answers.turn().await?;
    let views = attachment_views(&app).await?;
    Ok(turn.json(&page.select(views)).await?)
}

async fn attachment_views(app: &App) -> Result<Vec<AttachmentView>, Failure> {
    let records = app.handle.attachments().await?;
    let measured = app
        .handle
        .measure()
        .await
        .inspect_err(|error| tracing::warn!(%error, "counters unavailable: listing attachments without them"))
        .ok();
    let rates = app.rates(&records, measured.as_ref()).await;
    let views = records
        .iter()
        .map(|record| view::attachment(record, measured.as_ref(), &rates));
    Ok(views.collect())
}

/// Returns all attachments of a container. Without a record, inspects the namespace in `?netns=`
/// instead.
async fn attachment(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    read_only: Option<Extension<ReadOnly>>,
    Parameters(place): Parameters<NamespaceQuery>,
) -> Answer<Vec<AttachmentView>> {
    if read_only.is_some() && place.names_namespace() {
        // The agent would open a path as root that the client may not open.
        let error = Error::environment("the read-only socket opens no namespace: remove ?netns=");
        return Err(Failure::with_reason(error, ErrorReason::ReadOnly));
    }
    let started = Instant::now();
    let found = inspect(&app, &id, &place).await;
    let outcome = found
        .as_ref()
        .map_or(EventOutcome::Failed, |_| EventOutcome::Done);
    // Counted with its latency like a CNI verb: kubelet queries the status of pods this way
    // (behaviour K36).
    let metrics = &app.metrics;
    metrics.count("inspect", outcome.word(), started.elapsed());
    found.map(Json)
}

async fn inspect(
    app: &Arc<App>,
    id: &str,
    place: &NamespaceQuery,
) -> Result<Vec<AttachmentView>, Failure> {
    let turn = app.answers.turn().await?;
    let mut views = attachment_views(app).await?;
    drop(turn);
    views.retain(|view| view.container_id == id);
    if views.is_empty() {
        views.push(app.inspect_interface(id, place).await?);
    }
    Ok(views)
}

async fn inside(State(app): State<Arc<App>>, body: Body) -> Answer<InterfacePresence> {
    let wanted = app
        .request_memory
        .read::<InterfaceQuery<String>>(body)
        .await?
        .value;
    let exists = app.has_interface(&wanted.netns, &wanted.ifname).await?;
    Ok(Json(InterfacePresence { exists }))
}

async fn netavark_create(State(app): State<Arc<App>>, body: Body) -> Result<Response, Failure> {
    let network = app.request_memory.read::<Box<RawValue>>(body).await?;
    let completed = app.netavark_create(network.value.get()).await?;
    Ok(([(CONTENT_TYPE, "application/json")], completed).into_response())
}

async fn put_bandwidth(
    State(app): State<Arc<App>>,
    Path((id, ifname)): Path<(String, String)>,
    body: Body,
) -> Answer<BandwidthSetting> {
    let wanted = app.request_memory.read::<BandwidthSetting>(body).await?;
    let set = app.set_limits(&id, Some(&ifname), &wanted.value).await?;
    Ok(Json(set))
}

async fn put_only_bandwidth(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    body: Body,
) -> Answer<BandwidthSetting> {
    let wanted = app.request_memory.read::<BandwidthSetting>(body).await?;
    Ok(Json(app.set_limits(&id, None, &wanted.value).await?))
}

async fn leases(
    State(app): State<Arc<App>>,
    Parameters(page): Parameters<PageQuery>,
) -> LargeAnswer {
    let turn = app.answers.turn().await?;
    let records = app.handle.attachments().await?;
    let leases: Vec<Lease> = records.iter().flat_map(view::leases).collect();
    Ok(turn.json(&page.select(leases)).await?)
}

async fn hostports(
    State(app): State<Arc<App>>,
    Parameters(page): Parameters<PageQuery>,
) -> LargeAnswer {
    let turn = app.answers.turn().await?;
    let ports = app.handle.ports().await?;
    let flows = app.flows.table().await;
    let flows = flows
        .inspect_err(|error| tracing::warn!(%error, "flow table unavailable: listing host ports without flows"))
        .ok();
    let flows = flows.as_deref().map(|table| &*table.flows);
    let views: Vec<PortView> = hostports::ports(&ports, flows);
    Ok(turn.json(&page.select(views)).await?)
}

async fn flows(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> LargeAnswer {
    let query = FlowQuery::parse(&query.unwrap_or_default())
        .map_err(|text| Failure::with_reason(Error::decode(text), ErrorReason::InvalidRequest))?;
    let snapshot = app.flows.snapshot(&app.handle).await?;
    let body = Body::from_stream(flows::render(query, snapshot).await?);
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

async fn non_masquerade(State(app): State<Arc<App>>) -> Answer<Vec<String>> {
    let prefixes = app.handle.non_masquerade().await?;
    Ok(Json(prefixes.iter().map(Cidr::to_string).collect()))
}

async fn set_non_masquerade(State(app): State<Arc<App>>, body: Body) -> Answer<Vec<String>> {
    let texts = app.request_memory.read::<Vec<String>>(body).await?.value;
    let prefixes: BTreeSet<Cidr> = texts
        .iter()
        .map(|text| Cidr::masked(text).map_err(|error| Error::decode(format!("{text}: {error}"))))
        .collect::<Result<_, _>>()?;
    let shown = prefixes.iter().map(Cidr::to_string).collect();
    tracing::info!(?shown, "setting non-masquerade CIDRs");
    app.handle.set_non_masquerade(prefixes).await?;
    Ok(Json(shown))
}

/// Media type of newline-delimited JSON.
const NDJSON: &str = "application/x-ndjson";

/// Query parameters of `GET /v1/events`.
#[derive(Debug, Default, Deserialize)]
struct EventsQuery {
    #[serde(default)]
    follow: bool,
    #[serde(default)]
    last: bool,
}

async fn events(
    State(app): State<Arc<App>>,
    Parameters(wanted): Parameters<EventsQuery>,
) -> Response {
    if wanted.last {
        let body = Body::from_stream(app.events.last());
        return ([(CONTENT_TYPE, NDJSON)], body).into_response();
    }
    let lines = app
        .events
        .lines(wanted.follow, app.lifecycle.stop.subscribe());
    let body = Body::from_stream(lines);
    ([(CONTENT_TYPE, NDJSON)], body).into_response()
}

async fn drops(
    State(app): State<Arc<App>>,
    Parameters(wanted): Parameters<DropQuery>,
) -> Result<Response, Failure> {
    if let Some(reason) = &wanted.reason
        && !DropReason::ALL.iter().any(|known| known.name() == reason)
    {
        let text = format!("{reason}: no such drop reason; see docs/reference/drop-reasons.md");
        let error = Error::decode(text);
        return Err(Failure::with_reason(error, ErrorReason::InvalidRequest));
    }
    let stop = app.lifecycle.stop.subscribe();
    let body = Body::from_stream(app.drop_events.lines(wanted, stop)?);
    Ok(([(CONTENT_TYPE, NDJSON)], body).into_response())
}

async fn explain(
    State(app): State<Arc<App>>,
    Parameters(wanted): Parameters<WhyQuery>,
) -> LargeAnswer {
    let turn = app.answers.turn().await?;
    let view = why::explain(&app, wanted).await?;
    Ok(turn.json(&view).await?)
}

async fn uninstall(State(app): State<Arc<App>>, body: Body) -> Answer<api::Uninstalled> {
    let request = app.request_memory.read::<UninstallRequest>(body).await?;
    let UninstallRequest { drain, purge } = request.value;
    let (done, files) = app.uninstall(uninstallation::policy(drain), purge).await?;
    Ok(Json(api::Uninstalled {
        detached: done.detached.iter().map(ToString::to_string).collect(),
        removed: [done.removed, files.removed].concat(),
        left: done.left,
        remaining: files.remaining,
    }))
}

/// Reloads the configuration, and finishes even if the client goes away.
async fn reload(State(app): State<Arc<App>>) -> Answer<api::Reloaded> {
    let reload = tokio::spawn(async move { app.reload().await });
    let result = reload
        .await
        .map_err(|error| Error::internal(error.to_string()))?;
    let reloaded = result.map_err(|error| {
        Error::invalid_config(format!("reload failed, configuration unchanged: {error:#}"))
    })?;
    let names = |keys: &[&str]| keys.iter().map(ToString::to_string).collect();
    Ok(Json(api::Reloaded {
        applied: names(&reloaded.applied),
        needs_restart: names(&reloaded.needs_restart),
    }))
}

async fn counters(State(app): State<Arc<App>>) -> Answer<CounterView> {
    Ok(Json(view::node_counters(&app.handle.measure().await?)))
}
