//! `deploy/monitoring/dashboard.json`: its queries, on what Prometheus has scraped from an agent,
//! and a picture of all panels. Debian has no Grafana: a page of this test draws them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use e2e::browser::{Browser, CHROMIUM};
use e2e::{
    Agent, Echo, Machine, NODE, Process, Sandbox, WORLD, ping, skipped, tcp_echo, tcp_source, until,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Ports of the agent and of Prometheus.
const METRICS: u16 = 9464;
const PROMETHEUS: u16 = 9090;
/// Sends a packet with an address that is not the pod's.
const FORGED: [&str; 8] = [
    "ping",
    "-c",
    "1",
    "-W",
    "1",
    "-I",
    "10.99.99.99",
    "192.0.2.2",
];
/// Name of the job in the scrape configuration.
const JOB: &str = "nodes";
/// Has a result as soon as the agent was scraped often enough for lines.
const DRAWN: &str = "count_over_time(up[10m]) > 45";

/// Returns Prometheus, as setup unpacks it or as it is installed.
fn prometheus() -> Option<PathBuf> {
    let tools = std::env::var_os("VIADUCT_TOOLS").map(PathBuf::from);
    let releases = tools.and_then(|tools| fs::read_dir(tools.join("prometheus")).ok());
    let unpacked = releases.into_iter().flatten().flatten();
    unpacked
        .map(|release| release.path().join("prometheus"))
        .chain([PathBuf::from("/usr/bin/prometheus")])
        .find(|program| program.is_file())
}

fn dashboard() -> Result<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/monitoring/dashboard.json");
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

/// A query of a panel.
struct Query {
    /// Number of the panel.
    panel: u64,
    title: String,
    /// In `PromQL`, with the values that Grafana would insert.
    text: String,
}

/// Returns the queries of all panels, in their order.
fn queries(dashboard: &Value) -> Result<Vec<Query>> {
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().context("panels")? {
        let title = panel["title"].as_str().context("a title")?;
        for target in panel["targets"].as_array().into_iter().flatten() {
            let text = target["expr"]
                .as_str()
                .context("a query")?
                .replace("$__rate_interval", "10s")
                .replace("$instance", ".*")
                .replace("$job", JOB);
            ensure!(!text.contains('$'), "{title}: a variable without a value");
            found.push(Query {
                panel: panel["id"].as_u64().context("a number")?,
                title: title.to_owned(),
                text,
            });
        }
    }
    Ok(found)
}

/// A Prometheus on the machine `world`, which scrapes the agent each second.
struct Prometheus {
    world: Machine,
    process: Process,
    _data: TempDir,
}

impl Prometheus {
    fn start(world: &Machine, program: &Path) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("prometheus.yml");
        let scrape = format!(
            "global: {{ scrape_interval: 1s }}\nscrape_configs:\n  - job_name: {JOB}\n    static_configs: [{{ targets: \
             ['{}:{METRICS}'] }}]\n",
            NODE[0]
        );
        fs::write(&config, scrape)?;
        let data = folder.path().join("data");
        let words = [
            program.display().to_string(),
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", data.display()),
            format!("--web.listen-address=127.0.0.1:{PROMETHEUS}"),
        ];
        let server = Self {
            world: world.clone(),
            process: Process::start(world, &words.each_ref().map(String::as_str))?,
            _data: folder,
        };
        until("Prometheus answers", || {
            let process = &server.process;
            ensure!(
                process.ended()?.is_none(),
                "it has ended: {}",
                process.output()
            );
            Ok(server.now("vector(1)").ok())
        })?;
        Ok(server)
    }

    /// Returns the series of a query's answer at this moment.
    fn now(&self, query: &str) -> Result<Vec<Value>> {
        self.series("query", &[("query", query)])
    }

    /// Returns the series of a query's answer in a span of time, in seconds since 1970, for each
    /// second.
    fn range(&self, query: &str, [from, to]: [u64; 2]) -> Result<Vec<Value>> {
        let (from, to) = (from.to_string(), to.to_string());
        let parameters = [
            ("query", query),
            ("start", &from),
            ("end", &to),
            ("step", "1"),
        ];
        self.series("query_range", &parameters)
    }

    /// Returns the server's time in seconds since 1970.
    fn time(&self) -> Result<u64> {
        let series = self.now("vector(time())")?;
        let value = series[0]["value"][1].as_str().context("a value")?;
        let (seconds, _) = value.split_once('.').unwrap_or((value, ""));
        Ok(seconds.parse()?)
    }

    fn series(&self, verb: &str, parameters: &[(&str, &str)]) -> Result<Vec<Value>> {
        let url = format!("http://127.0.0.1:{PROMETHEUS}/api/v1/{verb}");
        let mut words = ["curl", "--silent", "--max-time", "60", &url]
            .map(str::to_owned)
            .to_vec();
        for (name, value) in parameters {
            words.push("--data-urlencode".to_owned());
            words.push(format!("{name}={value}"));
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let text = self.world.call_words(&words)?;
        let answer: Value = serde_json::from_str(&text).with_context(|| text)?;
        ensure!(answer["status"] == "success", "{answer}");
        let series = answer["data"]["result"].as_array();
        series.cloned().context("a result")
    }
}

/// Draws the dashboard in a browser, and stores the picture. `answers` has the series of each
/// panel's queries.
fn draw(world: &Machine, answers: &BTreeMap<u64, Vec<Vec<Value>>>, range: [u64; 2]) -> Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dashboard/panels.html");
    let mut browser = Browser::start(world)?;
    for scheme in ["light", "dark"] {
        browser.emulate(1600, scheme)?;
        browser.navigate(&format!("file://{}", page.display()))?;
        until("the page is loaded", || {
            let loaded = browser.evaluate("document.readyState === 'complete' && !!window.draw")?;
            Ok((loaded == true).then_some(()))
        })?;
        let call = format!(
            "draw({}, {}, {range:?})",
            dashboard()?,
            serde_json::to_string(answers)?
        );
        let empty = browser.evaluate(&call)?;
        assert_eq!(empty, json!([]), "panels without data");
        let drawn = browser.evaluate("document.querySelectorAll('path[d^=M]').length")?;
        ensure!(drawn.as_u64() > Some(20), "{drawn} lines");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(folder)?;
        let picture = folder.join(format!("dashboard-{scheme}.png"));
        fs::write(picture, browser.screenshot()?)?;
    }
    Ok(())
}

#[test]
fn panels_of_the_dashboard_have_unique_ids_and_queries() -> Result<()> {
    let dashboard = dashboard()?;
    let panels = dashboard["panels"].as_array().context("panels")?;
    let ids: BTreeSet<u64> = panels.iter().filter_map(|it| it["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        ensure!(panel["targets"][0]["expr"].is_string(), "{panel}");
        ensure!(panel["description"].is_string(), "{panel}");
    }
    ensure!(queries(&dashboard)?.len() > 15, "few queries");
    Ok(())
}

#[test]
fn each_query_of_the_dashboard_has_data_from_a_running_agent() -> Result<()> {
    let Some(program) = prometheus() else {
        skipped("prometheus is not installed");
        return Ok(());
    };
    let sandbox = Sandbox::new()?;
    let world = &sandbox.world;
    let listen = format!("--metrics-listen=0.0.0.0:{METRICS}");
    let _agent = Agent::start(&sandbox.node, &[&listen])?;
    let pod = sandbox.limited("pod", 50_000_000, 50_000_000)?;
    let _echo = Echo::start(world, 80)?;
    pod.machine.call("ip address add 10.99.99.99/32 dev lo")?;
    let server = Prometheus::start(world, &program)?;
    let begun = server.time()?;
    let mut visitor = sandbox.pod("visitor")?;
    // Traffic, a packet that the check of senders drops, and a pod that comes and goes.
    let mut communicate = || -> Result<()> {
        let to = SocketAddr::new(WORLD[0], 80);
        tcp_echo(&tcp_source(&pod.machine, 0, to)?.1)?;
        ping(&pod.machine, WORLD[0], 1)?;
        let _none = pod.machine.output(&FORGED)?;
        visitor.add()?;
        visitor.del()?;
        Ok(())
    };
    let queries = queries(&dashboard()?)?;
    for Query { title, text, .. } in &queries {
        until(&format!("{title}: {text}"), || {
            communicate()?;
            Ok((!server.now(text)?.is_empty()).then_some(()))
        })?;
    }
    if !Path::new(CHROMIUM).exists() {
        skipped("chromium is not installed");
        return Ok(());
    }
    until("there is something to draw", || {
        communicate()?;
        Ok((!server.now(DRAWN)?.is_empty()).then_some(()))
    })?;
    let range = [begun, server.time()?];
    let mut answers: BTreeMap<u64, Vec<Vec<Value>>> = BTreeMap::new();
    for Query { panel, text, .. } in &queries {
        let series = server.range(text, range)?;
        answers.entry(*panel).or_default().push(series);
    }
    draw(world, &answers, range)
}
