//! Executes one plugin: environment, standard input and output, timeout.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cni::{Command, Error};
use serde_json::Value;

use crate::RuntimeConf;

/// Bytes of standard output that are read. No plugin prints as much, and it bounds the memory.
const MAX_OUTPUT: u64 = 4 << 20;

/// Retries if the executable is busy (`ETXTBSY`), because it is being replaced in place (behaviour
/// S18).
const RETRIES: u32 = 5;
/// Pause between retries.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Executes a plugin and returns its standard output. Kills it after `timeout`. Its standard error
/// is inherited.
pub(crate) fn run(
    program: &Path,
    environment: &Environment,
    config: &str,
    timeout: Duration,
) -> Result<String, Error> {
    let end = Instant::now() + timeout;
    let mut child = start(program, environment)
        .map_err(|error| Error::io(format!("cannot execute {}: {error}", program.display())))?;
    let io_error = |error: io::Error| Error::io(format!("{}: {error}", program.display()));
    let answer = exchange(&mut child, config, end).transpose();
    let ended = answer.and_then(|answer| Ok(answer.zip(wait(&mut child, end)?)));
    let Some((answer, status)) = ended.map_err(io_error)? else {
        // Processes that the plugin has started may keep the pipe open; nothing reads it any
        // longer.
        child.kill().and_then(|()| child.wait()).map_err(io_error)?;
        return Err(Error::try_again_later(format!(
            "did not answer within {timeout:?} and was killed"
        )));
    };
    let answer = String::from_utf8(answer)
        .map_err(|_| Error::decode("standard output of the plugin is not UTF-8"))?;
    if status.success() {
        return Ok(answer);
    }
    Err(plugin_error(&answer).unwrap_or_else(|| {
        Error::internal(format!("failed with no error message ({status})"))
            .with_details(answer.trim().to_owned())
    }))
}

pub(crate) type Environment = Vec<(&'static str, OsString)>;

pub(crate) fn environment(
    command: Command,
    attachment: Option<&RuntimeConf>,
    path: &[PathBuf],
) -> Result<Environment, Error> {
    let path = std::env::join_paths(path)
        .map_err(|_| Error::environment("a directory of CNI_PATH has a colon in its name"))?;
    let mut environment = vec![("CNI_COMMAND", command.name().into()), ("CNI_PATH", path)];
    let (id, netns, ifname, args) = attachment.map_or_else(Default::default, |attachment| {
        let args: Vec<String> = attachment
            .args
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        (
            attachment.container_id.to_string(),
            attachment.netns.clone(),
            attachment.ifname.to_string(),
            args.join(";"),
        )
    });
    environment.push(("CNI_CONTAINERID", id.into()));
    environment.push(("CNI_NETNS", netns.into()));
    environment.push(("CNI_IFNAME", ifname.into()));
    environment.push(("CNI_ARGS", args.into()));
    Ok(environment)
}

fn start(program: &Path, environment: &Environment) -> io::Result<Child> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a plugin is a program; to execute it is what this crate is for"
    )]
    let mut process = Process::new(program);
    process
        .envs(environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut retries = RETRIES;
    loop {
        match process.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && retries > 0 => {
                retries -= 1;
                thread::sleep(RETRY_INTERVAL);
            }
            started => return started,
        }
    }
}

/// Writes the configuration to standard input and reads standard output at the same time, because a
/// plugin may print before it has read everything. Returns `None` after the deadline `end`; the
/// threads end with the plugin.
fn exchange(child: &mut Child, config: &str, end: Instant) -> Option<io::Result<Vec<u8>>> {
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let config = config.to_owned();
    // A plugin that fails without reading closes its end of the pipe; its output has the error.
    thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(config.as_bytes())));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut answer = Vec::new();
        let read = stdout.map(|stdout| stdout.take(MAX_OUTPUT).read_to_end(&mut answer));
        // An error means that the receiver has given up after the deadline.
        let _late = sender.send(read.transpose().map(|_| answer));
    });
    let left = end.saturating_duration_since(Instant::now());
    receiver.recv_timeout(left).ok()
}

/// Waits until a plugin exits after it has closed its standard output; `None` after the deadline
/// `end`.
fn wait(child: &mut Child, end: Instant) -> io::Result<Option<ExitStatus>> {
    let mut pause = Duration::from_micros(50);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

fn plugin_error(answer: &str) -> Option<Error> {
    let error: Value = serde_json::from_str(answer).ok()?;
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    let code = u32::try_from(error["code"].as_u64()?).ok()?;
    Some(Error::new(code, text("msg")).with_details(text("details")))
}
