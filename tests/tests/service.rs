//! The agent as a systemd service: notifications, socket activation, reload, stop, and a single
//! instance.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Stdio;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use e2e::residue::assert_no_residue;
use e2e::{Agent, Cgroup, Pod, Process, Residue, SOCKET, Sandbox, Verb, deadline, program, until};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Notification socket of the tests' service manager.
const MANAGER: &str = "/run/manager";
/// The agent's configuration file, in the tests that change it.
const FILE: &str = "/run/viaductd.toml";

/// The service manager's end of the notification socket.
struct Manager(UnixDatagram);

impl Manager {
    fn new(sandbox: &Sandbox) -> Result<Self> {
        let socket = sandbox.node.run(|| UnixDatagram::bind(MANAGER))?;
        socket.set_read_timeout(Some(deadline()))?;
        Ok(Self(socket))
    }

    fn receive(&self) -> Result<String> {
        let mut bytes = [0; 4096];
        let length = self
            .0
            .recv(&mut bytes)
            .context("no notification of the agent")?;
        Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    /// Returns the next message that is not a watchdog ping.
    fn receive_state(&self) -> Result<String> {
        loop {
            let message = self.receive()?;
            if message != "WATCHDOG=1\n" {
                return Ok(message);
            }
        }
    }
}

/// An agent process that is started as a service manager would start it.
struct Service {
    process: Process,
    _cgroup: Option<Cgroup>,
}

impl Service {
    fn start(sandbox: &Sandbox, environment: &[&str], flags: &[&str]) -> Result<Self> {
        let words = [&["env"], environment].concat();
        Self::start_by(sandbox, &words, flags, Stdio::null())
    }

    fn start_by(sandbox: &Sandbox, by: &[&str], flags: &[&str], input: Stdio) -> Result<Self> {
        let cgroup = Cgroup::new()?;
        let own = cgroup
            .as_ref()
            .map(|own| format!("--cgroup={}", own.path().display()));
        let agent = program("bin/viaductd").display().to_string();
        let mut words = [by, &[&agent], flags].concat();
        words.extend(own.as_deref());
        Ok(Self {
            process: Process::start_on(&sandbox.node, &words, input)?,
            _cgroup: cgroup,
        })
    }

    /// Returns the output of an agent that fails to start.
    fn refusal(self) -> Result<String> {
        let status = until("the agent exits", || self.process.ended())?;
        ensure!(!status.success(), "the agent has exited with success");
        Ok(self.process.kill_and_read_output())
    }
}

fn write(sandbox: &Sandbox, text: &str) -> Result<()> {
    Ok(sandbox.node.run(|| std::fs::write(FILE, text))?)
}

fn get(sandbox: &Sandbox, path: &str) -> Result<Value> {
    sandbox.node.call_json(&format!(
        "curl --silent --show-error --fail-with-body --unix-socket {SOCKET} http://viaduct{path}"
    ))
}

#[test]
fn with_log_format_json_each_line_of_the_log_is_an_object() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let agent = Agent::start(&sandbox.node, &["--log-format=json"])?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let added = until("the ADD is in the log", || {
        let log = agent.log();
        // The last line may not be complete yet.
        let lines = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let events = lines
            .lines()
            .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
            .collect::<Result<Vec<Value>>>()?;
        let is_of_add = |event: &Value| event["spans"][0]["name"] == "cni";
        Ok(events.into_iter().find(is_of_add))
    })?;
    ensure!(added["level"] == "INFO", "{added}");
    ensure!(added["spans"][0]["ifname"] == "eth0", "{added}");
    ensure!(added["fields"]["message"].is_string(), "{added}");
    Ok(())
}

#[test]
fn systemd_is_notified_of_ready_watchdog_reload_and_stop() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let manager = Manager::new(&sandbox)?;
    write(&sandbox, "")?;
    let notify = format!("NOTIFY_SOCKET={MANAGER}");
    let environment = [notify.as_str(), "WATCHDOG_USEC=200000"];
    let service = Service::start(&sandbox, &environment, &["--config", FILE])?;

    assert_eq!(manager.receive()?, "READY=1\n");
    get(&sandbox, "/v1/status").context("a ready agent responds")?;
    assert_eq!(manager.receive()?, "WATCHDOG=1\n");
    assert_eq!(manager.receive()?, "WATCHDOG=1\n");

    service.process.signal(Signal::SIGHUP)?;
    let reloading = manager.receive_state()?;
    let (first, second) = reloading.split_once('\n').context("two lines")?;
    assert_eq!(first, "RELOADING=1");
    ensure!(second.starts_with("MONOTONIC_USEC="), "{reloading}");
    assert!(manager.receive_state()?.starts_with("STATUS="));
    assert_eq!(manager.receive_state()?, "READY=1\n");

    service.process.signal(Signal::SIGTERM)?;
    assert_eq!(manager.receive_state()?, "STOPPING=1\n");
    let status = until("the agent exits", || service.process.ended())?;
    assert!(status.success(), "{status}");
    Ok(())
}

#[test]
fn socket_activation_serves_clients_that_connect_before_the_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let listener = sandbox.node.run(|| -> Result<UnixListener> {
        std::fs::create_dir_all("/run/viaduct")?;
        Ok(UnixListener::bind(SOCKET)?)
    })?;
    let mut early = sandbox.node.run(|| UnixStream::connect(SOCKET))?;
    early.write_all(b"GET /v1/status HTTP/1.1\r\nhost: v\r\nconnection: close\r\n\r\n")?;
    // The shell's input becomes descriptor 3, where a service manager passes sockets.
    let by = [
        "sh",
        "-c",
        "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\" 3<&0 0</dev/null",
        "sh",
    ];
    for turn in 0..2 {
        let input = Stdio::from(OwnedFd::from(listener.try_clone()?));
        let service = Service::start_by(&sandbox, &by, &[], input)?;
        if turn == 0 {
            let mut answer = String::new();
            early.read_to_string(&mut answer)?;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
        get(&sandbox, "/v1/status").context("another request after each start")?;
        let (status, _) = service.process.end(Signal::SIGTERM)?;
        assert!(status.success(), "{status}");
        ensure!(
            sandbox.node.run(|| std::fs::exists(SOCKET))?,
            "the agent removed the manager's socket"
        );
    }
    Ok(())
}

#[test]
fn reload_applies_a_new_configuration_and_rejects_a_bad_one() -> Result<()> {
    let sandbox = Sandbox::new()?;
    write(
        &sandbox,
        "pod-cidr = [\"10.7.0.0/24\"]\nlog-level = \"info\"",
    )?;
    let agent = Agent::start_with(&sandbox.node, vec!["--config".to_owned(), FILE.to_owned()])?;
    let shown = |path: &str| agent.get(path);
    let reload = |text: &str, says: &str| -> Result<()> {
        write(&sandbox, text)?;
        agent.signal(Signal::SIGHUP)?;
        until(says, || Ok(agent.log().contains(says).then_some(())))
    };

    let good = "pod-cidr = [\"10.8.0.0/24\"]\nhairpin-mode = \"none\"\n\
        non-masquerade-cidr = [\"10.0.0.0/8\"]\nlog-level = \"debug\"\nmtu = 1400\n";
    reload(good, "need a restart of the agent")?;
    assert_eq!(shown("/v1/pod-cidrs")?["podCIDRs"], json!(["10.8.0.0/24"]));
    assert_eq!(shown("/v1/hairpin-mode")?["mode"], "none");
    assert_eq!(shown("/v1/non-masquerade-cidrs")?, json!(["10.0.0.0/8"]));
    assert!(agent.log().contains("[\"mtu\"]"), "{}", agent.log());

    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    assert_eq!(pod.addresses[0].to_string(), "10.8.0.2");
    let before = [
        shown("/v1/status")?["networks"].clone(),
        shown("/v1/non-masquerade-cidrs")?,
    ];
    for (bad, says) in [
        ("pod-cdir = []\n", "unknown key pod-cdir"),
        ("log-level = \"=\"\n", "log-level"),
        (
            "pod-cidr = [\"10.9.0.0/24\"]\nnon-masquerade-cidr = []\n",
            "Ignoring subsequent pod CIDR",
        ),
    ] {
        reload(bad, says)?;
        until("the agent logs the failed reload", || {
            Ok(agent
                .log()
                .contains("reload failed, configuration unchanged")
                .then_some(()))
        })?;
        let after = [
            shown("/v1/status")?["networks"].clone(),
            shown("/v1/non-masquerade-cidrs")?,
        ];
        assert_eq!(after, before, "{bad}");
    }
    pod.check()?.success()?;
    pod.del().map(drop)
}

#[test]
fn a_second_agent_on_shared_resources_is_refused_unless_the_first_is_dead() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut first = Agent::start(&sandbox.node, &[])?;
    let pid = format!(
        "process {},",
        first.pid().context("the agent has no process")?
    );
    let others =
        |flags: &[&str]| -> Result<String> { Service::start(&sandbox, &[], flags)?.refusal() };
    let own = [
        "--state-dir=/run/v2",
        "--socket=/run/v2/v.sock",
        "--bpffs=/sys/fs/bpf/v2",
        "--bridge=br2",
    ];
    let without = |left_out: usize| -> Vec<&str> {
        own.iter()
            .enumerate()
            .filter(|(place, _)| *place != left_out)
            .map(|(_, flag)| *flag)
            .collect()
    };
    for (left_out, names) in [
        (0, "/run/viaduct"),
        (1, "viaduct.sock"),
        (2, "/sys/fs/bpf/viaduct"),
        (3, "bridge cbr0"),
    ] {
        let output = others(&without(left_out))?;
        ensure!(
            output.contains(&pid) && output.contains(names),
            "{names}: {output}"
        );
        get(&sandbox, "/v1/status").context("the first agent still responds")?;
    }
    first.kill()?;
    first.restart()?;
    get(&sandbox, "/v1/status").map(drop)
}

fn veths(sandbox: &Sandbox) -> Result<usize> {
    let shown = sandbox.node.call("ip -o link show type veth")?;
    Ok(shown.lines().filter(|line| line.contains("veth")).count())
}

/// behaviour A6
#[test]
fn signals_during_dels_leave_each_pod_attached_or_deleted() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let before = Residue::of(&sandbox.node, &[])?;
    let mut pods = Vec::new();
    for number in 0..16 {
        let mut pod = sandbox.pod(&format!("pod-{number}"))?;
        pod.add()?;
        pods.push(pod);
    }
    let all = veths(&sandbox)?;
    let del = |pod: &Pod| pod.prepare(Verb::Del, pod.config()).run(&sandbox.node);
    let answers = thread::scope(|scope| -> Result<Vec<_>> {
        let asked: Vec<_> = pods.iter().map(|pod| scope.spawn(|| del(pod))).collect();
        until("the first pod is deleted", || {
            Ok((veths(&sandbox)? < all).then_some(()))
        })?;
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGTERM] {
            agent.signal(signal)?;
        }
        let status = agent.wait_for_end()?;
        ensure!(status.success(), "{status}");
        asked
            .into_iter()
            .map(|del| del.join().ok().context("a DEL panicked")?)
            .collect()
    })?;
    agent.restart()?;
    for (pod, answer) in pods.iter().zip(answers) {
        if answer.code == Some(0) {
            // The DEL was executed, or spooled and executed at the start.
            let known = agent.get(&format!("/v1/attachments/{}", pod.id()));
            ensure!(known.is_err(), "{} is still attached: {known:?}", pod.id());
        } else {
            assert_eq!(answer.error()?.code, 11, "{answer:?}");
            pod.check()?.success()?;
            pod.del()?;
        }
    }
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[])?)
}
