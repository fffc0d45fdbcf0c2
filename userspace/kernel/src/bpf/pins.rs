//! Pinned maps, links and programs: one directory of a BPF file system for each ABI version.
//!
//! One agent at a time holds the lock of the directory.
//!
//! ```text
//! <bpffs>/v<ABI version>/maps/<NAME>
//! <bpffs>/v<ABI version>/links/<interface index>-{in,out,guard}
//! <bpffs>/v<ABI version>/links/cgroup-<program>
//! <bpffs>/v<ABI version>/programs/<digest>/<program>
//! ```

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use abi::maps;
use aya::maps::MapInfo;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::bpf::older_flows::OlderFlows;
use crate::bpf::pin_migration;
use crate::bpf::pinned_maps::{LINK_PINS, MAP_PINS, Shape};
use crate::bpf::tables::Tables;
use crate::error::{Attempt as _, Failed, OpenError, io_error};
use crate::netlink::clsact;
use crate::netlink::socket::Netlink;

/// Maps of earlier agents of this ABI version: no program uses them any more.
const RETIRED: [&str; 1] = ["NOTED"];

/// Returns the directory of this ABI version's pins.
pub(crate) fn version(bpffs: &Path) -> PathBuf {
    bpffs.join(pin_migration::directory(abi::ABI_VERSION))
}

/// The directory of this ABI version's pins. Holds its lock.
pub(crate) struct Pins {
    version: PathBuf,
    _lock: Flock<File>,
    /// Flow table of an older version, until its flows are copied.
    older_flows: Option<OlderFlows>,
}

impl Pins {
    /// Locks the pins, after mounting a BPF file system where there is none. Then creates the
    /// directories and migrates the pins of older ABI versions. Fails where a newer agent has
    /// pinned maps.
    pub(crate) fn open(bpffs: &Path) -> Result<Self, OpenError> {
        mount_bpffs(bpffs)?;
        let mut pins = Self {
            version: version(bpffs),
            _lock: lock(bpffs)?,
            older_flows: None,
        };
        pin_migration::refuse_newer(bpffs)?;
        for directory in [pins.maps(), pins.links()] {
            make(&directory).attempt(|| format!("create {}", directory.display()))?;
        }
        pins.older_flows = pin_migration::migrate_older(bpffs)?;
        Ok(pins)
    }

    /// Returns the directory of the maps.
    pub(crate) fn maps(&self) -> PathBuf {
        self.version.join(MAP_PINS)
    }

    /// Returns the path of a map's pin.
    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    /// Returns the directory of the links.
    pub(crate) fn links(&self) -> PathBuf {
        self.version.join(LINK_PINS)
    }

    /// Returns the directory of the program cache.
    pub(crate) fn programs(&self) -> PathBuf {
        self.version.join("programs")
    }

    /// Returns the number of entries of the pinned flow table, else of the older version's; `None`
    /// where none is pinned.
    pub(crate) fn flow_entries(&self) -> Result<Option<u32>, OpenError> {
        let older = self.older_flows.as_ref().map(OlderFlows::capacity);
        Ok(self.capacity(maps::FLOWS.name)?.or(older))
    }

    /// Returns the number of entries of a pinned map; `None` where none is pinned.
    pub(crate) fn capacity(&self, name: &str) -> Result<Option<u32>, OpenError> {
        let path = self.map(name);
        match MapInfo::from_pin(&path) {
            Ok(info) => Ok(Some(info.max_entries())),
            Err(error) => match io_error(&error) {
                error if error.kind() == io::ErrorKind::NotFound => Ok(None),
                error => Err(Failed::new(format!("open {}", path.display()), error).into()),
            },
        }
    }

    /// Copies the flows of an older version, where there is one, to our flow table.
    pub(crate) fn copy_older_flows(&mut self, tables: &mut Tables) -> io::Result<()> {
        match &mut self.older_flows {
            Some(older) => older.copy_to(&mut tables.flows),
            None => Ok(()),
        }
    }

    /// Copies the flows that the programs of an older version have created since, and removes its
    /// pins. All programs must be ours.
    pub(crate) fn finish_migration(&mut self, tables: &mut Tables) -> io::Result<()> {
        self.copy_older_flows(tables)?;
        for name in RETIRED {
            match fs::remove_file(self.map(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let removed = self.older_flows.take().map_or(Ok(()), OlderFlows::remove);
        crash::point_at("remove-old-pins");
        removed
    }

    /// Checks that pinned maps have the expected shapes: the loader accepts any map of the right
    /// name.
    pub(crate) fn verify(&self) -> Result<(), OpenError> {
        for map in maps::ALL {
            let path = self.map(map.name);
            let info = match MapInfo::from_pin(&path) {
                Ok(info) => info,
                Err(error) => match io_error(&error) {
                    error if error.kind() == io::ErrorKind::NotFound => continue,
                    error => {
                        return Err(Failed::new(format!("open {}", path.display()), error).into());
                    }
                },
            };
            let found = Shape::of(&info);
            let wanted = Shape::wanted(map, found);
            if found != Some(wanted) {
                return Err(OpenError::Map {
                    name: map.name,
                    found: found.map_or("of an unknown type".to_owned(), |found| found.to_string()),
                    expected: wanted.to_string(),
                    path: path.display().to_string(),
                });
            }
        }
        Ok(())
    }
}

/// Removes the programs of uplinks, the pins of all versions and, with them, all tables. Unmounts
/// the BPF file system if it was mounted only for these pins. Fails while an agent holds the lock.
pub fn remove_pins(bpffs: &Path) -> Result<(), OpenError> {
    if !bpffs.exists() {
        return Ok(detach_filters()?);
    }
    let call = || format!("remove {}", bpffs.display());
    if is_bpffs(bpffs).attempt(call)? {
        let _lock = lock(bpffs)?;
        detach_filters()?;
        for entry in fs::read_dir(bpffs).attempt(call)? {
            let path = entry.attempt(call)?.path();
            // A new BPF file system may contain files that the kernel made.
            if path.is_dir() {
                fs::remove_dir_all(path).attempt(call)?;
            }
        }
        let parent = bpffs.parent().unwrap_or(bpffs);
        if !is_bpffs(parent).attempt(call)? {
            // The lock keeps the directory open, so the mount ends when it is closed.
            umount2(bpffs, MntFlags::MNT_DETACH).attempt(call)?;
        }
    }
    match fs::remove_dir(bpffs) {
        // In the agent's unit the directory is a mount point below a read-only one: it stays empty.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::ResourceBusy | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            Ok(())
        }
        removed => Ok(removed.attempt(call)?),
    }
}

/// Detaches the uplinks' programs that are clsact filters (kernels without TCX): no pin holds them.
fn detach_filters() -> Result<(), Failed> {
    let detached =
        Netlink::open().and_then(|mut netlink| clsact::detach_from_uplinks(&mut netlink));
    detached.attempt(|| "detach the programs of uplinks".to_owned())
}

fn is_bpffs(directory: &Path) -> io::Result<bool> {
    Ok(statfs(directory)?.filesystem_type() == BPF_FS_MAGIC)
}

/// Locks the directory itself, because a BPF file system has no regular files.
fn lock(bpffs: &Path) -> Result<Flock<File>, OpenError> {
    let directory = File::open(bpffs).attempt(|| format!("open {}", bpffs.display()))?;
    Flock::lock(directory, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
        if errno == Errno::EWOULDBLOCK {
            OpenError::Locked(bpffs.to_owned())
        } else {
            Failed::new(format!("lock {}", bpffs.display()), errno).into()
        }
    })
}

fn mount_bpffs(directory: &Path) -> Result<(), OpenError> {
    if make(directory).is_err() {
        // Below /sys/fs/bpf, directories can be created only after a file system is mounted there.
        let parent = directory.parent().unwrap_or(directory);
        mount_at(parent)?;
        make(directory).attempt(|| format!("create {}", directory.display()))?;
    }
    if is_bpffs(directory).attempt(|| format!("read {}", directory.display()))? {
        Ok(())
    } else {
        mount_at(directory)
    }
}

fn mount_at(directory: &Path) -> Result<(), OpenError> {
    let mounted = mount(
        Some("bpf"),
        directory,
        Some("bpf"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        Some("mode=0700"),
    );
    Ok(mounted.attempt(|| format!("mount a BPF file system at {}", directory.display()))?)
}

/// Creates a directory and its parents, with mode 0700.
pub(crate) fn make(directory: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
}
