//! Run time of the plugin itself: from the start of its process to the first byte of its request,
//! and to its exit. The benchmark listens in place of the agent, and answers at once.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use e2e::{Config, program};
use serde_json::json;

use crate::plan::Plan;
use crate::row::{Row, Rows, system};

/// System name of the comparison: start and exit of an empty program.
const EMPTY: &str = "an empty program";

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

pub(crate) fn measure(plan: &Plan) -> Result<Vec<Row>> {
    let mut rows = Rows::default();
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("v.sock");
    let listener = UnixListener::bind(&socket)?;
    let config = Config::new("1.1.0").with("socket", json!(socket)).0;
    let systems = [system::VIADUCT, EMPTY];
    plan.interleave("one process", plan.pick(50, 200), &systems, |system| {
        let mut push = |name: &str, took: Duration| {
            rows.push(Row::new(name, *system, "ms"), took.as_secs_f64() * 1e3);
        };
        if *system == EMPTY {
            let start = Instant::now();
            ensure!(command("/bin/true").status()?.success());
            push("start to end", start.elapsed());
            return Ok(());
        }
        let [first_byte, end] = call(&listener, &config.to_string())?;
        push("start to first byte", first_byte);
        push("start to end", end);
        Ok(())
    })?;
    Ok(rows.0)
}

/// Executes one ADD; returns the times to the first byte of the request and to the exit.
fn call(listener: &UnixListener, config: &str) -> Result<[Duration; 2]> {
    let mut plugin = command(program("cni/viaduct"));
    plugin
        .env_clear()
        .envs([
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/c1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let start = Instant::now();
    let mut child = plugin.spawn()?;
    let mut stdin = child.stdin.take().context("standard input is piped")?;
    stdin.write_all(config.as_bytes())?;
    drop(stdin);
    let (mut stream, _) = listener.accept()?;
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    let first_byte = start.elapsed();
    // The rest of the request fits into the socket buffer, and need not be read.
    stream.write_all(ANSWER)?;
    ensure!(child.wait()?.success(), "the plugin failed");
    Ok([first_byte, start.elapsed()])
}

/// Returns a command for a program whose run time is measured.
pub(crate) fn command(program: impl AsRef<std::ffi::OsStr>) -> std::process::Command {
    #[expect(
        clippy::disallowed_methods,
        reason = "the run time of the program is measured"
    )]
    std::process::Command::new(program)
}
