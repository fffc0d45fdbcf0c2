//! The read-only socket: which clients may connect, and which requests it serves.

use std::process::Output;

use anyhow::{Context as _, Result, ensure};
use e2e::{Agent, Sandbox, program};

const GROUP: &str = "4711";
const SOCKET: &str = "/run/viaduct/viaduct-ro.sock";

/// Requests that change nothing, for the pod `pod`.
const QUERIES: [&str; 16] = [
    "/v1/openapi.json",
    "/v1/status",
    "/v1/pod-cidrs",
    "/v1/hairpin-mode",
    "/v1/networks",
    "/v1/attachments",
    "/v1/attachments/pod",
    "/v1/leases",
    "/v1/hostports",
    "/v1/flows",
    "/v1/counters",
    "/v1/events",
    "/v1/drops",
    "/v1/why?from=pod&to=198.51.100.7:443",
    "/v1/non-masquerade-cidrs",
    "/metrics",
];

/// All other requests of the API.
const OTHERS: [(&str, &str); 15] = [
    ("PUT", "/v1/pod-cidrs"),
    ("PUT", "/v1/hairpin-mode"),
    ("PUT", "/v1/non-masquerade-cidrs"),
    ("PUT", "/v1/attachments/pod/bandwidth"),
    ("PUT", "/v1/attachments/pod/eth0/bandwidth"),
    ("POST", "/v1/inside"),
    ("POST", "/v1/uninstall"),
    ("POST", "/v1/reload"),
    ("POST", "/v1/kept-connections"),
    ("POST", "/v1/attachments/x/eth0/drain"),
    ("POST", "/v1/cni/add"),
    ("POST", "/v1/cni/del"),
    ("POST", "/v1/cni/check"),
    ("POST", "/v1/cni/gc"),
    ("POST", "/v1/cni/status"),
];

/// Users without capabilities, as arguments of `setpriv`.
const MEMBER: &str = "--reuid=1000 --regid=4711 --clear-groups";
const SUPPLEMENTARY: &str = "--reuid=1000 --regid=1000 --groups=1000,4711";
const OTHER: &str = "--reuid=1000 --regid=1000 --clear-groups";

fn run_as(sandbox: &Sandbox, user: &str, command: &str) -> Result<Output> {
    let line = format!("setpriv {user} {command}");
    let words: Vec<&str> = line.split_whitespace().collect();
    sandbox.node.output(&words)
}

/// Returns the HTTP status, 0 without a response, and the body.
fn request(sandbox: &Sandbox, user: &str, method: &str, path: &str) -> Result<(u16, String)> {
    let output = run_as(
        sandbox,
        user,
        &format!(
            "curl --silent --max-time 60 --unix-socket {SOCKET} --request {method} --data {{}} \
             --write-out \\n%{{http_code}} http://viaduct{path}"
        ),
    )?;
    let text = String::from_utf8(output.stdout)?;
    let (body, status) = text.rsplit_once('\n').context("no status")?;
    Ok((status.trim().parse()?, body.to_owned()))
}

fn agent(sandbox: &Sandbox) -> Result<Agent> {
    Agent::start(&sandbox.node, &[&format!("--socket-group={GROUP}")])
}

#[test]
fn the_read_only_socket_serves_each_query_and_refuses_each_other_request() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = agent(&sandbox)?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    for user in [MEMBER, SUPPLEMENTARY, "--reuid=0"] {
        for path in QUERIES {
            let (status, body) = request(&sandbox, user, "GET", path)?;
            ensure!(status == 200, "{user}: {path}: {status} {body}");
        }
        for (method, path) in OTHERS {
            let (status, body) = request(&sandbox, user, method, path)?;
            ensure!(status == 403, "{user}: {method} {path}: {status} {body}");
            let reason = format!("serves queries only: {method} {path}");
            ensure!(body.contains(&reason), "{user}: {body}");
        }
    }
    // A path that the client may not open itself.
    let path = "/v1/attachments/other?netns=/run/netns/pod";
    let (status, body) = request(&sandbox, MEMBER, "GET", path)?;
    ensure!(
        status == 400 && body.contains("opens no namespace"),
        "{status} {body}"
    );
    assert_eq!(agent.get("/v1/attachments/pod")?[0]["state"], "attached");
    Ok(())
}

#[test]
fn the_read_only_socket_is_closed_to_users_outside_of_its_group() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut agent = agent(&sandbox)?;
    assert_eq!(request(&sandbox, MEMBER, "GET", "/v1/status")?.0, 200);
    assert_eq!(request(&sandbox, OTHER, "GET", "/v1/status")?.0, 0);
    let mode = |path: &str| sandbox.node.call(&format!("stat --format=%a:%u:%g {path}"));
    assert_eq!(mode(SOCKET)?.trim(), "660:0:4711");
    assert_eq!(mode("/run/viaduct/viaduct.sock")?.trim(), "600:0:0");
    // Members may search the directory, and not list it.
    assert_eq!(mode("/run/viaduct")?.trim(), "710:0:4711");

    // The agent checks the client, whatever the modes of socket and directory are.
    sandbox.node.call(&format!("chmod 666 {SOCKET}"))?;
    sandbox.node.call("chmod 755 /run/viaduct")?;
    for _ in 0..6 {
        assert_eq!(request(&sandbox, OTHER, "GET", "/v1/status")?.0, 0);
    }
    assert_eq!(request(&sandbox, MEMBER, "GET", "/v1/status")?.0, 200);
    // At once for the first of a minute, and then once with their number.
    let log = agent.log();
    agent.terminate()?;
    let lines = log.matches("may not use the socket").count();
    ensure!((1..=3).contains(&lines), "{lines} lines: {log}");
    ensure!(mode(SOCKET).is_err(), "the socket goes with the agent");
    Ok(())
}

#[test]
fn viaductctl_of_a_group_member_queries_and_changes_nothing() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = agent(&sandbox)?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    // Where any user may execute it.
    let ctl = "/run/viaductctl";
    let installed = program("bin/viaductctl");
    sandbox
        .node
        .call(&format!("install {} {ctl}", installed.display()))?;
    let listed = run_as(&sandbox, MEMBER, &format!("{ctl} list"))?;
    let text = String::from_utf8(listed.stdout)?;
    ensure!(listed.status.success() && text.contains("pod"), "{text}");

    let refused = run_as(&sandbox, MEMBER, &format!("{ctl} uninstall --drain"))?;
    let text = String::from_utf8(refused.stderr)?;
    ensure!(
        !refused.status.success() && text.contains("serves queries only"),
        "{text}"
    );
    let other = run_as(&sandbox, OTHER, &format!("{ctl} list"))?;
    let text = String::from_utf8(other.stderr)?;
    ensure!(
        !other.status.success() && text.contains("socket-group"),
        "{text}"
    );
    assert_eq!(agent.get("/v1/attachments/pod")?[0]["state"], "attached");
    Ok(())
}

#[test]
fn there_is_no_read_only_socket_by_default() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    ensure!(sandbox.node.call(&format!("stat {SOCKET}")).is_err());
    Ok(())
}
