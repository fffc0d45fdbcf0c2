//! Executes the plugin as a runtime does, with a minimal HTTP server as agent. Needs no privileges.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fs, process};

use serde_json::{Value, json};

const ENVIRONMENT: [(&str, &str); 5] = [
    ("CNI_CONTAINERID", "c1"),
    ("CNI_NETNS", "/run/netns/c1"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_ARGS", "IgnoreUnknown=1;FOO=bar"),
    ("CNI_PATH", "/opt/cni/bin"),
];

/// Executes the plugin; with an empty command, `CNI_COMMAND` is not set.
fn run(command: &str, config: &str, environment: &[(&str, &str)]) -> Output {
    run_timed(command, config, environment).0
}

/// Executes the plugin as [`run`] does. Returns also the time until its exit, without the time in
/// which it and this thread waited for a CPU: on a busy machine that is most of it.
fn run_timed(command: &str, config: &str, environment: &[(&str, &str)]) -> (Output, Duration) {
    #[expect(
        clippy::disallowed_methods,
        reason = "a plugin is executed, so its test executes it"
    )]
    let mut plugin = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    plugin.env_clear().envs(environment.iter().copied());
    if !command.is_empty() {
        plugin.env("CNI_COMMAND", command);
    }
    let plugin = plugin
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let (start, before) = (Instant::now(), wait_for_cpu("thread-self"));
    let mut child = plugin.spawn().unwrap();
    // A plugin that answers without reading closes its end.
    let _ = child.stdin.take().unwrap().write_all(config.as_bytes());
    let mut stdout = Vec::new();
    let mut output = child.stdout.take().unwrap();
    // The end of the output is the exit of the plugin, which stays in /proc until it is waited for.
    output.read_to_end(&mut stdout).unwrap();
    let took = start.elapsed();
    let own = wait_for_cpu("thread-self").saturating_sub(before);
    let waited = own + wait_for_cpu(&child.id().to_string());
    let output = child.wait_with_output().unwrap();
    (Output { stdout, ..output }, took.saturating_sub(waited))
}

/// Returns how long a process or thread in `/proc` was runnable and waited for a CPU: the second
/// number of `schedstat`, in nanoseconds. Zero where the kernel does not count it.
fn wait_for_cpu(task: &str) -> Duration {
    let counted = fs::read_to_string(format!("/proc/{task}/schedstat")).unwrap_or_default();
    let waited = counted.split(' ').nth(1);
    Duration::from_nanos(waited.and_then(|waited| waited.parse().ok()).unwrap_or(0))
}

fn error(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns a socket path that no other test uses.
fn socket(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = directory.join(format!("{test}-{}.sock", process::id()));
    let _ = fs::remove_file(&path);
    path
}

/// Answers one request with `status` and `body`. The thread returns the request line and the body
/// of the request.
fn agent(socket: &Path, status: &'static str, body: &'static str) -> JoinHandle<(String, String)> {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut lines = Vec::new();
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                length = value.trim().parse().unwrap();
            }
            lines.push(line);
        }
        let mut request = vec![0; length];
        reader.read_exact(&mut request).unwrap();
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all((head + body).as_bytes()).unwrap();
        let line = lines.first().map(|line| line.trim().to_owned());
        (line.unwrap(), String::from_utf8(request).unwrap())
    })
}

fn config(socket: &Path) -> String {
    json!({"cniVersion": "0.4.0", "name": "net", "type": "viaduct", "socket": socket}).to_string()
}

/// behaviours S1, C8
#[test]
fn without_a_command_the_plugin_prints_about_on_stderr_and_succeeds() {
    let output = run("", "", &[]);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.starts_with("CNI viaduct plugin v0."), "{text}");
    assert!(
        text.contains("CNI protocol versions supported: 0.1.0, "),
        "{text}"
    );
}

/// Executed by another name it is a reference plugin, which prints on standard error whatever its
/// arguments are.
#[test]
fn the_version_option_prints_the_build_on_stdout_unless_executed_by_another_name() {
    use std::os::unix::process::CommandExt as _;

    let print = |name: &str| {
        #[expect(
            clippy::disallowed_methods,
            reason = "a plugin is executed, so its test executes it"
        )]
        let mut plugin = Command::new(env!("CARGO_BIN_EXE_viaduct"));
        plugin.arg0(name).arg("--version").env_clear();
        let output = plugin.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    let [stdout, stderr] = print("/opt/cni/bin/viaduct");
    assert_eq!(stderr, "");
    let build = format!("API {}, datapath ABI ", api::VERSION);
    assert!(
        stdout.contains(" (commit ") && stdout.contains(&build),
        "{stdout}"
    );
    let [stdout, stderr] = print("/opt/cni/bin/bridge");
    assert_eq!(stdout, "");
    assert!(stderr.starts_with("CNI bridge plugin v1."), "{stderr}");
}

/// Executes the plugin with netavark's arguments, beside CNI's variables, and `input` on standard
/// input.
fn run_netavark<A: AsRef<OsStr>>(arguments: &[A], input: &Value) -> Output {
    #[expect(
        clippy::disallowed_methods,
        reason = "a plugin is executed, so its test executes it"
    )]
    let mut plugin = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    plugin.args(arguments).env_clear().envs(ENVIRONMENT);
    let plugin = plugin
        .env("CNI_COMMAND", "VERSION")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = plugin.spawn().unwrap();
    let text = input.to_string();
    // `info` exits without reading.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    child.wait_with_output().unwrap()
}

fn container(socket: &Path) -> Value {
    json!({
        "container_id": "c9", "container_name": "web", "port_mappings": null,
        "network": { "name": "apps", "id": "1f", "options": { "socket": socket } },
        "network_options": { "interface_name": "eth1" },
    })
}

#[test]
fn the_first_argument_selects_netavarks_interface() {
    let info = run_netavark(&["info"], &json!({}));
    assert!(info.status.success(), "{info:?}");
    let info: Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!(info["api_version"], "1.0.0");
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    // Any other argument is none of netavark's: CNI's VERSION.
    let version = run_netavark(&["destroy"], &json!({}));
    let version: Value = serde_json::from_slice(&version.stdout).unwrap();
    assert_eq!(version["cniVersion"], "1.1.0");
}

#[test]
fn a_setup_of_netavark_is_passed_to_the_agent_and_its_answer_printed() {
    let socket = socket("setup");
    let status = r#"{"interfaces":{}}"#;
    let agent = agent(&socket, "200 OK", status);
    let input = container(&socket);
    let output = run_netavark(&["setup", "/run/netns/c9"], &input);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), status);
    let (line, body) = agent.join().unwrap();
    assert_eq!(line, "POST /v1/cni/add HTTP/1.1");
    let body: Value = serde_json::from_str(&body).unwrap();
    for (key, value) in [
        ("plugin", "netavark"),
        ("containerID", "c9"),
        ("netns", "/run/netns/c9"),
        ("ifname", "eth1"),
    ] {
        assert_eq!(body[key], value);
    }
    assert_eq!(body["config"], input);
}

#[test]
fn an_error_of_a_call_of_netavark_is_in_its_json() {
    let refused = |arguments: &[&str], input: &Value| -> String {
        let output = run_netavark(arguments, input);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error: Value = serde_json::from_slice(&output.stdout).unwrap();
        error["error"].as_str().unwrap().to_owned()
    };
    let socket = socket("create");
    let body = r#"{"code":2,"message":"unsupported field option vrf: red","details":"why"}"#;
    let agent = agent(&socket, "400 Bad Request", body);
    let network = json!({ "name": "apps", "options": { "socket": socket, "vrf": "red" } });
    let error = refused(&["create"], &network);
    assert_eq!(error, "unsupported field option vrf: red (why)");
    assert_eq!(agent.join().unwrap().0, "POST /v1/netavark/create HTTP/1.1");
    // The listener is gone: nothing listens.
    let error = refused(&["setup", "/run/netns/c9"], &container(&socket));
    assert!(error.contains("no agent listens"), "{error}");
    let error = refused(&["setup", "/proc/self/ns/net"], &container(&socket));
    assert!(error.contains("netns"), "{error}");
}

#[test]
fn arguments_that_are_not_utf8_are_passed_over_or_refused_in_json() {
    use std::os::unix::ffi::OsStrExt as _;

    let wrong = OsStr::from_bytes(b"/run/netns/\xff");
    let version = run_netavark(&[wrong], &json!({}));
    let version: Value = serde_json::from_slice(&version.stdout).unwrap();
    assert_eq!(version["cniVersion"], "1.1.0");
    let setup = run_netavark(&[OsStr::new("setup"), wrong], &container(&socket("utf8")));
    let error: Value = serde_json::from_slice(&setup.stdout).unwrap();
    assert!(error["error"].is_string(), "{error}");
}

/// behaviour S4
#[test]
fn version_needs_no_agent_and_no_input() {
    let output = run("VERSION", "", &[]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["cniVersion"], "1.1.0");
    assert_eq!(report["supportedVersions"].as_array().unwrap().len(), 7);
}

/// behaviour B0.3
#[test]
fn an_add_and_its_result_are_passed_through_unchanged() {
    let socket = socket("add");
    let result = "{\"cniVersion\" :\"0.4.0\",  \"ips\":[]}";
    let agent = agent(&socket, "200 OK", result);
    let config =
        config(&socket).replace("\"type\"", "\"Type\": 1e3, \"mtu\":1,\"mtu\":2, \"type\"");
    let output = run("ADD", &format!("\n{config}\n"), &ENVIRONMENT);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), result);
    let (line, body) = agent.join().unwrap();
    assert_eq!(line, "POST /v1/cni/add HTTP/1.1");
    assert!(body.contains(&config), "{body} has not {config}");
    let body: Value = serde_json::from_str(&body).unwrap();
    for (key, value) in [
        ("containerID", "c1"),
        ("netns", "/run/netns/c1"),
        ("ifname", "eth0"),
        ("args", "IgnoreUnknown=1;FOO=bar"),
        ("path", "/opt/cni/bin"),
    ] {
        assert_eq!(body[key], value);
    }
}

/// behaviour S10
#[test]
fn a_del_without_a_namespace_succeeds_and_prints_nothing() {
    let socket = socket("del");
    let agent = agent(&socket, "204 No Content", "");
    let environment = ENVIRONMENT.map(|(key, value)| {
        let value = if key == "CNI_NETNS" { "" } else { value };
        (key, value)
    });
    let output = run("DEL", &config(&socket), &environment);
    assert!(output.status.success(), "{output:?}");
    assert!(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "{output:?}"
    );
    assert_eq!(agent.join().unwrap().0, "POST /v1/cni/del HTTP/1.1");
}

/// behaviours S6, B0.3
#[test]
fn a_refusal_of_the_agent_is_a_cni_error_on_stdout() {
    let socket = socket("refusal");
    let body = r#"{"code":100,"message":"host port 8080/tcp is taken","details":"by ns/web"}"#;
    let agent = agent(&socket, "409 Conflict", body);
    let output = run("ADD", &config(&socket), &ENVIRONMENT);
    assert_eq!(
        error(&output),
        json!({
            "cniVersion": "0.4.0", "code": 100, "msg": "host port 8080/tcp is taken", "details": "by ns/web",
        })
    );
    agent.join().unwrap();
}

/// During an upgrade of a node, plugin and agent are of different releases for a short time.
#[test]
fn an_agent_of_another_major_version_is_code_11_with_the_reason() {
    for body in [
        // An agent that reports its API version, and agents that do not.
        r#"{"code":11,"message":"the agent has version 2.0 of its API, and the request is for version 1","new":{}}"#,
        r#"{"code":4,"message":"the API has no such path and method","details":""}"#,
        "404 page not found",
    ] {
        let socket = socket("other");
        let agent = agent(&socket, "404 Not Found", body);
        let error = error(&run("ADD", &config(&socket), &ENVIRONMENT));
        assert_eq!(error["code"], 11, "{error}");
        let message = error["msg"].as_str().unwrap();
        assert!(
            message.contains("of another release") || message.contains("version 2.0"),
            "{message}"
        );
        agent.join().unwrap();
    }
}

/// behaviour S18: libcni passes its trace context in `TRACEPARENT`.
#[test]
fn a_valid_traceparent_is_passed_to_the_agent_and_an_invalid_one_is_not() {
    let span = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (traceparent, sent) in [(span, span), ("nonsense; with=words", ""), ("", "")] {
        let socket = socket("span");
        let agent = agent(&socket, "200 OK", "{}");
        let environment = [ENVIRONMENT.as_slice(), &[("TRACEPARENT", traceparent)]].concat();
        assert!(run("ADD", &config(&socket), &environment).status.success());
        let body: Value = serde_json::from_str(&agent.join().unwrap().1).unwrap();
        assert_eq!(body["traceparent"], sent);
        assert_eq!(body["version"], env!("CARGO_PKG_VERSION"));
    }
}

/// behaviours A1, S13
#[test]
fn without_an_agent_commands_fail_within_a_second() {
    let socket = socket("down");
    for (command, code) in [("ADD", 11), ("CHECK", 11), ("GC", 11), ("STATUS", 50)] {
        let config = config(&socket).replace("0.4.0", "1.1.0");
        let (output, took) = run_timed(command, &config, &ENVIRONMENT);
        let error = error(&output);
        assert!(took < Duration::from_secs(1), "{command}: {took:?}");
        assert_eq!(error["code"], code, "{command}");
        let message = error["msg"].as_str().unwrap();
        assert!(message.contains(socket.to_str().unwrap()), "{message}");
    }
}

/// Returns a directory that no other test uses, and a socket path in it.
fn folder(test: &str) -> (PathBuf, PathBuf) {
    let name = format!("{test}-{}", process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    let socket = folder.join("v.sock");
    (folder, socket)
}

/// Returns the spooled requests in a directory.
fn spooled(folder: &Path) -> Vec<Value> {
    let Ok(files) = fs::read_dir(folder.join("spool")) else {
        return Vec::new();
    };
    files
        .map(|file| fs::read(file.unwrap().path()).unwrap())
        .map(|text| serde_json::from_slice(&text).unwrap())
        .collect()
}

/// behaviour A1
#[test]
fn a_del_without_an_agent_is_spooled_and_succeeds() {
    let (folder, socket) = folder("kept");
    for _ in 0..2 {
        let (output, took) = run_timed("DEL", &config(&socket), &ENVIRONMENT);
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert!(
            output.status.success() && output.stdout.is_empty(),
            "{output:?}"
        );
    }
    let [request] = &spooled(&folder)[..] else {
        panic!("one request: {:?}", spooled(&folder));
    };
    assert_eq!(request["containerID"], "c1");
    assert_eq!(request["plugin"], "viaduct");
    assert_eq!(request["config"]["name"], "net");
}

/// behaviour A1
#[test]
fn a_del_that_cannot_be_spooled_fails_with_both_reasons() {
    let (folder, socket) = folder("unkept");
    fs::write(folder.join("spool"), "in the way").unwrap();
    let error = error(&run("DEL", &config(&socket), &ENVIRONMENT));
    assert_eq!(error["code"], 11);
    let message = error["msg"].as_str().unwrap();
    assert!(message.contains("no agent listens"), "{message}");
    assert!(message.contains("cannot write to"), "{message}");
    assert!(!message.contains("no such file"), "C3: {message}");
}

/// behaviours A1, C6: the kernel still accepts connections for a stopped agent (`SIGSTOP`).
#[test]
fn a_del_without_an_answer_from_the_agent_is_spooled() {
    let (folder, socket) = folder("hung");
    let _listener = UnixListener::bind(&socket).unwrap();
    let (output, took) = run_timed("DEL", &config(&socket), &ENVIRONMENT);
    assert!(output.status.success(), "{output:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(spooled(&folder).len(), 1);
}

/// behaviours S2, S6, S7
#[test]
fn invalid_requests_are_refused_without_an_agent() {
    let config = config(Path::new("/nonexistent/viaduct.sock"));
    let code = |command, config, environment: &[_]| {
        error(&run(command, config, environment))["code"].clone()
    };
    assert_eq!(code("FROB", &config, &ENVIRONMENT), 4);
    assert_eq!(code("ADD", &config, &[]), 4);
    assert_eq!(code("ADD", "", &ENVIRONMENT), 6);
    assert_eq!(code("ADD", "[]", &ENVIRONMENT), 6);
    assert_eq!(code("ADD", r#"{"cniVersion":"1.0.0"}"#, &ENVIRONMENT), 7);
    let future = error(&run(
        "ADD",
        r#"{"cniVersion":"9.9.9","name":"n"}"#,
        &ENVIRONMENT,
    ));
    assert_eq!(future["code"], 1);
    assert_eq!(future["cniVersion"], "9.9.9");
    let own = ENVIRONMENT.map(|(key, value)| {
        let value = if key == "CNI_NETNS" {
            "/proc/self/ns/net"
        } else {
            value
        };
        (key, value)
    });
    assert_eq!(code("ADD", &config, &own), 8);
    let intended = [own.as_slice(), &[("CNI_NETNS_OVERRIDE", "1")]].concat();
    assert_eq!(code("ADD", &config, &intended), 11);
}
