//! One execution of one plugin.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cni::{Command, Error};
use serde_json::Value;

use crate::Attachment;

/// More than any plugin says, and less than what would hurt.
const MAX_ANSWER: u64 = 4 << 20;

/// A plugin that is just being replaced in place cannot be executed for a moment (behaviour S18).
const TRIES: u32 = 5;
const BETWEEN: Duration = Duration::from_secs(1);

/// Runs a plugin to its end, or until patience ends, and returns what it says on standard output; what it says on standard
/// error goes where ours does.
pub(crate) fn run(
    program: &Path,
    environment: &Environment,
    config: &str,
    patience: Duration,
) -> Result<String, Error> {
    let end = Instant::now() + patience;
    let mut child = start(program, environment)
        .map_err(|error| Error::io(format!("cannot execute {}: {error}", program.display())))?;
    let broken = |error: io::Error| Error::io(format!("{}: {error}", program.display()));
    let answer = converse(&mut child, config, end).transpose();
    let ended = answer.and_then(|answer| Ok(answer.zip(wait(&mut child, end)?)));
    let Some((answer, status)) = ended.map_err(broken)? else {
        // Whoever else has its end of the pipe may live on; nobody listens any more.
        child.kill().and_then(|()| child.wait()).map_err(broken)?;
        return Err(Error::try_again_later(format!(
            "did not answer within {patience:?} and was killed"
        )));
    };
    let answer = String::from_utf8(answer)
        .map_err(|_| Error::decode("what the plugin says is not UTF-8"))?;
    if status.success() {
        return Ok(answer);
    }
    Err(refusal(&answer).unwrap_or_else(|| {
        Error::internal(format!("failed with no error message ({status})"))
            .with_details(answer.trim().to_owned())
    }))
}

pub(crate) type Environment = Vec<(&'static str, OsString)>;

pub(crate) fn environment(
    command: Command,
    attachment: Option<&Attachment>,
    path: &[PathBuf],
) -> Result<Environment, Error> {
    let path = std::env::join_paths(path)
        .map_err(|_| Error::environment("a folder of plugins has a colon in its name"))?;
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
    let mut left = TRIES;
    loop {
        match process.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && left > 0 => {
                left -= 1;
                thread::sleep(BETWEEN);
            }
            started => return started,
        }
    }
}

/// Speaks and listens at once: a plugin may say something before it has heard everything. `None` when it is not done in
/// time; the threads that speak and listen end when it does.
fn converse(child: &mut Child, config: &str, end: Instant) -> Option<io::Result<Vec<u8>>> {
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let config = config.to_owned();
    // A plugin that refuses without listening closes its end; what it says tells.
    thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(config.as_bytes())));
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut answer = Vec::new();
        let read = stdout.map(|stdout| stdout.take(MAX_ANSWER).read_to_end(&mut answer));
        // Nobody to tell is nobody who waits any more.
        let _late = tell.send(read.transpose().map(|_| answer));
    });
    let left = end.saturating_duration_since(Instant::now());
    told.recv_timeout(left).ok()
}

/// Waits for a plugin that has said everything: it ends at once, or does not mean to.
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

fn refusal(answer: &str) -> Option<Error> {
    let error: Value = serde_json::from_str(answer).ok()?;
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    let code = u32::try_from(error["code"].as_u64()?).ok()?;
    Some(Error::new(code, text("msg")).with_details(text("details")))
}
