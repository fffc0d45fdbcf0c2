//! A mount namespace with its own `/run` and its own bpffs: nothing that is put there is seen outside or survives.

#![expect(
    clippy::disallowed_methods,
    reason = "a thread of the harness enters the namespaces that the harness made"
)]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

/// Where the sandbox mounts its bpffs.
const BPFFS: &str = "/sys/fs/bpf";

/// A mount namespace, held by a file descriptor.
#[derive(Clone, Debug)]
pub struct Mounts(Arc<OwnedFd>);

impl Mounts {
    /// A copy of the caller's mounts with a fresh tmpfs on `/run` and on `/var/lib/cni`, and a fresh bpffs on
    /// `/sys/fs/bpf`.
    pub fn new() -> Result<Self> {
        thread::spawn(make)
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))
            .context("cannot make a mount namespace (this needs root)")
    }

    /// Runs `body` on a thread inside.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        inside(|| self.enter(), body)
    }

    /// Moves the calling thread inside.
    pub(crate) fn enter(&self) -> Result<()> {
        unshare(CloneFlags::CLONE_FS).context("cannot leave the process's directories")?;
        setns(self.0.as_fd(), CloneFlags::CLONE_NEWNS).context("cannot enter the mount namespace")
    }

    /// The descriptor's number, for people who want to look around.
    pub fn descriptor(&self) -> i32 {
        std::os::fd::AsRawFd::as_raw_fd(&*self.0)
    }
}

/// Runs `body` on a thread that first does `enter`, and hands on what it returns or how it panics.
pub(crate) fn inside<T: Send>(
    enter: impl FnOnce() -> Result<()> + Send,
    body: impl FnOnce() -> T + Send,
) -> T {
    thread::scope(|scope| {
        let entered = move || {
            enter().expect("a namespace that we hold open can be entered");
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
    // Plugins and runtimes keep leases and results there.
    let cni = std::path::Path::new("/var/lib/cni");
    std::fs::create_dir_all(cni)?;
    mount(
        Some("tmpfs"),
        cni,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("mode=755"),
    )?;
    std::fs::create_dir("/run/netns")?;
    let held = File::open("/proc/thread-self/ns/mnt")?;
    Ok(Mounts(Arc::new(held.into())))
}
