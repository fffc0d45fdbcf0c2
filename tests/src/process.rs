//! Long-running programs on a machine, which never outlive the harness.

use std::io::{BufRead as _, BufReader, PipeReader, pipe};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

use crate::machine::command;
use crate::{Machine, until};

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Arc<Mutex<Child>>,
    output: Arc<Mutex<String>>,
    supervisor: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts `words` on `machine`.
    ///
    /// A thread starts the program, reads its output and waits for its exit. The kernel kills the
    /// program when that thread exits (`setpriv --pdeathsig`), so also when the harness is killed.
    pub fn start(machine: &Machine, words: &[&str]) -> Result<Self> {
        Self::start_on(machine, words, Stdio::null())
    }

    /// Does the same as [`Process::start`], with this standard input.
    pub fn start_on(machine: &Machine, words: &[&str], input: Stdio) -> Result<Self> {
        let machine = machine.clone();
        let words = words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let output = Arc::new(Mutex::new(String::new()));
        let (report, started) = sync_channel(1);
        let printed = Arc::clone(&output);
        let supervisor =
            thread::spawn(move || supervise(&machine, &words, input, &printed, &report));
        let child = started
            .recv()
            .context("the supervising thread exited early")??;
        Ok(Self {
            child,
            output,
            supervisor: Some(supervisor),
        })
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        lock(&self.child).id()
    }

    /// Returns its output so far, of both streams.
    pub fn output(&self) -> String {
        lock(&self.output).clone()
    }

    /// Returns its exit status, if it has exited.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        Ok(lock(&self.child).try_wait()?)
    }

    /// Sends `signal`, unless the process has exited.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let mut child = lock(&self.child);
        // While the lock is held, no other thread reaps the child, so its PID cannot be reused.
        if child.try_wait()?.is_none() {
            kill(Pid::from_raw(child.id().cast_signed()), signal)?;
        }
        Ok(())
    }

    /// Sends `signal` and waits for the exit; returns status and output.
    pub fn end(mut self, signal: Signal) -> Result<(ExitStatus, String)> {
        self.signal(signal)?;
        let status = until("the program exits", || self.ended())?;
        self.join();
        Ok((status, self.output()))
    }

    /// Kills the process, if it still runs, and returns its complete output.
    pub fn kill_and_read_output(mut self) -> String {
        // It fails only if the process is gone.
        let _ = self.signal(Signal::SIGKILL);
        self.join();
        self.output()
    }

    fn join(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            // An error means that the thread panicked, and the panic message is printed already.
            let _ = supervisor.join();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Signalling an own child cannot fail, and drop has no way to return an error.
        let _ = self.signal(Signal::SIGKILL);
        self.join();
    }
}

type Report = SyncSender<Result<Arc<Mutex<Child>>>>;

/// Starts the program, reports the child, collects its output, and reaps it. Runs on a thread.
fn supervise(
    machine: &Machine,
    words: &[String],
    input: Stdio,
    output: &Mutex<String>,
    report: &Report,
) {
    let (child, printed) = match spawn(machine, words, input) {
        Ok((child, printed)) => (Arc::new(Mutex::new(child)), printed),
        Err(error) => {
            let _ = report.send(Err(error));
            return;
        }
    };
    let pid = lock(&child).id();
    let _ = report.send(Ok(Arc::clone(&child)));
    for line in BufReader::new(printed).lines() {
        let Ok(line) = line else { break };
        let mut output = lock(output);
        output.push_str(&line);
        output.push('\n');
    }
    let id = Id::Pid(Pid::from_raw(pid.cast_signed()));
    let _ = waitid(id, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
    let _ = lock(&child).wait();
}

fn spawn(machine: &Machine, words: &[String], input: Stdio) -> Result<(Child, PipeReader)> {
    machine.enter()?;
    let (reader, writer) = pipe()?;
    let child = command("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .args(words)
        .stdin(input)
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("cannot start {}", words.join(" ")))?;
    Ok((child, reader))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
