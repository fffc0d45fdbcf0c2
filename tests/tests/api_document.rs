//! The OpenAPI document that a real agent serves, beside its answers about real traffic.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Config, Echo, Mapping, NODE, SOCKET, Sandbox, WORLD, tcp_echo, tcp_source, until,
};
use serde_json::{Map, Value, json};

/// Sends a packet with an address that is not the pod's.
const FORGED: &str = "ping -c 1 -W 1 -I 10.99.99.99 192.0.2.2";

struct Document {
    node: e2e::Machine,
    value: Value,
}

impl Document {
    fn of(sandbox: &Sandbox) -> Result<Self> {
        let node = sandbox.node.clone();
        let text = request(&node, "GET", "/v1/openapi.json", None)?;
        let value = serde_json::from_str(&text)?;
        Ok(Self { node, value })
    }

    /// Sends a request, and validates its answer, or each line of it. Returns the answers.
    fn validated(
        &self,
        method: &str,
        path: &str,
        concrete: &str,
        body: Option<&Value>,
    ) -> Result<Vec<Value>> {
        let text = request(&self.node, method, concrete, body)?;
        let operation = &self.value["paths"][path][method.to_lowercase()];
        let content = operation["responses"]["200"]["content"].as_object();
        let (media_type, content) = content
            .and_then(|content| content.iter().next())
            .with_context(|| format!("no answer of {method} {path}"))?;
        if media_type == "text/plain" {
            return Ok(Vec::new());
        }
        let texts: Vec<&str> = if media_type == "application/x-ndjson" {
            text.lines().collect()
        } else {
            vec![&text]
        };
        let mut schema: Map<String, Value> =
            content["schema"].as_object().context("a schema")?.clone();
        schema.insert("components".to_owned(), self.value["components"].clone());
        let validator = jsonschema::draft202012::new(&Value::Object(schema))?;
        let mut answers = Vec::new();
        for text in texts {
            let answer: Value = serde_json::from_str(text).with_context(|| text.to_owned())?;
            let errors: Vec<String> = validator
                .iter_errors(&answer)
                .map(|error| format!("{}: {error}", error.instance_path()))
                .collect();
            ensure!(
                errors.is_empty(),
                "{method} {concrete}: {errors:#?} in {answer:#}"
            );
            answers.push(answer);
        }
        Ok(answers)
    }

    /// Validates the answer of each `GET`; `container` has an attachment.
    fn validate_queries(&self, container: &str) -> Result<()> {
        let paths = self.value["paths"].as_object().context("paths")?;
        for (path, methods) in paths {
            // `why` needs parameters.
            if !methods["get"].is_null() && path != "/v1/why" {
                self.validated("GET", path, &path.replace("{id}", container), None)?;
            }
        }
        Ok(())
    }

    /// Validates the answers of requests that change something, the uninstall at last.
    fn validate_changes(&self, netns: &str) -> Result<()> {
        let inside = json!({ "netns": netns, "ifname": "eth0" });
        let kept = json!({ "addresses": [], "dryRun": true });
        for (method, path, body) in [
            ("PUT", "/v1/log-level", json!({ "level": "debug" })),
            ("POST", "/v1/inside", inside),
            ("POST", "/v1/kept-connections", kept),
            ("POST", "/v1/reload", Value::Null),
            ("POST", "/v1/uninstall", json!({ "drain": true })),
        ] {
            self.validated(method, path, path, Some(&body))?;
        }
        Ok(())
    }
}

fn request(node: &e2e::Machine, method: &str, path: &str, body: Option<&Value>) -> Result<String> {
    let url = format!("http://viaduct{path}");
    let body = body.map(ToString::to_string);
    let mut words = vec![
        "curl",
        "--silent",
        "--show-error",
        "--fail-with-body",
        "--max-time",
        "60",
    ];
    words.extend(["--unix-socket", SOCKET, "--request", method, &url]);
    if let Some(body) = &body {
        words.extend(["--data", body]);
    }
    node.call_words(&words)
}

#[test]
fn answers_about_real_traffic_are_as_the_document_says() -> Result<()> {
    let (sandbox, _agent): (Sandbox, Agent) = Sandbox::with_agent()?;
    let mut web = sandbox.pod("web")?;
    web.add_with(Config::new("1.1.0").publish(&[Mapping::tcp(8080, 80)]))?;
    let client = sandbox.limited("client", 50_000_000, 50_000_000)?;
    client
        .machine
        .call("ip address add 10.99.99.99/32 dev lo")?;
    let _servers = [
        Echo::start(&web.machine, 80)?,
        Echo::start(&sandbox.world, 443)?,
    ];
    let out = tcp_source(&client.machine, 0, SocketAddr::new(WORLD[0], 443))?.1;
    let into = tcp_source(&sandbox.world, 0, SocketAddr::new(NODE[0], 8080))?.1;
    tcp_echo(&out)?;
    tcp_echo(&into)?;

    let document = Document::of(&sandbox)?;
    let get =
        |path: &str, query: &str| document.validated("GET", path, &format!("{path}{query}"), None);
    // A drop is reported while a client listens.
    until("a drop is reported", || {
        let drops = std::thread::scope(|scope| {
            let drops = scope.spawn(|| get("/v1/drops", "?seconds=2"));
            let _none = client
                .machine
                .output(&FORGED.split(' ').collect::<Vec<_>>())?;
            drops.join().expect("the thread returns")
        })?;
        Ok((!drops.is_empty()).then_some(()))
    })?;
    let flows = get("/v1/flows", "")?;
    ensure!(flows[0]["matching"].as_u64() >= Some(2), "{flows:?}");
    ensure!(!get("/v1/events", "")?.is_empty(), "no events");
    for query in ["?from=client&to=192.0.2.2:443", "?last_drop=client"] {
        let why = get("/v1/why", query)?;
        ensure!(why[0]["request"]["steps"][0].is_object(), "{why:?}");
    }
    document.validate_queries("client")?;
    document.validate_changes(&web.machine.path())?;
    Ok(())
}
