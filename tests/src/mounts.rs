//! A mount namespace with its own `/run` and bpffs, whose files are invisible outside and do not
//! outlive it.

#![expect(
    clippy::disallowed_methods,
    reason = "a thread of the harness enters the namespaces that the harness created"
)]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

/// Mount point of the sandbox's bpffs.
const BPFFS: &str = "/sys/fs/bpf";

/// A mount namespace, held by a file descriptor.
#[derive(Clone, Debug)]
pub struct Mounts(Arc<OwnedFd>);

impl Mounts {
    /// Creates a copy of the caller's mounts with a new tmpfs on `/run`, `/var/lib/cni` and
    /// `/dev/shm`, and a new bpffs on `/sys/fs/bpf`.
    pub fn new() -> Result<Self> {
        thread::spawn(make)
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))
            .context("cannot create a mount namespace (this needs root)")
    }

    /// Runs `body` on a thread in the mount namespace.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        inside(|| self.enter(), body)
    }

    /// Moves the calling thread into the mount namespace.
    pub(crate) fn enter(&self) -> Result<()> {
        unshare(CloneFlags::CLONE_FS).context("cannot unshare the filesystem attributes")?;
        setns(self.0.as_fd(), CloneFlags::CLONE_NEWNS).context("cannot enter the mount namespace")
    }

    /// Returns the descriptor's number, for an `nsenter` command.
    pub fn descriptor(&self) -> i32 {
        std::os::fd::AsRawFd::as_raw_fd(&*self.0)
    }
}

/// Runs `body` on a thread after `enter`; returns its value or propagates its panic.
pub(crate) fn inside<T: Send>(
    enter: impl FnOnce() -> Result<()> + Send,
    body: impl FnOnce() -> T + Send,
) -> T {
    thread::scope(|scope| {
        let entered = move || {
            enter().expect("an open namespace can be entered");
            body()
        };
        scope
            .spawn(entered)
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn make() -> Result<Mounts> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let nothing = None::<&str>;
    mount(
        nothing,
        "/",
        nothing,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        nothing,
    )?;
    mount(
        Some("tmpfs"),
        "/run",
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=755"),
    )?;
    mount(
        Some("bpf"),
        BPFFS,
        Some("bpf"),
        MsFlags::empty(),
        Some("mode=700"),
    )?;
    // Plugins and runtimes store leases and results there.
    let cni = std::path::Path::new("/var/lib/cni");
    std::fs::create_dir_all(cni)?;
    mount(
        Some("tmpfs"),
        cni,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=755"),
    )?;
    // podman creates its locks there, under one name on the whole machine.
    mount(
        Some("tmpfs"),
        "/dev/shm",
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=1777"),
    )?;
    std::fs::create_dir("/run/netns")?;
    let held = File::open("/proc/thread-self/ns/mnt")?;
    Ok(Mounts(Arc::new(held.into())))
}
