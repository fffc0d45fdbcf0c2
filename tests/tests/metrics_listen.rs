//! `--metrics-listen`: the paths and formats that are served over TCP, and alert rules.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, NODE, Sandbox, skipped, until};

const PORT: u16 = 9464;

/// Returns promtool, as setup unpacks it or as it is installed.
fn promtool() -> Option<PathBuf> {
    let tools = std::env::var_os("VIADUCT_TOOLS").map(PathBuf::from);
    let releases = tools.and_then(|tools| std::fs::read_dir(tools.join("prometheus")).ok());
    let unpacked = releases.into_iter().flatten().flatten();
    unpacked
        .map(|release| release.path().join("promtool"))
        .chain([PathBuf::from("/usr/bin/promtool")])
        .find(|program| program.is_file())
}

/// Starts an agent that serves metrics at all addresses of the node.
fn listening(sandbox: &Sandbox) -> Result<Agent> {
    let listen = format!("--metrics-listen=0.0.0.0:{PORT}");
    Agent::start(&sandbox.node, &[&listen])
}

fn url(path: &str) -> String {
    format!("http://{}:{PORT}{path}", NODE[0])
}

#[test]
fn pods_and_the_world_reach_metrics_health_and_readiness_and_nothing_else() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let _agent = listening(&sandbox)?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    for client in [&pod.machine, &sandbox.world, &sandbox.node] {
        let status = |method: &str, path: &str| -> Result<String> {
            client.call(&format!(
                "curl --silent --max-time 60 --output /dev/null --write-out %{{http_code}} --request {method} {}",
                url(path)
            ))
        };
        for path in ["/metrics", "/healthz", "/readyz"] {
            assert_eq!(status("GET", path)?, "200", "{path}");
            for method in ["POST", "PUT", "DELETE"] {
                assert_eq!(status(method, path)?, "405", "{method} {path}");
            }
        }
        for path in [
            "/",
            "/v1/status",
            "/v1/attachments",
            "/v1/flows",
            "/v1/events",
            "/metrics/x",
        ] {
            assert_eq!(status("GET", path)?, "404", "{path}");
        }
        assert_eq!(status("POST", "/v1/uninstall")?, "404");
        assert_eq!(status("POST", "/v1/cni/add")?, "404");
    }
    pod.del().map(drop)
}

#[test]
fn readiness_fails_with_the_reason_as_long_as_new_pods_would_not_work() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    // The route of the other bridge comes first, and takes the packets to all pods.
    node.call("ip link add cni-podman0 type bridge")?;
    node.call("ip address add 10.244.1.1/24 dev cni-podman0")?;
    node.call("ip link set cni-podman0 up")?;
    let _agent = listening(&sandbox)?;
    let becomes = |path: &str, expected: &str| {
        let request = format!("curl --silent --write-out %{{http_code}} {}", url(path));
        until(&format!("{path} is {expected:?}"), || {
            Ok((node.call(&request)? == expected).then_some(()))
        })
    };
    becomes("/readyz", "subnet-overlap\n503")?;
    becomes("/healthz", "ok\n200")?;
    node.call("ip link delete cni-podman0")?;
    becomes("/readyz", "ok\n200")
}

#[test]
fn metrics_have_the_format_that_the_client_prefers_and_pass_promtool() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let _agent = listening(&sandbox)?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let scrape = |accept: &str| {
        sandbox.world.call(&format!(
            "curl --silent --fail --include --max-time 60 --header accept:{accept} {}",
            url("/metrics")
        ))
    };
    let open_metrics = scrape("application/openmetrics-text;version=1.0.0,*/*;q=0.1")?;
    ensure!(
        open_metrics.contains("content-type: application/openmetrics-text; version=1.0.0")
            && open_metrics.ends_with("# EOF\n"),
        "{open_metrics}"
    );
    let answer = scrape("*/*")?;
    let (head, text) = answer.split_once("\r\n\r\n").context("a head")?;
    ensure!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    for sample in [
        "viaduct_build_info{version=",
        "process_resident_memory_bytes ",
        "process_cpu_seconds_total ",
        "viaduct_pod_packets_total{",
        "viaduct_cni_phase_seconds_count{command=\"add\",phase=\"apply\"} 1",
    ] {
        ensure!(
            text.lines().any(|line| line.starts_with(sample)),
            "{sample}: {text}"
        );
    }
    pod.del()?;
    let Some(promtool) = promtool() else {
        skipped("promtool is not installed");
        return Ok(());
    };
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(text.as_bytes())?;
    let check = format!(
        "{} check metrics < {}",
        promtool.display(),
        file.path().display()
    );
    let output = sandbox.node.output(&["sh", "-c", &check])?;
    let found = [output.stdout, output.stderr].concat();
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&found)
    );
    Ok(())
}

#[test]
fn alert_rules_pass_their_tests() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(promtool) = promtool() else {
        skipped("promtool is not installed");
        return Ok(());
    };
    let rules = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/monitoring")
        .canonicalize()?;
    let promtool = promtool.display();
    for (verb, file) in [
        ("check", "viaduct.rules.yml"),
        ("test", "viaduct.rules.test.yml"),
    ] {
        let file = rules.join(file);
        sandbox
            .node
            .call(&format!("{promtool} {verb} rules {}", file.display()))?;
    }
    Ok(())
}
