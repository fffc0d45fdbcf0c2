//! Reads and writes small files whose path comes from a request or from other software.
//!
//! Such a path may name anything. Only regular files are opened: no open waits for a FIFO's other
//! end, arms a device, or takes a controlling terminal. Files of the kernel, such as `/proc/kmsg`,
//! are regular by their type, but a read can wait for ever and take what others need: they are
//! refused by their file system. A lookup or a read can still wait for a remote file system, so
//! callers with other work call this on a separate thread.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::sys::statfs::{
    BPF_FS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC, FsType, NSFS_MAGIC,
    PROC_SUPER_MAGIC, SECURITYFS_MAGIC, SELINUX_MAGIC, SYSFS_MAGIC, TRACEFS_MAGIC, fstatfs,
};

/// Maximum file size in bytes: more than the longest CNI result that a runtime caches, and little
/// memory.
pub const MAX_BYTES: u64 = 4 << 20;

/// File systems whose files are interfaces of the kernel.
const KERNEL_FILE_SYSTEMS: [FsType; 10] = [
    BPF_FS_MAGIC,
    CGROUP_SUPER_MAGIC,
    CGROUP2_SUPER_MAGIC,
    DEBUGFS_MAGIC,
    NSFS_MAGIC,
    PROC_SUPER_MAGIC,
    SECURITYFS_MAGIC,
    SELINUX_MAGIC,
    SYSFS_MAGIC,
    TRACEFS_MAGIC,
];

/// Reads a UTF-8 file of at most [`MAX_BYTES`] bytes; a longer one is [`ErrorKind::FileTooLarge`],
/// and anything but a regular file [`ErrorKind::InvalidInput`].
pub fn read(path: impl AsRef<Path>) -> io::Result<String> {
    read_up_to(path, MAX_BYTES)
}

/// Reads a file as [`read`] does, of at most `max` bytes.
pub fn read_up_to(path: impl AsRef<Path>, max: u64) -> io::Result<String> {
    let located = locate(path.as_ref(), OFlag::empty())?;
    let length = located.metadata()?.len();
    if length > max {
        return Err(too_large(max));
    }
    let file = reopen(&located, OpenOptions::new().read(true))?;
    let mut text = String::new();
    file.take(max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > max {
        return Err(too_large(max));
    }
    Ok(text)
}

/// Replaces the contents of a regular file, or creates it with `mode`. Does not follow a symbolic
/// link.
pub fn write(path: impl AsRef<Path>, mode: u32, contents: &[u8]) -> io::Result<()> {
    let mut file = open_to_write(path, mode)?;
    file.set_len(0)?;
    file.write_all(contents)
}

/// Opens a regular file for writing, or creates it with `mode`. Does not follow a symbolic link.
pub fn open_to_write(path: impl AsRef<Path>, mode: u32) -> io::Result<File> {
    let path = path.as_ref();
    let mut options = OpenOptions::new();
    options.write(true).mode(mode);
    match locate(path, OFlag::O_NOFOLLOW) {
        Ok(located) => reopen(&located, &mut options),
        // An exclusive creation opens nothing that exists.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            match options.clone().create_new(true).open(path) {
                // Another process has created it since.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    reopen(&locate(path, OFlag::O_NOFOLLOW)?, &mut options)
                }
                created => created,
            }
        }
        Err(error) => Err(error),
    }
}

/// Finds a regular file without opening it: with `O_PATH`, no code of a device or FIFO runs.
fn locate(path: &Path, flags: OFlag) -> io::Result<File> {
    // Not `OpenOptions`: with musl, it takes O_PATH for an access mode and drops it.
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC | flags;
    let located = File::from(nix::fcntl::open(path, flags, Mode::empty())?);
    let is_kernels = || -> io::Result<bool> {
        let file_system = fstatfs(&located)?.filesystem_type();
        Ok(KERNEL_FILE_SYSTEMS.contains(&file_system))
    };
    if located.metadata()?.is_file() && !is_kernels()? {
        Ok(located)
    } else {
        Err(not_regular())
    }
}

/// Opens the file that `located` refers to, whatever is at its path now.
fn reopen(located: &File, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let path = format!("/proc/self/fd/{}", located.as_raw_fd());
    options.custom_flags(flags.bits()).open(path)
}

fn not_regular() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")
}

fn too_large(max: u64) -> io::Error {
    let why = format!("it has more than {max} bytes");
    io::Error::new(ErrorKind::FileTooLarge, why)
}

/// Reads the regular files of a directory: names and contents, in any order. Files that cannot be
/// read are left out, and so are those that `is_wanted` rejects by name. A directory that does not
/// exist has none.
pub fn read_directory(
    directory: impl AsRef<Path>,
    is_wanted: impl Fn(&str) -> bool,
) -> io::Result<Vec<(String, String)>> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| is_wanted(name)) else {
            continue;
        };
        if let Ok(text) = read(&path) {
            files.push((name.to_owned(), text));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_no_open_waits() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink(at("fifo"), at("to-fifo")).unwrap();
        std::os::unix::fs::symlink(at("loop"), at("loop")).unwrap();
        let others = [
            "/dev/zero",
            "/dev/tty",
            "/proc/kmsg",
            "/proc/self/mem",
            "/sys",
            "/",
        ];
        let own = ["fifo", "socket", "to-fifo"].map(at);
        for path in others.map(PathBuf::from).iter().chain(&own) {
            let error = read(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path:?}: {error}");
            let error = write(path, 0o600, b"a").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path:?}: {error}");
        }
        read(at("loop")).unwrap_err();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_file_is_created_or_replaced_and_a_symbolic_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write(at("a"), 0o600, b"longer").unwrap();
        write(at("a"), 0o600, b"new").unwrap();
        assert_eq!(read(at("a")).unwrap(), "new");
        std::os::unix::fs::symlink(at("a"), at("link")).unwrap();
        write(at("link"), 0o600, b"changed").unwrap_err();
        assert_eq!(read(at("link")).unwrap(), "new");
    }

    #[test]
    fn a_file_above_the_size_limit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let most = usize::try_from(MAX_BYTES).unwrap();
        for (length, fits) in [(0, true), (most, true), (most + 1, false)] {
            std::fs::write(&path, "a".repeat(length)).unwrap();
            let read = read(&path);
            assert_eq!(
                read.is_ok_and(|text| text.len() == length),
                fits,
                "{length}"
            );
        }
        assert_eq!(
            read(folder.path().join("b")).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }

    #[test]
    fn only_wanted_regular_files_of_a_directory_are_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.conf"), "a").unwrap();
        std::fs::write(folder.path().join("b.txt"), "b").unwrap();
        std::fs::create_dir(folder.path().join("c.conf")).unwrap();
        let files =
            read_directory(folder.path(), |name| name == "a.conf" || name == "c.conf").unwrap();
        assert_eq!(files, [("a.conf".to_owned(), "a".to_owned())]);
        let none = read_directory(folder.path().join("d"), |_| true).unwrap();
        assert!(none.is_empty());
    }
}
