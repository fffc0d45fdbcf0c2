//! A cgroup for each node, to which its agent attaches programs instead of to the root cgroup of
//! the machine that runs the tests.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

use crate::Machine;

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A cgroup without processes. Dropping it removes the cgroup.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates a cgroup below the root. Returns `None` where no cgroup2 is mounted.
    pub fn new() -> Result<Option<Self>> {
        let Some(root) = roots()?.into_iter().next() else {
            return Ok(None);
        };
        let path = make(&root)?;
        Ok(Some(Self { path }))
    }

    /// Returns its directory in the cgroup2 filesystem.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its directory as seen on `machine`, where another cgroup2 filesystem may be mounted
    /// over the one of this process.
    pub fn path_on(&self, machine: &Machine) -> Result<PathBuf> {
        let name = self.path.file_name().context("a cgroup has a name")?;
        let roots = machine.run(roots)?;
        let mut paths = roots.into_iter().map(|root| root.join(name));
        paths
            .find(|path| machine.run(|| path.exists()))
            .with_context(|| format!("no cgroup2 on {}", machine.name()))
    }
}

/// Returns the mount points of cgroup2 in the calling thread's mount namespace, hidden ones
/// included.
fn roots() -> Result<Vec<PathBuf>> {
    let table = std::fs::read_to_string("/proc/thread-self/mounts")?;
    let mounts = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .filter(|fields| fields.get(2) == Some(&"cgroup2"));
    Ok(mounts
        .filter_map(|fields| fields.get(1).map(PathBuf::from))
        .collect())
}

/// Creates a cgroup with an unused name: a killed process with the same ID may have left cgroups.
fn make(root: &Path) -> Result<PathBuf> {
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("viaduct-{}-{number}", std::process::id()));
        match std::fs::create_dir(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => {
                made.with_context(|| format!("cannot make {}", path.display()))?;
                return Ok(path);
            }
        }
    }
}

/// Runs `body` while this process is in `cgroup`, a child of the root. Sockets that `body` opens
/// stay members of that cgroup.
pub fn in_cgroup<T>(cgroup: &Path, body: impl FnOnce() -> T) -> Result<T> {
    let memberships = std::fs::read_to_string("/proc/self/cgroup")?;
    let own = memberships
        .lines()
        .find_map(|line| line.strip_prefix("0::/"));
    let root = cgroup.parent().context("a cgroup below the root")?;
    let own = root.join(own.context("this process is in no cgroup2")?);
    let enter = |path: &Path| {
        std::fs::write(path.join("cgroup.procs"), "0")
            .with_context(|| format!("cannot enter {}", path.display()))
    };
    enter(cgroup)?;
    let value = body();
    enter(&own)?;
    Ok(value)
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel detaches programs with the cgroup. A remaining process prevents the removal,
        // and the cgroup then shows up as residue.
        let _ = std::fs::remove_dir(&self.path);
    }
}
