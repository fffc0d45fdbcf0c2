//! A cgroup for a node: its agent attaches programs there and not to the root of the machine that the tests run on.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A cgroup without processes. Dropping it removes it.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// A new cgroup below the root; `None` where there is no cgroup2.
    pub fn new() -> Result<Option<Self>> {
        let table = std::fs::read_to_string("/proc/self/mounts")?;
        let mut mounts = table
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = mounts.find(|fields| fields.get(2) == Some(&"cgroup2"));
        let Some(root) = mount.and_then(|fields| fields.get(1).map(PathBuf::from)) else {
            return Ok(None);
        };
        let path = make(&root)?;
        Ok(Some(Self { path }))
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Makes a cgroup that nobody has: a process with our id that was killed may have left its own behind.
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

/// Runs `body` while this process is in `cgroup`, a child of the root: sockets that it opens belong there for as long as
/// they live.
pub fn within<T>(cgroup: &Path, body: impl FnOnce() -> T) -> Result<T> {
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
        // Programs that are still attached go with it; a process that is still in it keeps it, and shows as a residue.
        let _ = std::fs::remove_dir(&self.path);
    }
}
