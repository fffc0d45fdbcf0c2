//! Sysctls below `/proc/sys`, of the namespace that the calling thread is in.

use std::io;
use std::path::{Component, Path, PathBuf};

use planner::SysctlKey;

/// The value without the line's end; `None` when the kernel has no such sysctl.
pub(crate) fn read(key: &SysctlKey) -> io::Result<Option<String>> {
    match std::fs::read_to_string(path(key)?) {
        Ok(value) => Ok(Some(value.trim_end().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a value, unless it is that already: writing `forwarding` again would reset what depends on it.
pub(crate) fn write(key: &SysctlKey, value: &str) -> io::Result<()> {
    if read(key)?.as_deref() == Some(value) {
        return Ok(());
    }
    std::fs::write(path(key)?, value)
}

/// Writes a value if the kernel has the sysctl: a kernel without IPv6 needs none of IPv6's.
pub(crate) fn write_if_present(key: &str, value: &str) -> io::Result<()> {
    match std::fs::write(Path::new("/proc/sys").join(key), value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn path(key: &SysctlKey) -> io::Result<PathBuf> {
    let below = Path::new(&key.0);
    let plain = |part| matches!(part, Component::Normal(_));
    if below.components().all(plain) {
        Ok(Path::new("/proc/sys").join(below))
    } else {
        Err(io::Error::from(io::ErrorKind::InvalidInput))
    }
}
