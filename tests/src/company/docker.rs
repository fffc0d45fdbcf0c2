//! Docker: the daemon with its bridge, its rules in both families, and containers.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;

use super::neighbour::{self, ARCHIVE, COMMAND, Container, IMAGE};
use super::tools::{has_program, newest};
use crate::containers::unified_cgroups;
use crate::{Cgroup, Machine, Process, until};

/// State of the daemon, inside the sandbox.
const STATE: &str = "/run/company/docker";
const SOCKET: &str = "unix:///run/company/docker.sock";

/// Debian's release of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DockerRelease {
    /// The installed one.
    Installed,
    /// The one of Debian's newest suite, below `target/tools`.
    Newest,
}

impl DockerRelease {
    /// Returns whether the release and the programs that it needs are there.
    pub fn is_here(self) -> bool {
        let helpers = ["docker", "runc", "containerd"];
        let daemon = match self {
            Self::Installed => has_program("dockerd"),
            Self::Newest => newest("docker", "dockerd").is_some(),
        };
        daemon && helpers.into_iter().all(has_program)
    }
}

/// Flags of a daemon that writes rules of both families.
const RULES: [&str; 6] = [
    "--iptables=true",
    // Until release 27 the rules of IPv6 are an experiment.
    "--experimental",
    "--ip6tables=true",
    "--ipv6",
    "--fixed-cidr-v6=fd00:17::/64",
    "--storage-driver=vfs",
];

/// Flags of a daemon without a bridge of its own.
const BARE: [&str; 4] = [
    "--iptables=false",
    // Since release 27 it is on by itself.
    "--ip6tables=false",
    "--bridge=none",
    "--storage-driver=vfs",
];

/// Flags of a daemon with its own settings: a bridge, rules of IPv4, and a process for each
/// published port.
const OWN: [&str; 2] = ["--iptables=true", "--storage-driver=vfs"];

/// Published ports are left to rules: no process listens on them.
const WITHOUT_PROXY: &str = "--userland-proxy=false";

/// Containers stay while the daemon is gone.
const LIVE_RESTORE: &str = "--live-restore";

/// A running daemon. Dropping it removes its containers and ends it.
#[derive(Debug)]
pub struct Docker {
    node: Machine,
    words: Vec<String>,
    daemon: Option<Process>,
    /// The parent of the containers' cgroups.
    _cgroup: Option<Cgroup>,
}

impl Docker {
    /// Starts a daemon that writes rules of both families, waits until it answers, and imports the
    /// image.
    pub fn start(node: &Machine, release: DockerRelease) -> Result<Self> {
        Self::start_with(node, release, &RULES)
    }

    /// Starts a daemon as [`Docker::start`] does, which has no bridge and writes no rules.
    pub fn without_bridge(node: &Machine, release: DockerRelease) -> Result<Self> {
        Self::start_with(node, release, &BARE)
    }

    /// Starts a daemon as [`Docker::without_bridge`] does, whose containers stay while it is gone.
    pub fn with_live_restore(node: &Machine, release: DockerRelease) -> Result<Self> {
        Self::start_with(node, release, &[&BARE[..], &[LIVE_RESTORE]].concat())
    }

    /// Starts a daemon with its own settings, with a process for each published port or without.
    pub fn with_bridge(node: &Machine, release: DockerRelease, has_proxy: bool) -> Result<Self> {
        let mut flags = OWN.to_vec();
        if !has_proxy {
            flags.push(WITHOUT_PROXY);
        }
        Self::start_with(node, release, &flags)
    }

    fn start_with(node: &Machine, release: DockerRelease, flags: &[&str]) -> Result<Self> {
        unified_cgroups(node)?;
        let cgroup = Cgroup::new()?;
        let mut docker = Self {
            node: node.clone(),
            words: words(release, flags, cgroup.as_ref())?,
            daemon: None,
            _cgroup: cgroup,
        };
        docker.launch()?;
        neighbour::make_archive(node)?;
        docker.call(&format!("import {ARCHIVE} {IMAGE}"))?;
        Ok(docker)
    }

    fn launch(&mut self) -> Result<()> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let daemon = Process::start(&self.node, &words)?;
        let answers = until("dockerd answers", || {
            if let Some(status) = daemon.ended()? {
                bail!("dockerd exited during start ({status})");
            }
            Ok(self.call("version").ok())
        });
        if let Err(error) = answers {
            bail!("{error:#}; its output:\n{}", daemon.kill_and_read_output());
        }
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Ends the daemon by this signal, and waits until it is gone.
    pub fn end(&mut self, signal: Signal) -> Result<()> {
        let daemon = self.daemon.take().context("the daemon does not run")?;
        daemon.end(signal).map(drop)
    }

    /// Starts the daemon again, and waits until it answers.
    pub fn start_again(&mut self) -> Result<()> {
        self.launch()
    }

    /// Runs the client with the arguments in `line`, and returns its output.
    pub fn call(&self, line: &str) -> Result<String> {
        self.node.call(&format!("docker --host {SOCKET} {line}"))
    }

    /// Returns the version of the daemon.
    pub fn version(&self) -> Result<String> {
        let version = self.call("version --format {{.Server.Version}}")?;
        let number = version.trim().split('+').next();
        Ok(number.unwrap_or_default().to_owned())
    }

    /// Starts a container of this name. Its `port` is published as `published`, for TCP and UDP.
    pub fn run(&self, name: &str, published: u16, port: u16) -> Result<Container> {
        self.run_with(name, &neighbour::publish(published, port))?;
        Ok(Container {
            machine: self.namespace(name)?,
            published,
            port,
        })
    }

    /// Starts a container of this name with these options.
    pub fn run_with(&self, name: &str, options: &str) -> Result<()> {
        let command = COMMAND.join(" ");
        self.call(&format!(
            "run --detach --name {name} {options} {IMAGE} {command}"
        ))
        .with_context(|| format!("the daemon printed:\n{}", self.log()))
        .map(drop)
    }

    /// Returns the network namespace of a container.
    pub fn namespace(&self, name: &str) -> Result<Machine> {
        let process = self.call(&format!("inspect --format {{{{.State.Pid}}}} {name}"))?;
        neighbour::of_process(&self.node, name, &process)
    }

    /// Returns the IPv4 address of a container on a network.
    pub fn address(&self, container: &str, network: &str) -> Result<IpAddr> {
        let format = format!("{{{{.NetworkSettings.Networks.{network}.IPAddress}}}}");
        let shown = self.call(&format!("inspect --format {format} {container}"))?;
        let address = shown.trim().parse();
        address.with_context(|| format!("{container}: {shown}"))
    }

    /// Returns the output of the daemon so far.
    pub fn log(&self) -> String {
        self.daemon
            .as_ref()
            .map(Process::output)
            .unwrap_or_default()
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let listed = self.call("ps --all --quiet").unwrap_or_default();
        let containers = listed.split_whitespace().collect::<Vec<_>>().join(" ");
        if !containers.is_empty() {
            let _gone = self.call(&format!("rm --force {containers}"));
        }
        // SIGTERM, so that it ends its containerd too.
        let _ended = self.daemon.take().map(|daemon| daemon.end(Signal::SIGTERM));
    }
}

/// Returns the daemon's command line.
fn words(release: DockerRelease, flags: &[&str], cgroup: Option<&Cgroup>) -> Result<Vec<String>> {
    let folder = match release {
        DockerRelease::Installed => PathBuf::from("/usr/sbin"),
        DockerRelease::Newest => {
            let found = newest("docker", "dockerd");
            found
                .context("there is no newer Docker below target/tools")?
                .1
        }
    };
    let mut words = vec![
        folder.join("dockerd").display().to_string(),
        format!(
            "--userland-proxy-path={}",
            folder.join("docker-proxy").display()
        ),
        format!("--data-root={STATE}/data"),
        format!("--exec-root={STATE}/exec"),
        format!("--pidfile={STATE}.pid"),
        format!("--host={SOCKET}"),
    ];
    words.extend(flags.iter().map(ToString::to_string));
    if let Some(name) = cgroup.and_then(|it| it.path().file_name()) {
        words.push(format!("--cgroup-parent=/{}", name.display()));
    }
    Ok(words)
}
