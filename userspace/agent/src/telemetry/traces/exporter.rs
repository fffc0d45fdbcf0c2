//! Exports traces by OTLP over HTTP, on a thread of its own.
//!
//! A command puts its spans into a queue and goes on. If the queue is full, because the receiver is
//! slow or absent, the spans are lost and counted.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use api::CniRequest;
use cni::Command;
use engine::{TraceRecorder, TracedPhase};
use opentelemetry::KeyValue;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, SpanId, Status, TraceContextExt};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use prometheus_client::metrics::family::Family;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::spans::Context;
use super::{OtlpEndpoint, Outcome, SpanCounts};
use crate::http::failure::Failure;
use crate::version;

/// Commands whose spans wait for their export. Each has some 20 spans of half a kilobyte.
const QUEUE_LENGTH: usize = 1024;
/// Entries of the queue that are exported at once.
const BATCH: usize = 256;
/// Time after which a batch is exported that is not full.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time that the receiver has for a batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that the last batch has when the agent stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Spans of a command, to be made by the exporter's thread.
enum Entry {
    Root(Box<SpanData>),
    Phases(Context, Vec<TracedPhase>),
}

impl Entry {
    fn spans(self) -> Vec<SpanData> {
        match self {
            Self::Root(span) => vec![*span],
            Self::Phases(context, phases) => {
                let phases = phases.into_iter();
                phases.flat_map(|phase| context.phase(phase)).collect()
            }
        }
    }

    /// Returns the number of spans.
    fn count(&self) -> usize {
        match self {
            Self::Root(_) => 1,
            Self::Phases(_, phases) => phases.iter().map(|phase| 1 + phase.steps.len()).sum(),
        }
    }
}

/// The queue of the exporter, if there is an endpoint.
#[derive(Debug)]
pub(crate) struct Traces {
    queue: Option<Queue>,
}

/// Waits for the exporter's thread at the agent's end: the receiver is then disconnected.
pub(crate) struct Exporter(Option<Receiver<()>>);

#[derive(Clone, Debug)]
struct Queue {
    entries: mpsc::Sender<Entry>,
    counts: SpanCounts,
}

impl Queue {
    fn push(&self, entry: Entry) {
        let spans = entry.count();
        if self.entries.try_send(entry).is_err() {
            self.counts.add("lost", spans);
        }
    }
}

impl SpanCounts {
    fn add(&self, outcome: &'static str, spans: usize) {
        if let Some(counts) = &self.0 {
            let spans = u64::try_from(spans).unwrap_or(u64::MAX);
            counts.get_or_create(&Outcome { outcome }).inc_by(spans);
        }
    }
}

impl Traces {
    /// Starts the exporter, if there is an endpoint.
    pub(crate) fn start(endpoint: Option<&OtlpEndpoint>) -> Result<(Self, Exporter)> {
        let Some(endpoint) = endpoint else {
            return Ok((Self { queue: None }, Exporter(None)));
        };
        let exporter = exporter(endpoint)?;
        let runtime = crate::runtime()?;
        let (entries, received) = mpsc::channel(QUEUE_LENGTH);
        let counts = SpanCounts(Some(Family::default()));
        let (end, ended) = sync_channel(0);
        let (endpoint, of_thread) = (endpoint.0.to_string(), counts.clone());
        thread::Builder::new()
            .name("traces".to_owned())
            .spawn(move || {
                let _end = end;
                runtime.block_on(export(received, exporter, &endpoint, &of_thread));
            })
            .context("cannot start the thread of the traces")?;
        let queue = Some(Queue { entries, counts });
        Ok((Self { queue }, Exporter(Some(ended))))
    }

    /// Returns the counts of spans.
    pub(crate) fn counts(&self) -> SpanCounts {
        self.queue
            .as_ref()
            .map(|queue| queue.counts.clone())
            .unwrap_or_default()
    }

    /// Begins the trace of an ADD or DEL, below the runtime's span if there is one. `None` for
    /// other commands, without an endpoint, and if the runtime does not sample its trace.
    pub(crate) fn begin(&self, command: Command, request: &CniRequest) -> Option<CommandTrace> {
        let queue = self.queue.clone()?;
        let (name, word) = match command {
            Command::Add => ("CNI ADD", "ADD"),
            Command::Del => ("CNI DEL", "DEL"),
            Command::Check | Command::Gc | Command::Status | Command::Version => return None,
        };
        let parent = parent(&request.traceparent);
        if parent.is_valid() && !parent.is_sampled() {
            return None;
        }
        Some(CommandTrace {
            context: Context::begin(&parent),
            parent: parent.span_id(),
            name,
            attributes: attributes(word, request),
            status: Status::error("the client went away before the answer"),
            queue,
        })
    }
}

impl Exporter {
    /// Waits until the last spans are exported, for at most a second. All other handles to the
    /// queue must be dropped.
    pub(crate) fn finish(self) {
        if let Some(ended) = self.0 {
            let _end = ended.recv_timeout(STOP_TIMEOUT);
        }
    }
}

/// Trace of a command. When it is dropped, its root span is exported.
pub(crate) struct CommandTrace {
    context: Context,
    parent: SpanId,
    name: &'static str,
    attributes: Vec<KeyValue>,
    status: Status,
    queue: Queue,
}

impl CommandTrace {
    fn set_result(&mut self, failure: Option<&cni::Error>) {
        let code = failure.map_or(0, |error| error.code);
        self.attributes
            .push(KeyValue::new("cni.result.code", i64::from(code)));
        self.status = match failure {
            None => Status::Unset,
            Some(error) => {
                self.attributes
                    .push(KeyValue::new("error.type", code.to_string()));
                Status::error(error.to_string())
            }
        };
    }
}

impl Drop for CommandTrace {
    fn drop(&mut self) {
        let attributes = std::mem::take(&mut self.attributes);
        let status = std::mem::take(&mut self.status);
        let root = self
            .context
            .root(self.parent, self.name, attributes, status);
        self.queue.push(Entry::Root(Box::new(root)));
    }
}

/// Executes a command, and records it if it has a trace.
pub(crate) async fn record<T>(
    trace: Option<CommandTrace>,
    command: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let Some(mut trace) = trace else {
        return command.await;
    };
    let recorder = PhaseRecorder(trace.context, trace.queue.clone());
    let result = engine::traced(Arc::new(recorder), command).await;
    trace.set_result(result.as_ref().err().map(Failure::error));
    result
}

struct PhaseRecorder(Context, Queue);

impl TraceRecorder for PhaseRecorder {
    fn record(&self, phases: Vec<TracedPhase>) {
        self.1.push(Entry::Phases(self.0, phases));
    }
}

/// Parses the runtime's span; an invalid context if there is none.
fn parent(traceparent: &str) -> SpanContext {
    let context = TraceContextPropagator::new().extract(&Traceparent(traceparent));
    context.span().span_context().clone()
}

/// A header `traceparent` alone.
struct Traceparent<'a>(&'a str);

impl Extractor for Traceparent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == "traceparent").then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}

/// Returns the attributes of a command: names of OpenTelemetry's semantic conventions where there
/// are some, else `cni.…`.
fn attributes(command: &'static str, request: &CniRequest) -> Vec<KeyValue> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let network = serde_json::from_str(request.config.get()).map(|network: Named| network.name);
    let mut attributes = vec![
        KeyValue::new("cni.command", command),
        KeyValue::new("container.id", request.container_id.clone()),
        KeyValue::new("network.interface.name", request.ifname.clone()),
    ];
    attributes.extend(network.map(|name| KeyValue::new("cni.network.name", name)));
    if let Some(pod) = cni::pod_of(&request.args) {
        attributes.push(KeyValue::new("k8s.namespace.name", pod.namespace));
        attributes.push(KeyValue::new("k8s.pod.name", pod.name));
    }
    attributes
}

fn exporter(endpoint: &OtlpEndpoint) -> Result<SpanExporter> {
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(endpoint.0.to_string())
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .context("cannot make the exporter of traces")?;
    let version = KeyValue::new("service.version", version::VERSION);
    let resource = Resource::builder()
        .with_service_name("viaductd")
        .with_attribute(version);
    exporter.set_resource(&resource.build());
    Ok(exporter)
}

/// Exports what is queued until the last sender is dropped. Logs when the receiver stops to accept
/// spans, and when it accepts them again.
async fn export(
    mut received: mpsc::Receiver<Entry>,
    exporter: SpanExporter,
    endpoint: &str,
    counts: &SpanCounts,
) {
    let mut is_failing = false;
    let mut entries = Vec::new();
    while received.recv_many(&mut entries, BATCH).await > 0 {
        let fill = async {
            while entries.len() < BATCH {
                let free = BATCH - entries.len();
                if received.recv_many(&mut entries, free).await == 0 {
                    return;
                }
            }
        };
        // A batch that is not full after this time is exported as it is.
        let _elapsed = timeout(INTERVAL, fill).await;
        let spans: Vec<SpanData> = entries.drain(..).flat_map(Entry::spans).collect();
        let count = spans.len();
        let outcome = match timeout(EXPORT_TIMEOUT, exporter.export(spans)).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_elapsed) => Err("no answer in time".to_owned()),
        };
        match outcome {
            Ok(()) => {
                counts.add("exported", count);
                if is_failing {
                    tracing::info!(endpoint, "receiver of traces accepts spans again");
                }
                is_failing = false;
            }
            Err(error) => {
                counts.add("failed", count);
                if !is_failing {
                    tracing::warn!(endpoint, error, "cannot export traces; spans are lost");
                }
                is_failing = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_the_queue_has_no_room_for_are_counted_as_lost() {
        let (entries, mut received) = mpsc::channel(1);
        let counts = SpanCounts(Some(Family::default()));
        let queue = Queue {
            entries,
            counts: counts.clone(),
        };
        let context = Context::begin(&SpanContext::NONE);
        let root = || context.root(SpanId::INVALID, "CNI ADD", Vec::new(), Status::Unset);
        for _ in 0..3 {
            queue.push(Entry::Root(Box::new(root())));
        }
        assert!(received.try_recv().is_ok() && received.try_recv().is_err());
        let lost = Outcome { outcome: "lost" };
        assert_eq!(counts.0.unwrap().get_or_create(&lost).get(), 2);
    }
}
