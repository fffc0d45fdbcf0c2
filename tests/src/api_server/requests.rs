//! Answers of the server to single requests.

use std::fmt::Write as _;
use std::io;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Faults;
use super::world::{Change, Kind, Object, World};
use crate::http_server::{Connection, Request};

/// Minor version of the server, unless a fault changes it.
const MINOR: u32 = 36;
/// Duration of a watch without a limit.
const WATCH: u64 = 290;
/// Annotation of the bookmark that ends a streamed list.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// Answers a request. An error ends the connection.
pub(super) fn answer(
    connection: &mut Connection,
    request: &Request,
    world: &World,
) -> io::Result<()> {
    let faults = world.faults();
    let is_known = faults.token.as_ref().is_none_or(|token| {
        request.authorization.as_deref() == Some(format!("Bearer {token}").as_str())
    });
    world.record(&name(request), &request.query);
    if !is_known {
        return refuse(connection, 401, "Unauthorized", None);
    }
    if let Some(status) = faults.status {
        return refuse(
            connection,
            status,
            "a fault of the test",
            faults.retry_after,
        );
    }
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/version") => connection.answer(200, None, &version(&faults)),
        ("GET", path) => match Kind::ALL.into_iter().find(|kind| kind.path() == path) {
            Some(kind) if faults.forbids == Some(kind.names().0) => {
                refuse(connection, 403, "without the right", None)
            }
            Some(kind) => objects(connection, request, world, kind),
            None => refuse(connection, 404, "not found", None),
        },
        ("PATCH", path) => patch(connection, request, world, path),
        _ => refuse(connection, 404, "not found", None),
    }
}

/// Returns verb and resource, as rules of RBAC have them.
fn name(request: &Request) -> String {
    let path = request
        .path
        .trim_start_matches("/api/v1/")
        .trim_start_matches("/apis/networking.k8s.io/v1/");
    let is_status = path.ends_with("/status");
    let resource = path.split('/').next().unwrap_or_default();
    let verb = match request.method.as_str() {
        "PATCH" => "patch",
        _ if request.path == "/version" => return "get /version".to_owned(),
        _ if request.is_set("watch") => "watch",
        _ => "list",
    };
    let status = if is_status { "/status" } else { "" };
    format!("{verb} {resource}{status}")
}

fn version(faults: &Faults) -> Value {
    let minor = faults.minor.unwrap_or(MINOR);
    json!({
        "major": "1", "minor": minor.to_string(), "gitVersion": format!("v1.{minor}.0"),
        "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
        "platform": "",
    })
}

fn refuse(
    connection: &mut Connection,
    code: u16,
    message: &str,
    retry_after: Option<u32>,
) -> io::Result<()> {
    let status = status(code, message, retry_after);
    connection.answer(code, retry_after, &status)
}

fn status(code: u16, message: &str, retry_after: Option<u32>) -> Value {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let details = retry_after.map(|seconds| json!({ "retryAfterSeconds": seconds }));
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "details": details, "code": code,
    })
}

/// Lists or watches objects.
fn objects(
    connection: &mut Connection,
    request: &Request,
    world: &World,
    kind: Kind,
) -> io::Result<()> {
    let selector = request.parameter("fieldSelector").unwrap_or_default();
    let node = selector.strip_prefix("spec.nodeName=").map(str::to_owned);
    let wanted = move |object: &Object| node.is_none() || object.node == node;
    if request.is_set("watch") {
        watch(connection, request, world, kind, &wanted)
    } else {
        list(connection, request, world, kind, &wanted)
    }
}

fn list(
    connection: &mut Connection,
    request: &Request,
    world: &World,
    kind: Kind,
    wanted: &dyn Fn(&Object) -> bool,
) -> io::Result<()> {
    // `VERSION:KEY`, the version of the first page and the last key of the page before.
    let token = request.parameter("continue").unwrap_or_default();
    let (first, after) = token.split_once(':').unwrap_or(("", ""));
    if first
        .parse()
        .is_ok_and(|version| world.is_compacted(version))
    {
        return refuse(connection, 410, "the continue token has expired", None);
    }
    let (version, objects) = world.list(kind, after, wanted);
    let limit = request
        .parameter("limit")
        .and_then(|text| text.parse().ok());
    let page = &objects[..objects.len().min(limit.unwrap_or(usize::MAX))];
    let version = if first.is_empty() {
        version.to_string()
    } else {
        first.to_owned()
    };
    let rest = if page.len() < objects.len() {
        let last = page.last().map(|(key, _)| key.as_str()).unwrap_or_default();
        format!("{version}:{last}")
    } else {
        String::new()
    };
    let (_, name) = kind.names();
    let group = kind.api_version();
    let mut body = format!(
        r#"{{"kind":"{name}List","apiVersion":"{group}","metadata":{{"resourceVersion":"{version}","continue":"{rest}"}},"items":["#
    );
    for (index, (_, object)) in page.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let _always_fits = write!(body, "{comma}{}", object.text);
    }
    body.push_str("]}");
    connection.answer_text(200, None, &body)
}

fn watch(
    connection: &mut Connection,
    request: &Request,
    world: &World,
    kind: Kind,
    wanted: &dyn Fn(&Object) -> bool,
) -> io::Result<()> {
    let faults = world.faults();
    let is_old = faults.minor.is_some_and(|minor| minor < 27);
    let is_initial = request.is_set("sendInitialEvents") && !is_old;
    if is_initial && faults.has_no_streams {
        let why = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
        return refuse(connection, 422, why, None);
    }
    let asked = request
        .parameter("resourceVersion")
        .and_then(|text| text.parse().ok());
    let mut version = asked.unwrap_or_default();
    let is_expired = !is_initial && version > 0 && world.is_compacted(version);
    if is_expired && faults.expires_by_status {
        return refuse(connection, 410, "too old resource version", None);
    }
    connection.begin_chunks()?;
    if is_expired {
        let gone = status(410, "too old resource version", None);
        connection.chunk(&json!({ "type": "ERROR", "object": gone }).to_string())?;
        return connection.end_chunks();
    }
    if is_initial || version == 0 {
        let (current, objects) = world.list(kind, "", wanted);
        for (_, object) in objects {
            event(connection, world, kind, "ADDED", &object)?;
        }
        version = current;
    }
    if is_initial {
        connection.chunk(&bookmark(kind, version, true))?;
    }
    follow(connection, request, world, kind, version, wanted)
}

/// Sends the changes after a version until the watch has lasted as long as it may.
fn follow(
    connection: &mut Connection,
    request: &Request,
    world: &World,
    kind: Kind,
    mut version: u64,
    wanted: &dyn Fn(&Object) -> bool,
) -> io::Result<()> {
    let epoch = world.epoch();
    let seconds = request
        .parameter("timeoutSeconds")
        .and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(WATCH));
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let Some(changes) =
            world.changes_after(kind, version, epoch, left.min(Duration::from_secs(5)))
        else {
            connection.close();
            return Err(io::ErrorKind::ConnectionAborted.into());
        };
        for Change {
            version: its,
            event: name,
            object,
            ..
        } in changes
        {
            version = its;
            if wanted(&object) {
                event(connection, world, kind, name, &object)?;
            }
        }
        if left.is_zero() {
            return connection.end_chunks();
        }
        connection.chunk(&bookmark(kind, version, false))?;
    }
}

fn event(
    connection: &mut Connection,
    world: &World,
    kind: Kind,
    name: &str,
    object: &Object,
) -> io::Result<()> {
    let (_, of) = kind.names();
    let group = kind.api_version();
    // An object begins with a brace.
    let rest = &object.text[1..];
    let line =
        format!(r#"{{"type":"{name}","object":{{"kind":"{of}","apiVersion":"{group}",{rest}}}"#);
    if world.take_half_event() {
        connection.half_chunk(&line)
    } else {
        connection.chunk(&line)
    }
}

fn bookmark(kind: Kind, version: u64, is_end: bool) -> String {
    let (_, name) = kind.names();
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if is_end {
        metadata["annotations"] = json!({ INITIAL_END: "true" });
    }
    let object = json!({ "kind": name, "apiVersion": kind.api_version(), "metadata": metadata });
    json!({ "type": "BOOKMARK", "object": object }).to_string()
}

/// Merges conditions of a Node's status by their type, as a strategic merge patch does.
fn patch(
    connection: &mut Connection,
    request: &Request,
    world: &World,
    path: &str,
) -> io::Result<()> {
    let name = path
        .strip_prefix("/api/v1/nodes/")
        .and_then(|rest| rest.strip_suffix("/status"));
    let Some((name, mut node)) = name.and_then(|name| Some((name, world.get(Kind::Nodes, name)?)))
    else {
        return refuse(connection, 404, "not found", None);
    };
    if world.faults().forbids_patches {
        return refuse(connection, 403, "nodes is forbidden", None);
    }
    let wanted: Value = serde_json::from_slice(&request.body)?;
    let changed = wanted["status"]["conditions"].as_array();
    let conditions = node["status"]["conditions"].as_array_mut();
    let (Some(changed), Some(conditions)) = (changed, conditions) else {
        return refuse(connection, 422, "a patch of conditions is expected", None);
    };
    for condition in changed {
        conditions.retain(|one| one["type"] != condition["type"]);
        conditions.push(condition.clone());
    }
    world.put(Kind::Nodes, node);
    let mut node = world.get(Kind::Nodes, name).unwrap_or_default();
    node["kind"] = json!(Kind::Nodes.names().1);
    node["apiVersion"] = json!(Kind::Nodes.api_version());
    connection.answer(200, None, &node)
}
