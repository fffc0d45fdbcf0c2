//! Lease files in the format of the reference plugin host-local (behaviour R11).
//!
//! | File below `<dataDir>/<network>/` | Content |
//! |---|---|
//! | `<address>` | `container\r\nifname` |
//! | `last_reserved_ip.<set>` | address that the range set allocated last |
//! | `lock` | empty; locked by a process that changes leases |
//! | `lease.draft` | content of a lease file that is being written |
//!
//! With these files a node can migrate from the reference plugin to Viaduct and back without a
//! duplicate address. This module does not choose addresses.
//!
//! The agent has its own records, and mirrors its leases here only for host-local. A mirrored file
//! ends with `\r\n`, which host-local trims. The agent ignores mirrored files, so one that a lost
//! DEL or a reboot left behind reserves no address.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use model::{AttachmentKey, ContainerId, IfName, NetworkName};

/// Default of host-local's `dataDir`.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

const LOCK: &str = "lock";
const LAST_RESERVED: &str = "last_reserved_ip.";
/// Lease that is being written. The name is no address, so neither host-local nor this module lists
/// it as a lease.
const DRAFT: &str = "lease.draft";

/// Maximum size of a lease file in bytes: a container ID and an interface name.
const MAX_LEASE_BYTES: u64 = 64 << 10;

/// Number of tries to lock. A lock that another process holds is given up after five seconds:
/// changing leases takes milliseconds.
const LOCK_TRIES: u32 = 1000;

/// Time between two tries to lock.
const LOCK_POLL: Duration = Duration::from_millis(5);

/// Ends a lease file that mirrors a record of the agent.
const MIRROR_SUFFIX: &str = "\r\n";

/// Lease files of one network.
#[derive(Clone, Debug)]
pub struct LeaseFolder {
    path: PathBuf,
    network: NetworkName,
}

/// Exclusive lock on the leases of a network, released on drop.
#[derive(Debug)]
pub struct Locked<'a> {
    folder: &'a LeaseFolder,
    /// Open file that holds the lock.
    _lock: File,
}

/// Owner of an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// Container ID.
    pub container_id: String,
    /// Name of the interface; `None` in files of old versions of host-local.
    pub ifname: Option<String>,
}

/// Returns the folders of all networks below `data_dir`, or below [`DEFAULT_DATA_DIR`]; none if
/// there is no such directory. Folders whose name is no network's are skipped.
pub fn folders(data_dir: Option<&Path>) -> io::Result<Vec<LeaseFolder>> {
    let entries = match fs::read_dir(data_dir.unwrap_or(Path::new(DEFAULT_DATA_DIR))) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let network = name
            .to_str()
            .and_then(|name| name.parse::<NetworkName>().ok());
        if let Some(network) = network.filter(|_| entry.path().is_dir()) {
            folders.push(LeaseFolder::new(data_dir, &network));
        }
    }
    Ok(folders)
}

impl LeaseFolder {
    /// Returns the directory of `network` below `data_dir`, or below [`DEFAULT_DATA_DIR`].
    pub fn new(data_dir: Option<&Path>, network: &NetworkName) -> Self {
        let parent = data_dir.unwrap_or(Path::new(DEFAULT_DATA_DIR));
        Self {
            path: parent.join(network.as_str()),
            network: network.clone(),
        }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns all leases; none if the directory does not exist. A name that is no lease file has
    /// no owner, and is left out.
    pub fn leases(&self) -> io::Result<BTreeMap<IpAddr, Owner>> {
        Ok(self
            .texts()?
            .into_iter()
            .filter_map(|(address, text)| Some((address, owner(&text?))))
            .collect())
    }

    /// Returns the addresses and contents of the lease files; `None` for an entry that is not a
    /// regular file of a lease's size.
    fn texts(&self) -> io::Result<Vec<(IpAddr, Option<String>)>> {
        let mut leases = Vec::new();
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(leases),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let address: Option<IpAddr> = entry.file_name().to_str().and_then(|n| n.parse().ok());
            let Some(address) = address else { continue };
            match crate::small_files::read_up_to(entry.path(), MAX_LEASE_BYTES) {
                Ok(text) => leases.push((address, Some(text))),
                Err(error) if is_no_lease(error.kind()) => leases.push((address, None)),
                // Released since the directory was listed.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(leases)
    }

    /// Returns all leases with their attachments. An invalid owner becomes the attachment
    /// `unknown`, so that its address stays taken.
    pub fn taken(&self) -> io::Result<BTreeMap<IpAddr, AttachmentKey>> {
        Ok(self.keys(self.texts()?))
    }

    /// Returns the leases of host-local, without those that the agent mirrored.
    pub fn taken_by_host_local(&self) -> io::Result<BTreeMap<IpAddr, AttachmentKey>> {
        let is_mirrored = |text: &Option<String>| {
            text.as_ref()
                .is_some_and(|text| text.ends_with(MIRROR_SUFFIX))
        };
        let mut texts = self.texts()?;
        texts.retain(|(_, text)| !is_mirrored(text));
        Ok(self.keys(texts))
    }

    fn keys(&self, texts: Vec<(IpAddr, Option<String>)>) -> BTreeMap<IpAddr, AttachmentKey> {
        texts
            .into_iter()
            .map(|(address, text)| (address, self.key(&owner(&text.unwrap_or_default()))))
            .collect()
    }

    /// Returns the address that each range set allocated last, by the index of the set.
    pub fn last_reserved(&self) -> io::Result<BTreeMap<usize, IpAddr>> {
        let mut last = BTreeMap::new();
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(last),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let set = name
                .to_str()
                .and_then(|name| name.strip_prefix(LAST_RESERVED));
            let Some(set) = set.and_then(|set| set.parse::<usize>().ok()) else {
                continue;
            };
            let text = crate::small_files::read_up_to(entry.path(), MAX_LEASE_BYTES)?;
            last.extend(text.trim().parse().ok().map(|address| (set, address)));
        }
        Ok(last)
    }

    fn key(&self, owner: &Owner) -> AttachmentKey {
        let id = owner.container_id.parse::<ContainerId>();
        let ifname = owner
            .ifname
            .as_deref()
            .unwrap_or("unknown")
            .parse::<IfName>();
        let network = self.network.clone();
        match (id, ifname) {
            (Ok(container_id), Ok(ifname)) => AttachmentKey {
                network,
                container_id,
                ifname,
            },
            _ => AttachmentKey {
                network,
                container_id: "unknown".parse().expect("letters are a container ID"),
                ifname: "unknown"
                    .parse()
                    .expect("seven letters are an interface name"),
            },
        }
    }

    /// Makes the directory if it is missing, and waits for the exclusive lock, for at most five
    /// seconds.
    pub fn lock(&self) -> io::Result<Locked<'_>> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o755).create(&self.path)?;
        let lock = crate::small_files::open_to_write(self.path.join(LOCK), 0o644)?;
        for _ in 0..LOCK_TRIES {
            match lock.try_lock() {
                Ok(()) => {
                    let locked = Locked {
                        folder: self,
                        _lock: lock,
                    };
                    // A draft is of a process that died: a running writer would hold the lock. If
                    // it cannot be removed, only the next write fails.
                    let _left = locked.remove_draft();
                    return Ok(locked);
                }
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) => thread::sleep(LOCK_POLL),
            }
        }
        Err(io::Error::new(
            ErrorKind::TimedOut,
            "another process holds their lock",
        ))
    }

    /// Returns whether the directory exists; without it there is nothing to release.
    pub fn exists(&self) -> bool {
        self.path.is_dir()
    }
}

impl Locked<'_> {
    /// Writes a lease of host-local. Fails if the address has a lease.
    pub fn reserve(&self, address: IpAddr, owner: &Owner) -> io::Result<()> {
        self.write(address, owner, "")
    }

    /// Writes a lease that mirrors a record of the agent. Replaces a mirrored lease; fails if
    /// host-local has leased the address.
    pub fn mirror(&self, address: IpAddr, owner: &Owner) -> io::Result<()> {
        let path = self.file(&address.to_string());
        match crate::small_files::read_up_to(&path, MAX_LEASE_BYTES) {
            // The agent's record is authoritative: this mirrored lease is outdated.
            Ok(text) if text.ends_with(MIRROR_SUFFIX) => fs::remove_file(&path)?,
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
        self.write(address, owner, MIRROR_SUFFIX)
    }

    /// Writes a lease file, which is complete as soon as it exists: no DEL would release a file
    /// without an owner, which a killed process left. Fails if the address has a lease.
    fn write(&self, address: IpAddr, owner: &Owner, end: &str) -> io::Result<()> {
        let ifname = owner.ifname.as_deref().unwrap_or_default();
        let text = format!("{}\r\n{ifname}{end}", owner.container_id);
        // Removed and not truncated: it may be a second name of a lease file.
        self.remove_draft()?;
        let draft = self.file(DRAFT);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).open(&draft)?;
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| fs::hard_link(&draft, self.file(&address.to_string())));
        // The next lock removes a draft that is left.
        let _left = self.remove_draft();
        written
    }

    fn remove_draft(&self) -> io::Result<()> {
        match fs::remove_file(self.file(DRAFT)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Writes the address that a range set allocated last.
    pub fn put_last_reserved(&self, set: usize, address: IpAddr) -> io::Result<()> {
        let path = self.file(&format!("{LAST_RESERVED}{set}"));
        crate::small_files::write(path, 0o644, address.to_string().as_bytes())
    }

    /// Releases the leases of `owner` and returns their addresses. A lease without an interface
    /// belongs to every interface of its container.
    pub fn release(&self, owner: &Owner) -> io::Result<Vec<IpAddr>> {
        let own = self.folder.leases()?.into_iter().filter(|(_, other)| {
            other.container_id == owner.container_id
                && (other.ifname.is_none() || other.ifname == owner.ifname)
        });
        let mut released = Vec::new();
        for (address, _) in own {
            match fs::remove_file(self.file(&address.to_string())) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => released.push(address),
            }
        }
        Ok(released)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path.join(name)
    }
}

/// Returns whether a read failed because the file is no lease: no regular file, too large, or no
/// text.
fn is_no_lease(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::InvalidInput | ErrorKind::FileTooLarge | ErrorKind::InvalidData
    )
}

fn owner(text: &str) -> Owner {
    let mut lines = text.lines().map(str::trim);
    let container_id = lines.next().unwrap_or_default().to_owned();
    let ifname = lines.next().filter(|name| !name.is_empty());
    Owner {
        container_id,
        ifname: ifname.map(str::to_owned),
    }
}

#[cfg(test)]
mod tests;
