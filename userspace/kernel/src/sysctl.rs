//! Sysctls below `/proc/sys`, of the namespace that the calling thread is in.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};

use planner::SysctlKey;

/// Long enough for nearly every value: the kernel clears as much memory as it is asked for, whatever it has to say.
const USUAL: usize = 4 << 10;
/// Longest value that is read. Sets of ports are the longest: every other one of 65536 takes 192 KiB.
const LONGEST: usize = 256 << 10;

/// The value without the line's end; `None` when the kernel has no such sysctl.
///
/// Read at once: of a set of ports the kernel gives as much as fits into the first read, and nothing behind that.
pub(crate) fn read(key: &SysctlKey) -> io::Result<Option<String>> {
    match File::open(path(key)?) {
        Ok(file) => value(&file).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn value(file: &File) -> io::Result<String> {
    let mut value = first(file, USUAL)?;
    if value.len() == USUAL {
        value = first(file, LONGEST)?;
    }
    let text = String::from_utf8(value).map_err(io::Error::other)?;
    Ok(text.trim_end().to_owned())
}

/// What one read from the beginning gives.
fn first(file: &File, most: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; most];
    let length = file.read_at(&mut buffer, 0)?;
    buffer.truncate(length);
    Ok(buffer)
}

/// Writes a value, unless it is that already: writing `forwarding` again would reset what depends on it.
///
/// Opened once: the kernel looks for a sysctl among those of all namespaces that anybody has opened one of.
pub(crate) fn write(key: &SysctlKey, new: &str) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path(key)?)?;
    if value(&file)? == new {
        return Ok(());
    }
    // An empty write is none at all, and an empty line empties a set.
    file.write_all_at(format!("{new}\n").as_bytes(), 0)?;
    crash::point();
    Ok(())
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
