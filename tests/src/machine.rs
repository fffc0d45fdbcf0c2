//! A machine: a network namespace with the sandbox's mounts, in which tools and probes run.

#![expect(
    clippy::disallowed_methods,
    reason = "the harness runs real tools, on threads that it moved into its own namespaces"
)]

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use serde_json::Value;

use crate::mounts::inside;
use crate::{Mounts, until};

/// A network namespace with the sandbox's mounts. Clones refer to the same namespace.
#[derive(Clone, Debug)]
pub struct Machine {
    name: String,
    net: Arc<OwnedFd>,
    mounts: Mounts,
}

impl Machine {
    /// Creates a network namespace, sets its loopback up, and binds it to [`Machine::path`].
    pub fn new(name: &str, mounts: &Mounts) -> Result<Self> {
        let path = path_of(name);
        let net = mounts
            .run(|| -> Result<OwnedFd> {
                unshare(CloneFlags::CLONE_NEWNET)?;
                File::create(&path)?;
                let own = "/proc/thread-self/ns/net";
                let none = None::<&str>;
                mount(Some(own), path.as_str(), none, MsFlags::MS_BIND, none)?;
                Ok(File::open(own)?.into())
            })
            .with_context(|| format!("cannot create the network namespace {name}"))?;
        let machine = Self {
            name: name.to_owned(),
            net: Arc::new(net),
            mounts: mounts.clone(),
        };
        machine.call("ip link set lo up")?;
        Ok(machine)
    }

    /// Returns the network namespace of a process, with the mounts of this machine, and binds it to
    /// [`Machine::path`].
    pub fn of_process(&self, name: &str, pid: u32) -> Result<Self> {
        let own = format!("/proc/{pid}/ns/net");
        let path = path_of(name);
        let net = self
            .mounts
            .run(|| -> Result<OwnedFd> {
                File::create(&path)?;
                let none = None::<&str>;
                mount(
                    Some(own.as_str()),
                    path.as_str(),
                    none,
                    MsFlags::MS_BIND,
                    none,
                )?;
                Ok(File::open(&own)?.into())
            })
            .with_context(|| format!("cannot enter the network namespace of process {pid}"))?;
        Ok(Self {
            name: name.to_owned(),
            net: Arc::new(net),
            mounts: self.mounts.clone(),
        })
    }

    /// Returns its name in the harness, which is also the container ID of a pod.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path to which the namespace is bound, inside the sandbox.
    pub fn path(&self) -> String {
        path_of(&self.name)
    }

    /// Returns a path to the namespace that is valid in every sandbox.
    pub fn descriptor_path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.net.as_raw_fd())
    }

    /// Returns the mount namespace that it uses.
    pub fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// Removes the bind mount at [`Machine::path`], as a runtime does when it removes a pod.
    pub fn unbind(&self) -> Result<()> {
        let path = self.path();
        self.mounts.run(|| {
            umount2(path.as_str(), MntFlags::MNT_DETACH)?;
            std::fs::remove_file(&path)?;
            Ok(())
        })
    }

    /// Runs `body` on a thread in this machine's namespaces. Sockets that it opens stay in the
    /// network namespace, whichever thread uses them later.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        inside(|| self.enter(), body)
    }

    /// Runs a tool with arguments, separated by spaces, and returns its standard output. A failure
    /// of the tool is an error with both outputs.
    pub fn call(&self, line: &str) -> Result<String> {
        let words = line.split_whitespace().collect::<Vec<_>>();
        self.call_words(&words)
    }

    /// Does the same as [`Machine::call`], for arguments that contain spaces.
    pub fn call_words(&self, words: &[&str]) -> Result<String> {
        let output = self.output(words)?;
        if !output.status.success() {
            bail!(
                "on {}: `{}` failed ({}): {}{}",
                self.name,
                words.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr),
                String::from_utf8_lossy(&output.stdout),
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Copies a program. Another process writes it: a child that a parallel test starts would
    /// inherit an open file of this one, and a file that is open for writing is not executed
    /// (`ETXTBSY`).
    pub fn install_program(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (from.display(), to.display());
        self.call(&format!("install -m 755 {from} {to}"))?;
        Ok(())
    }

    /// Does the same as [`Machine::call`], and parses JSON; no output is an empty array.
    pub fn call_json(&self, line: &str) -> Result<Value> {
        let text = self.call(line)?;
        if text.trim().is_empty() {
            return Ok(Value::Array(Vec::new()));
        }
        serde_json::from_str(&text).with_context(|| format!("`{line}` printed {text}"))
    }

    /// Runs a tool until it exits, with any exit status.
    pub fn output(&self, words: &[&str]) -> Result<Output> {
        let (program, arguments) = words.split_first().context("there is no command")?;
        self.run(|| {
            command(program)
                .args(arguments)
                .stdin(Stdio::null())
                .output()
        })
        .with_context(|| format!("cannot run {program}"))
    }

    /// Writes a sysctl below `/proc/sys/net`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/net/{key}");
        self.run(|| std::fs::write(&path, value))
            .with_context(|| format!("cannot set {path}"))
    }

    /// Waits until a link has an IPv6 link-local address, and no address of the machine is
    /// tentative.
    ///
    /// The kernel adds the address when the link gets a carrier, and begins with duplicate address
    /// detection after a random delay of up to a second, also if it sends no probes (`addrconf.c`).
    pub fn await_addresses(&self, link: &str) -> Result<()> {
        let link_local = format!("ip -6 address show dev {link} scope link");
        until(&format!("{}: addresses of {link}", self.name), || {
            let tentative = self.call("ip -6 address show tentative")?;
            let ready = tentative.trim().is_empty() && !self.call(&link_local)?.trim().is_empty();
            Ok(ready.then_some(()))
        })
    }

    /// Returns the `nsenter` command that enters this machine from another terminal.
    pub fn nsenter(&self) -> String {
        let pid = std::process::id();
        let (net, mounts) = (self.net.as_raw_fd(), self.mounts.descriptor());
        format!("nsenter --net=/proc/{pid}/fd/{net} --mount=/proc/{pid}/fd/{mounts}")
    }

    /// Moves the calling thread into the mount and network namespaces.
    pub(crate) fn enter(&self) -> Result<()> {
        self.mounts.enter()?;
        setns(self.net.as_fd(), CloneFlags::CLONE_NEWNET)
            .context("cannot enter the network namespace")
    }
}

/// Returns a command with the `sbin` folders on its PATH, which not every user has, and the C
/// locale.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command
        .env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"))
        .env("LC_ALL", "C");
    command
}

fn path_of(name: &str) -> String {
    format!("/run/netns/{name}")
}
