//! systemd as the first process of a container on a machine: for tests of units, which need a real
//! service manager.
//!
//! The container has namespaces and a cgroup of its own. Its root is an overlay in memory above the
//! files of this machine, and nothing of this machine is writable in it.

use std::path::Path;
use std::process::Output;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Cgroup, Machine, Process, program, skipped, until};

/// Makes the root of the container and starts systemd. Arguments: the cgroup, the distribution.
const BOOT: &str = include_str!("systemd.sh");

/// systemd, where Debian and its relatives have it.
const SYSTEMD: &str = "/lib/systemd/systemd";

/// Directory in the container that contains the distribution as `target/dist`.
pub const CHECKOUT: &str = "/srv/viaduct";

/// A booted systemd. Dropping it kills all processes of the container.
#[derive(Debug)]
pub struct Systemd {
    node: Machine,
    /// Process ID of systemd outside of the container.
    init: Pid,
    process: Option<Process>,
    cgroup: Cgroup,
}

impl Systemd {
    /// Boots systemd in the network namespace of `node`, and waits until it is running. Returns
    /// `None`, and reports the test as skipped, where systemd or cgroup2 is missing.
    pub fn boot(node: &Machine) -> Result<Option<Self>> {
        if !Path::new(SYSTEMD).exists() {
            skipped("systemd is not installed");
            return Ok(None);
        }
        let Some(cgroup) = Cgroup::new()? else {
            skipped("cgroup2 is not mounted");
            return Ok(None);
        };
        let agent = program("bin/viaductd");
        let dist = agent.ancestors().nth(2).context("a distribution")?;
        let own = cgroup.path().display().to_string();
        let dist = dist.display().to_string();
        let process = Process::start(node, &["sh", "-c", BOOT, "sh", &own, &dist])?;
        let init = until("systemd is executed", || {
            if let Some(status) = process.ended()? {
                bail!("the container ended ({status}): {}", process.output());
            }
            first_child(process.pid())
        })?;
        let systemd = Self {
            node: node.clone(),
            init,
            process: Some(process),
            cgroup,
        };
        until("systemd has booted", || {
            let output = systemd.output(&["systemctl", "is-system-running"]);
            let state = output.map(|output| output.stdout).unwrap_or_default();
            Ok(["running", "degraded"]
                .contains(&String::from_utf8_lossy(&state).trim())
                .then_some(()))
        })
        .with_context(|| systemd.console())?;
        Ok(Some(systemd))
    }

    /// Runs a tool in the container with arguments, separated by spaces, and returns its standard
    /// output. A failure of the tool is an error with both outputs.
    pub fn call(&self, line: &str) -> Result<String> {
        let words = line.split_whitespace().collect::<Vec<_>>();
        self.call_words(&words)
    }

    /// Does the same as [`Systemd::call`], for arguments that contain spaces.
    pub fn call_words(&self, words: &[&str]) -> Result<String> {
        let output = self.output(words)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!(
                "`{}` failed ({}): {}{text}",
                words.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr),
            );
        }
        Ok(text)
    }

    /// Runs a tool in the container until it exits, with any exit status.
    pub fn output(&self, words: &[&str]) -> Result<Output> {
        let target = self.init.to_string();
        let enter = ["nsenter", "--all", "--target", &target, "--"];
        self.node.output(&[&enter[..], words].concat())
    }

    /// Runs a shell script in [`CHECKOUT`] that ends at the first failing command.
    pub fn script(&self, text: &str) -> Result<String> {
        let text = format!("set -e\ncd {CHECKOUT}\n{text}");
        self.call_words(&["sh", "-c", &text])
    }

    /// Writes a file in the container.
    pub fn write(&self, path: &str, text: &str) -> Result<()> {
        let write = "mkdir -p \"$(dirname \"$1\")\" && printf %s \"$2\" > \"$1\"";
        self.call_words(&["sh", "-c", write, "sh", path, text])
            .map(drop)
    }

    /// Returns a property of a unit.
    pub fn property(&self, unit: &str, name: &str) -> Result<String> {
        let text = self.call(&format!("systemctl show --value --property {name} {unit}"))?;
        Ok(text.trim().to_owned())
    }

    /// Returns the journal of a unit, in the output format `format` of `journalctl`.
    pub fn journal(&self, unit: &str, format: &str) -> Result<String> {
        self.call("journalctl --sync")?;
        self.call(&format!(
            "journalctl --no-pager --quiet --unit {unit} --output {format}"
        ))
    }

    /// Returns the messages of systemd itself.
    pub fn console(&self) -> String {
        let process = self.process.as_ref();
        process.map(Process::output).unwrap_or_default()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // The kernel kills all processes of the container with its first one, and the parent of
        // that ends once they are gone.
        let _gone = kill(self.init, Signal::SIGKILL);
        if let Some(process) = self.process.take() {
            let _ended = until("the container ends", || process.ended());
        }
        remove_children(self.cgroup.path());
    }
}

/// Returns the first child of a process, once it executes systemd.
fn first_child(parent: u32) -> Result<Option<Pid>> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let Some(child) = children.split_whitespace().next() else {
        return Ok(None);
    };
    let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
    let child: i32 = child.parse()?;
    Ok((name.trim() == "systemd").then_some(Pid::from_raw(child)))
}

/// Removes the cgroups below `cgroup`, deepest first.
fn remove_children(cgroup: &Path) {
    let entries = std::fs::read_dir(cgroup).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.path().is_dir()) {
        remove_children(&entry.path());
        // A cgroup that stays shows up as residue.
        let _gone = std::fs::remove_dir(entry.path());
    }
}
