//! Traces of ADD and DEL, as a receiver of OTLP gets them.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message as _;

use super::*;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A hang ends after this time; nothing is expected to need it.
const HANG: Duration = Duration::from_mins(2);

/// A receiver of OTLP over HTTP.
struct Collector {
    address: SocketAddr,
    received: Receiver<Vec<Span>>,
    spans: Vec<Span>,
}

impl Collector {
    fn start() -> Self {
        let (sender, received) = channel();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let router = Router::new()
            .route("/v1/traces", post(receive))
            .with_state(sender);
        thread::spawn(move || {
            crate::runtime().unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, router).await.unwrap();
            });
        });
        Self {
            address,
            received,
            spans: Vec::new(),
        }
    }

    /// Waits for a span that `is_wanted`, and returns it.
    fn await_span(&mut self, is_wanted: impl Fn(&Span) -> bool) -> Span {
        loop {
            if let Some(span) = self.spans.iter().find(|span| is_wanted(span)) {
                return span.clone();
            }
            self.spans.extend(self.received.recv_timeout(HANG).unwrap());
        }
    }

    fn children(&self, parent: &Span) -> Vec<&Span> {
        let mut children: Vec<_> = self
            .spans
            .iter()
            .filter(|span| span.parent_span_id == parent.span_id)
            .collect();
        children.sort_by_key(|span| span.start_time_unix_nano);
        children
    }
}

async fn receive(State(spans): State<std::sync::mpsc::Sender<Vec<Span>>>, body: Bytes) {
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let of_request = request
        .resource_spans
        .into_iter()
        .flat_map(|resource| resource.scope_spans)
        .flat_map(|scope| scope.spans)
        .collect();
    // The test has ended.
    let _ended = spans.send(of_request);
}

fn agent(address: SocketAddr) -> Agent {
    let endpoint = format!("--otlp-endpoint=http://{address}");
    Agent::start(&["--pod-cidr=10.1.0.0/24", &endpoint])
}

fn send(agent: &Agent, verb: CniVerb, container: &str, traceparent: &str) -> bool {
    let mut request = request("viaduct", container, &config());
    traceparent.clone_into(&mut request.traceparent);
    agent
        .client
        .post(verb.path(), &request)
        .unwrap()
        .is_success()
}

fn add(agent: &Agent, container: &str, traceparent: &str) -> bool {
    agent.fake.add_netns(&format!("/run/netns/{container}"));
    send(agent, CniVerb::Add, container, traceparent)
}

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let of_key = span.attributes.iter().find(|it| it.key == key)?;
    let value = of_key.value.as_ref()?.value.as_ref()?;
    if let Any::StringValue(text) = value {
        return Some(text.clone());
    }
    let Any::IntValue(number) = value else {
        panic!("{key}: {value:?}");
    };
    Some(number.to_string())
}

fn is_of(container: &'static str, name: &'static str) -> impl Fn(&Span) -> bool {
    move |span| span.name == name && attribute(span, "container.id").as_deref() == Some(container)
}

fn is_error(span: &Span) -> bool {
    let status = span.status.as_ref();
    status.is_some_and(|status| status.code() == StatusCode::Error)
}

#[test]
fn an_add_is_a_child_of_the_runtimes_span_and_its_phases_and_steps_nest_in_time() {
    let mut collector = Collector::start();
    let agent = agent(collector.address);
    assert!(add(&agent, "c1", &traceparent("01")));
    let root = collector.await_span(is_of("c1", "CNI ADD"));
    assert_eq!(hex(&root.trace_id), TRACE);
    assert_eq!(hex(&root.parent_span_id), PARENT);
    for (key, value) in [
        ("cni.command", "ADD"),
        ("network.interface.name", "eth0"),
        ("cni.network.name", "pods"),
        ("k8s.namespace.name", "default"),
        ("k8s.pod.name", "web"),
        ("cni.result.code", "0"),
    ] {
        assert_eq!(attribute(&root, key).as_deref(), Some(value), "{key}");
    }
    assert!(!is_error(&root));
    collector.await_span(|span| span.name == "publish");
    let phases = collector.children(&root);
    let names: Vec<_> = phases.iter().map(|span| span.name.as_str()).collect();
    let expected = [
        "queue", "network", "observe", "plan", "record", "apply", "record", "publish",
    ];
    assert_eq!(names, expected);
    let mut last = root.start_time_unix_nano;
    for phase in &phases {
        assert!(last <= phase.start_time_unix_nano, "{phase:?}");
        assert!(phase.start_time_unix_nano <= phase.end_time_unix_nano);
        assert_eq!(phase.trace_id, root.trace_id);
        last = phase.end_time_unix_nano;
        for step in collector.children(phase) {
            assert!(phase.start_time_unix_nano <= step.start_time_unix_nano);
            assert!(step.end_time_unix_nano <= phase.end_time_unix_nano);
            assert!(attribute(step, "viaduct.step").is_some(), "{step:?}");
        }
    }
    assert!(last <= root.end_time_unix_nano);
    let apply = phases.iter().find(|span| span.name == "apply").unwrap();
    let steps = collector.children(apply);
    assert!(steps.iter().any(|step| step.name == "create veth"));
    assert!(steps.iter().any(|step| step.name == "set up pod"));
}

#[test]
fn a_del_without_a_span_of_the_runtime_begins_a_trace() {
    let mut collector = Collector::start();
    let agent = agent(collector.address);
    assert!(add(&agent, "c1", ""));
    assert!(send(&agent, CniVerb::Del, "c1", ""));
    let add = collector.await_span(is_of("c1", "CNI ADD"));
    let del = collector.await_span(is_of("c1", "CNI DEL"));
    assert!(add.parent_span_id.is_empty() && del.parent_span_id.is_empty());
    assert_ne!(add.trace_id, del.trace_id);
    let deleted =
        collector.await_span(|span| span.name == "delete veth" && span.trace_id == del.trace_id);
    let is_phase = |span: &Span| span.span_id == deleted.parent_span_id;
    let apply = collector.await_span(is_phase);
    assert_eq!(apply.name, "apply");
    assert_eq!(apply.parent_span_id, del.span_id);
}

#[test]
fn a_failed_add_has_an_error_status_and_its_code() {
    let mut collector = Collector::start();
    let agent = agent(collector.address);
    assert!(!send(&agent, CniVerb::Add, "gone", &traceparent("01")));
    let root = collector.await_span(is_of("gone", "CNI ADD"));
    assert!(is_error(&root));
    assert!(root.status.as_ref().unwrap().message.contains("gone"));
    let code = attribute(&root, "cni.result.code").unwrap();
    assert_ne!(code, "0");
    assert_eq!(attribute(&root, "error.type"), Some(code));
}

#[test]
fn a_trace_that_the_runtime_does_not_sample_is_not_exported() {
    let mut collector = Collector::start();
    let agent = agent(collector.address);
    assert!(add(&agent, "unsampled", &traceparent("00")));
    assert!(send(&agent, CniVerb::Del, "unsampled", &traceparent("00")));
    assert!(add(&agent, "sampled", &traceparent("01")));
    collector.await_span(is_of("sampled", "CNI ADD"));
    assert!(!collector.spans.iter().any(is_of("unsampled", "CNI ADD")));
}

#[test]
fn adds_succeed_while_the_receiver_of_traces_is_absent_or_does_not_answer() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let absent = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for address in [silent.local_addr().unwrap(), absent] {
        let agent = agent(address);
        for number in 0..20 {
            let container = format!("c{number}");
            assert!(add(&agent, &container, ""));
            assert!(send(&agent, CniVerb::Del, &container, ""));
        }
        let metrics = agent.client.get(path::METRICS).unwrap();
        let text = String::from_utf8(metrics.body).unwrap();
        assert!(!text.contains("outcome=\"exported\""), "{text}");
    }
    // The exporter has connected to the one, and waits for its answer.
    silent.accept().unwrap();
}
