//! `deploy/monitoring/dashboard.json`: its queries, on what Prometheus has scraped from an agent.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Echo, Machine, NODE, Process, Sandbox, WORLD, ping, skipped, tcp_echo, tcp_source, until,
};
use serde_json::Value;

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

/// Returns titles and queries of all panels, with the values that Grafana would insert.
fn queries(dashboard: &Value) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().context("panels")? {
        let title = panel["title"].as_str().context("a title")?;
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"]
                .as_str()
                .context("a query")?
                .replace("$__rate_interval", "1m")
                .replace("$instance", ".*")
                .replace("$job", JOB);
            ensure!(!query.contains('$'), "{title}: a variable without a value");
            found.push((title.to_owned(), query));
        }
    }
    Ok(found)
}

/// Starts Prometheus on `world`, which scrapes the agent each second.
fn start(world: &Machine, program: &Path, folder: &Path) -> Result<Process> {
    let config = folder.join("prometheus.yml");
    let scrape = format!(
        "global: {{ scrape_interval: 1s }}\nscrape_configs:\n  - job_name: {JOB}\n    static_configs: [{{ targets: \
         ['{}:{METRICS}'] }}]\n",
        NODE[0]
    );
    fs::write(&config, scrape)?;
    let words = [
        program.display().to_string(),
        format!("--config.file={}", config.display()),
        format!("--storage.tsdb.path={}", folder.join("data").display()),
        format!("--web.listen-address=127.0.0.1:{PROMETHEUS}"),
    ];
    Process::start(world, &words.each_ref().map(String::as_str))
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

    let folder = tempfile::tempdir()?;
    let server = start(world, &program, folder.path())?;
    let ask = |query: &str| -> Result<Value> {
        let (url, query) = (
            format!("http://127.0.0.1:{PROMETHEUS}/api/v1/query"),
            format!("query={query}"),
        );
        let words = [
            "curl",
            "--silent",
            "--max-time",
            "60",
            "--data-urlencode",
            &query,
            &url,
        ];
        let text = world.call_words(&words)?;
        serde_json::from_str(&text).with_context(|| text)
    };
    until("Prometheus answers", || {
        ensure!(
            server.ended()?.is_none(),
            "it has ended: {}",
            server.output()
        );
        Ok(ask("vector(1)").ok())
    })?;
    for (title, query) in queries(&dashboard()?)? {
        until(&format!("{title}: {query}"), || {
            // Traffic, and a packet that the check of senders drops.
            let to = std::net::SocketAddr::new(WORLD[0], 80);
            tcp_echo(&tcp_source(&pod.machine, 0, to)?.1)?;
            ping(&pod.machine, WORLD[0], 1)?;
            let _none = pod.machine.output(&FORGED)?;
            let answer = ask(&query)?;
            ensure!(answer["status"] == "success", "{title}: {answer}");
            let result = answer["data"]["result"].as_array().context("a result")?;
            Ok((!result.is_empty()).then_some(()))
        })?;
    }
    Ok(())
}
