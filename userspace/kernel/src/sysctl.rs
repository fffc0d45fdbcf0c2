//! Reads and writes sysctls below `/proc/sys`, of the namespace that the calling thread is in.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};

use steps::SysctlKey;

/// First read size, enough for nearly every value: the kernel allocates and clears as many bytes as
/// are requested.
const FIRST_READ: usize = 4 << 10;
/// Longest value that is read. Port sets are the longest: every other one of 65536 ports takes 192
/// KiB.
const LONGEST: usize = 256 << 10;

/// Reads a value, without the line's end. `None` when the kernel has no such sysctl.
///
/// The value is read in one call: of a port set, the kernel returns what fits into the first read,
/// and nothing for later offsets.
pub(crate) fn read(key: &SysctlKey) -> io::Result<Option<String>> {
    match File::open(path(key)?) {
        Ok(file) => value(&file).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn value(file: &File) -> io::Result<String> {
    let mut value = read_once(file, FIRST_READ)?;
    if value.len() == FIRST_READ {
        value = read_once(file, LONGEST)?;
    }
    let text = String::from_utf8(value).map_err(io::Error::other)?;
    Ok(text.trim_end().to_owned())
}

/// Reads at most `limit` bytes from the beginning, in one call.
fn read_once(file: &File, limit: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; limit];
    let length = file.read_at(&mut buffer, 0)?;
    buffer.truncate(length);
    Ok(buffer)
}

/// Writes a value, unless the sysctl has it already: writing `forwarding` again would reset the
/// settings that depend on it.
///
/// The file is opened once, because to open a sysctl the kernel searches those of all namespaces
/// that have been opened before.
pub(crate) fn write(key: &SysctlKey, new: &str) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path(key)?)?;
    if value(&file)? == new {
        return Ok(());
    }
    // The kernel ignores an empty write; an empty line clears a port set.
    file.write_all_at(format!("{new}\n").as_bytes(), 0)?;
    crash::point();
    Ok(())
}

/// Writes a value if the kernel has the sysctl: a kernel without IPv6 has none of IPv6's.
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
