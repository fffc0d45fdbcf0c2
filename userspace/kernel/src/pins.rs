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

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use abi::{Address, PrefixKey, maps};
use aya::maps::{MapInfo, MapType};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use crate::error::{Attempt as _, Failed, OpenError, io_error};
use crate::netlink::Netlink;
use crate::older_flows::OlderFlows;
use crate::tables::Tables;
use crate::{filters, pin_migration};

/// Type, key size, value size (both in bytes) and number of entries of a map.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    kind: MapType,
    key: usize,
    value: usize,
    capacity: u32,
}

impl Shape {
    const fn of<K, V>(kind: MapType, capacity: u32) -> Self {
        Self {
            kind,
            key: size_of::<K>(),
            value: size_of::<V>(),
            capacity,
        }
    }
}

impl Shape {
    fn is_good_for(self, wanted: Self) -> bool {
        let capacity = match wanted.capacity {
            ANY_NUMBER => self.capacity,
            number => number,
        };
        self == Self { capacity, ..wanted }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            kind,
            key,
            value,
            capacity,
        } = self;
        write!(
            f,
            "a {kind:?} of {capacity} entries of {key} bytes to {value}"
        )
    }
}

/// Name of the maps' directory, below [`version`]'s.
pub(crate) const MAP_PINS: &str = "maps";
/// Name of the links' directory, below [`version`]'s.
pub(crate) const LINK_PINS: &str = "links";

/// Returns the directory of this ABI version's pins.
pub(crate) fn version(bpffs: &Path) -> PathBuf {
    bpffs.join(pin_migration::directory(abi::ABI_VERSION))
}

/// Capacity that matches any other: the agent that created the map chose it.
const ANY_NUMBER: u32 = 0;

/// A map of the ABI, which is pinned by name.
pub(crate) struct PinnedMap {
    /// Name in the BPF object, and of the pin.
    pub(crate) name: &'static str,
    shape: Shape,
}

const fn map<K, V>(name: &'static str, kind: MapType, capacity: u32) -> PinnedMap {
    PinnedMap {
        name,
        shape: Shape::of::<K, V>(kind, capacity),
    }
}

/// All maps of the ABI, with their expected shapes.
pub(crate) const MAPS: [PinnedMap; 29] = [
    map::<abi::Tuple, abi::Flow>(maps::FLOWS, MapType::Hash, ANY_NUMBER),
    map::<(), abi::ClockEntry>(maps::TURNS, MapType::Queue, ANY_NUMBER),
    map::<u32, u64>(maps::LIVE, MapType::Array, maps::LIVE_CAPACITY),
    map::<u32, abi::Egress>(maps::EGRESS, MapType::Hash, maps::EGRESS_CAPACITY),
    map::<abi::FragmentKey, abi::Datagram>(
        maps::FRAGMENTS,
        MapType::Hash,
        maps::FRAGMENTS_CAPACITY,
    ),
    map::<u32, abi::DatagramRing>(maps::DATAGRAMS, MapType::Hash, maps::DATAGRAMS_CAPACITY),
    map::<abi::HeldKey, abi::HeldFragment>(maps::HELD, MapType::Hash, maps::HELD_CAPACITY),
    map::<u32, u64>(
        maps::IDENTIFICATIONS,
        MapType::Array,
        maps::IDENTIFICATIONS_CAPACITY,
    ),
    map::<u32, abi::Pod>(maps::PODS, MapType::Array, maps::PODS_CAPACITY),
    map::<u32, abi::Interface>(maps::INTERFACES, MapType::Hash, maps::INTERFACES_CAPACITY),
    map::<Address, abi::Endpoint>(maps::ENDPOINTS, MapType::Hash, maps::ENDPOINTS_CAPACITY),
    map::<abi::HostportKey, abi::Hostport>(
        maps::HOSTPORTS,
        MapType::Hash,
        maps::HOSTPORTS_CAPACITY,
    ),
    map::<u32, abi::Network>(maps::NETWORKS, MapType::Hash, maps::NETWORKS_CAPACITY),
    map::<abi::DialledKey, abi::Dialled>(maps::DIALLED, MapType::LruHash, maps::DIALLED_CAPACITY),
    map::<u32, abi::Uplink>(maps::UPLINKS, MapType::Hash, maps::UPLINKS_CAPACITY),
    map::<Address, u32>(maps::LOCALS, MapType::Hash, maps::LOCALS_CAPACITY),
    map::<PrefixKey, u32>(maps::PREFIXES, MapType::LpmTrie, maps::PREFIXES_CAPACITY),
    map::<u32, abi::Counters>(
        maps::COUNTERS,
        MapType::PerCpuArray,
        maps::COUNTERS_CAPACITY,
    ),
    map::<u32, abi::DropCount>(maps::DROPS, MapType::PerCpuArray, maps::DROP_REASONS),
    map::<u32, abi::Limit>(maps::LIMITS, MapType::Array, maps::LIMITS_CAPACITY),
    map::<(u32, abi::ShapedSubnetKey), u32>(maps::PEERS, MapType::LpmTrie, maps::PEERS_CAPACITY),
    map::<u32, abi::Bucket>(maps::BUCKETS, MapType::Array, maps::LIMITS_CAPACITY),
    map::<u32, abi::Shaped>(maps::SHAPED, MapType::PerCpuArray, maps::LIMITS_CAPACITY),
    map::<u64, u32>(maps::PACED, MapType::LruHash, maps::PACED_CAPACITY),
    map::<u64, u32>(maps::BOUNDED, MapType::LruHash, maps::BOUNDED_CAPACITY),
    map::<u32, abi::Settings>(maps::SETTINGS, MapType::Array, 1),
    map::<u32, abi::Swept>(maps::SWEPT, MapType::Array, 1),
    map::<u32, u64>(
        maps::EPOCHS,
        MapType::Array,
        maps::EPOCHS_OF_FLOWS + maps::SHARDS,
    ),
    map::<u32, abi::PendingCounters>(maps::NOTED, MapType::PerCpuArray, maps::NOTED_CAPACITY),
];

/// Returns whether a pinned map has the shape of the ABI's map of this name.
pub(crate) fn has_current_shape(pin: &Path, name: &str) -> bool {
    let wanted = MAPS.iter().find(|map| map.name == name);
    let found = MapInfo::from_pin(pin).ok().as_ref().and_then(shape);
    wanted
        .zip(found)
        .is_some_and(|(wanted, found)| found.is_good_for(wanted.shape))
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
        let path = self.map(maps::FLOWS);
        let older = self.older_flows.as_ref().map(OlderFlows::capacity);
        match MapInfo::from_pin(&path) {
            Ok(info) => Ok(Some(info.max_entries())),
            Err(error) => match io_error(&error) {
                error if error.kind() == io::ErrorKind::NotFound => Ok(older),
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
        let removed = self.older_flows.take().map_or(Ok(()), OlderFlows::remove);
        crash::point_at("remove-old-pins");
        removed
    }

    /// Checks that pinned maps have the expected shapes: the loader accepts any map of the right
    /// name.
    pub(crate) fn verify(&self) -> Result<(), OpenError> {
        for map in &MAPS {
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
            let found = shape(&info);
            if !found.is_some_and(|found| found.is_good_for(map.shape)) {
                return Err(OpenError::Map {
                    name: map.name,
                    found: found.map_or("of an unknown type".to_owned(), |found| found.to_string()),
                    expected: map.shape.to_string(),
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
        for entry in std::fs::read_dir(bpffs).attempt(call)? {
            let path = entry.attempt(call)?.path();
            // A new BPF file system may contain files that the kernel made.
            if path.is_dir() {
                std::fs::remove_dir_all(path).attempt(call)?;
            }
        }
        let parent = bpffs.parent().unwrap_or(bpffs);
        if !is_bpffs(parent).attempt(call)? {
            // The lock keeps the directory open, so the mount ends when it is closed.
            umount2(bpffs, MntFlags::MNT_DETACH).attempt(call)?;
        }
    }
    match std::fs::remove_dir(bpffs) {
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
        Netlink::open().and_then(|mut netlink| filters::detach_from_uplinks(&mut netlink));
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

fn shape(info: &MapInfo) -> Option<Shape> {
    Some(Shape {
        kind: info.map_type().ok()?,
        key: usize::try_from(info.key_size()).ok()?,
        value: usize::try_from(info.value_size()).ok()?,
        capacity: info.max_entries(),
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
