//! Attaches programs to the node's cgroup by pinned links.
//!
//! A pinned link survives the agent; the next agent replaces the program in it, so that no socket
//! is missed. Foreign links on the same cgroup are not touched: the kernel runs all programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::programs::links::FdLink;
use aya::programs::{CgroupAttachMode, CgroupSockAddr, Program, ProgramError, ProgramFd, SockOps};
use nix::errno::Errno;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};
use steps::{CgroupCoverage, SocketHook, SocketHookState};

use crate::bpf::pins::Pins;
use crate::bpf::program_load::retry_interrupted;
use crate::bpf::{cgroup_coverage, pinned_link};
use crate::error::{Attempt as _, Failed, OpenError, io_error};
use crate::syscall::{Linked, ProgramLink};

/// Returns the root of the cgroup v2 hierarchy, wherever it is mounted. All sockets of the node are
/// below it. In a cgroup namespace, the node's own root may be mounted beside that of the
/// namespace; without it, returns the latter.
pub fn cgroup_root() -> io::Result<Option<PathBuf>> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let is_node_root =
        |point: &PathBuf| point.join("cgroup.procs").exists() && cgroup_coverage::is_root(point);
    Ok(root_mount(&mounts, is_node_root))
}

fn root_mount(mounts: &str, is_node_root: impl Fn(&PathBuf) -> bool) -> Option<PathBuf> {
    let all = || cgroup_mounts(mounts);
    let of_node = all().find(|(_, point)| is_node_root(point));
    let found = of_node.or_else(|| all().find(|(root, _)| *root == "/"));
    found.map(|(_, point)| point)
}

/// Returns root and mount point of each mount of type `cgroup2` (`proc_pid_mountinfo(5)`).
fn cgroup_mounts(mounts: &str) -> impl Iterator<Item = (&str, PathBuf)> {
    mounts.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (kind.starts_with("cgroup2 ")).then(|| (root, PathBuf::from(unescaped(point))))
    })
}

/// Returns whether the directory is the root of this process's cgroup namespace, and not that of
/// the hierarchy.
fn is_namespace_root(cgroup: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_mounted = cgroup_mounts(&mounts).any(|(root, point)| root == "/" && point == cgroup);
    is_mounted && !cgroup_coverage::is_root(cgroup)
}

/// Returns which processes of the node a cgroup contains that the operator has chosen, as an agent
/// with this cgroup finds it. An error: it is no cgroup of version 2, or cannot be read.
pub fn configured_cgroup(cgroup: &Path) -> io::Result<CgroupCoverage> {
    open_cgroup(cgroup)?;
    let cgroup = cgroup_coverage::resolved(cgroup);
    coverage(&cgroup, !is_namespace_root(&cgroup))
}

/// Opens the directory of a cgroup. A directory of another file system is refused.
fn open_cgroup(cgroup: &Path) -> io::Result<File> {
    let directory = File::open(cgroup)?;
    if fstatfs(&directory)?.filesystem_type() == CGROUP2_SUPER_MAGIC {
        return Ok(directory);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it is no directory of a cgroup2 file system",
    ))
}

fn coverage(cgroup: &Path, is_configured: bool) -> io::Result<CgroupCoverage> {
    let is_root = cgroup_coverage::is_root(cgroup);
    let outside = if is_root {
        BTreeSet::new()
    } else {
        cgroup_coverage::outside(cgroup)?
    };
    Ok(CgroupCoverage {
        is_root,
        is_configured,
        outside,
    })
}

/// Decodes blanks, tabs and backslashes, which mountinfo escapes as octal numbers.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
}

/// The cgroup, and the programs that are available for it.
pub(crate) struct Sockets {
    cgroup: Option<Cgroup>,
    links: PathBuf,
    /// Ids of the loaded programs.
    loaded: BTreeMap<SocketHook, u32>,
    unavailable: BTreeMap<SocketHook, String>,
}

struct Cgroup {
    directory: File,
    path: PathBuf,
    /// Whether the operator has chosen it, and it is not only the root of a cgroup namespace.
    is_configured: bool,
    id: u64,
}

/// A cgroup of the node's processes.
#[derive(Clone, Debug)]
pub struct NodeCgroup {
    /// Directory of cgroup2.
    pub path: PathBuf,
    /// Whether the operator has chosen it; else it is [`cgroup_root`].
    pub is_configured: bool,
}

impl Sockets {
    /// Loads the programs, if there is a cgroup. The maps of `object` must be loaded. A program
    /// that the kernel rejects is unavailable.
    pub(crate) fn load(
        object: &mut Ebpf,
        pins: &Pins,
        cgroup: Option<&NodeCgroup>,
    ) -> Result<Self, OpenError> {
        let mut sockets = Self {
            cgroup: None,
            links: pins.links(),
            loaded: BTreeMap::new(),
            unavailable: BTreeMap::new(),
        };
        let Some(NodeCgroup {
            path,
            is_configured,
        }) = cgroup
        else {
            let reason = "there is no cgroup".to_owned();
            sockets.unavailable = SocketHook::ALL.map(|hook| (hook, reason.clone())).into();
            return Ok(sockets);
        };
        let open = || format!("open cgroup {}", path.display());
        let directory = open_cgroup(path).attempt(open)?;
        let id = directory.metadata().attempt(open)?.ino();
        let path = cgroup_coverage::resolved(path);
        sockets.cgroup = Some(Cgroup {
            directory,
            is_configured: *is_configured && !is_namespace_root(&path),
            path,
            id,
        });
        for hook in SocketHook::ALL {
            match load(object, hook) {
                Ok(id) => {
                    sockets.loaded.insert(hook, id);
                }
                Err(error) => {
                    sockets.unavailable.insert(hook, error.to_string());
                }
            }
        }
        Ok(sockets)
    }

    /// Returns the hooks that cannot be attached, and why.
    pub(crate) fn unavailable(&self) -> &BTreeMap<SocketHook, String> {
        &self.unavailable
    }

    /// Returns which processes of the node the cgroup contains; `None` without a cgroup.
    pub(crate) fn coverage(&self) -> io::Result<Option<CgroupCoverage>> {
        let Some(cgroup) = &self.cgroup else {
            return Ok(None);
        };
        coverage(&cgroup.path, cgroup.is_configured).map(Some)
    }

    /// Returns the state of all hooks that can be attached.
    pub(crate) fn observe(&self) -> io::Result<BTreeMap<SocketHook, SocketHookState>> {
        let Some(cgroup) = &self.cgroup else {
            return Ok(BTreeMap::new());
        };
        self.loaded
            .iter()
            .map(|(hook, program)| {
                let ours = Linked {
                    program: *program,
                    target: cgroup.id,
                };
                let link = match ProgramLink::open(&self.pin(*hook))? {
                    None => SocketHookState::Absent,
                    Some(link) if link.linked()? == ours => SocketHookState::Attached,
                    Some(_) => SocketHookState::Outdated,
                };
                Ok((*hook, link))
            })
            .collect()
    }

    /// Attaches a hook's program, or updates the pinned link.
    pub(crate) fn attach(&self, object: &mut Ebpf, hook: SocketHook) -> Result<(), Failed> {
        let call = || format!("attach {hook} to the cgroup");
        let missing = || Failed::new(call(), Errno::EOPNOTSUPP);
        let cgroup = self.cgroup.as_ref().ok_or_else(missing)?;
        self.attach_to(cgroup, object, hook).attempt(call)
    }

    fn attach_to(&self, cgroup: &Cgroup, object: &mut Ebpf, hook: SocketHook) -> io::Result<()> {
        let pin = self.pin(hook);
        let mut program = program(object, hook)?;
        let descriptor = program.fd().map_err(|error| io_error(&error))?;
        if pinned_link::replace(&pin, cgroup.id, descriptor.as_fd())? {
            return Ok(());
        }
        pinned_link::keep(program.attach(&cgroup.directory)?, &pin)
    }

    /// Detaches a hook's program. A program that is not attached is success.
    pub(crate) fn detach(&self, hook: SocketHook) -> Result<(), Failed> {
        pinned_link::remove(&self.pin(hook)).attempt(|| format!("detach {hook} from the cgroup"))
    }

    fn pin(&self, hook: SocketHook) -> PathBuf {
        self.links.join(format!("cgroup-{hook}"))
    }
}

/// A program of a type that attaches to cgroups.
enum OnCgroup<'a> {
    /// Runs on bind, connect, sendmsg, recvmsg and getpeername.
    Address(&'a mut CgroupSockAddr),
    /// Runs on events of TCP connections.
    Connection(&'a mut SockOps),
}

impl OnCgroup<'_> {
    fn fd(&self) -> Result<&ProgramFd, ProgramError> {
        match self {
            Self::Address(program) => program.fd(),
            Self::Connection(program) => program.fd(),
        }
    }

    fn load(&mut self) -> Result<u32, ProgramError> {
        let info = match self {
            Self::Address(program) => {
                retry_interrupted(|| program.load()).and_then(|()| program.info())
            }
            Self::Connection(program) => {
                retry_interrupted(|| program.load()).and_then(|()| program.info())
            }
        };
        Ok(info?.id())
    }

    fn attach(&mut self, cgroup: &File) -> io::Result<FdLink> {
        let mode = CgroupAttachMode::Single;
        let link = match self {
            Self::Address(program) => {
                let link = program
                    .attach(cgroup, mode)
                    .and_then(|id| program.take_link(id));
                FdLink::try_from(link.map_err(|error| io_error(&error))?)
            }
            Self::Connection(program) => {
                let link = program
                    .attach(cgroup, mode)
                    .and_then(|id| program.take_link(id));
                FdLink::try_from(link.map_err(|error| io_error(&error))?)
            }
        };
        link.map_err(|error| io_error(&error))
    }
}

fn program(object: &mut Ebpf, hook: SocketHook) -> io::Result<OnCgroup<'_>> {
    match object.program_mut(hook.program()) {
        Some(Program::CgroupSockAddr(program)) => Ok(OnCgroup::Address(program)),
        Some(Program::SockOps(program)) => Ok(OnCgroup::Connection(program)),
        _ => Err(Errno::ENOENT.into()),
    }
}

/// Loads a program and returns its id.
fn load(object: &mut Ebpf, hook: SocketHook) -> io::Result<u32> {
    program(object, hook)?
        .load()
        .map_err(|error| io_error(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cgroup_mount(mounts: &str) -> Option<PathBuf> {
        root_mount(mounts, |_| false)
    }

    #[test]
    fn the_nodes_root_is_preferred_to_that_of_a_cgroup_namespace() {
        let mounts = "\
            30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
            31 23 0:26 /../.. /host/cgroup rw - cgroup2 cgroup2 rw\n";
        let node = PathBuf::from("/host/cgroup");
        assert_eq!(root_mount(mounts, |point| *point == node), Some(node));
        assert_eq!(cgroup_mount(mounts), Some("/sys/fs/cgroup".into()));
    }

    #[test]
    fn the_cgroup_root_is_found_at_any_mount_point() {
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup_mount(unified), Some("/sys/fs/cgroup".into()));
        let hybrid = "\
            40 32 0:35 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
            41 32 0:36 /part /part rw,relatime - cgroup2 cgroup2 rw\n\
            42 32 0:36 / /a\\040place rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup_mount(hybrid), Some("/a place".into()));
        assert_eq!(
            cgroup_mount("40 32 0:35 / /cpu rw - cgroup cgroup rw,cpu\n"),
            None
        );
    }
}
