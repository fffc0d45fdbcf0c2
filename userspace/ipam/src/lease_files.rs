//! Lease files in the format of the reference plugin host-local (behaviour R11).
//!
//! | File below `<dataDir>/<network>/` | Content |
//! |---|---|
//! | `<address>` | `container\r\nifname` |
//! | `last_reserved_ip.<set>` | address that the range set allocated last |
//! | `lock` | empty; locked by a process that changes leases |
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
                    return Ok(Locked {
                        folder: self,
                        _lock: lock,
                    });
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

    fn write(&self, address: IpAddr, owner: &Owner, end: &str) -> io::Result<()> {
        let path = self.file(&address.to_string());
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).open(&path)?;
        let ifname = owner.ifname.as_deref().unwrap_or_default();
        let written = write!(file, "{}\r\n{ifname}{end}", owner.container_id);
        written.inspect_err(|_| drop(fs::remove_file(&path)))
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
mod tests {
    use super::*;

    #[test]
    fn the_folders_of_all_networks_are_listed_and_other_files_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("none");
        assert!(folders(Some(&missing)).unwrap().is_empty());
        for network in ["one", "two"] {
            fs::create_dir(directory.path().join(network)).unwrap();
        }
        fs::write(directory.path().join("one/10.9.0.2"), "c1\r\neth0").unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        let found = folders(Some(directory.path())).unwrap();
        assert_eq!(found.len(), 2);
        let taken: Vec<IpAddr> = found
            .iter()
            .flat_map(|folder| folder.taken_by_host_local().unwrap().into_keys())
            .collect();
        assert_eq!(taken, ["10.9.0.2".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn an_entry_that_is_no_lease_file_takes_its_address_and_is_never_removed() {
        let directory = tempfile::tempdir().unwrap();
        let network: NetworkName = "net".parse().unwrap();
        let folder = LeaseFolder::new(Some(directory.path()), &network);
        let locked = folder.lock().unwrap();
        fs::create_dir(directory.path().join("net/10.9.0.2")).unwrap();
        fs::write(directory.path().join("net/10.9.0.3"), [0xff; 9]).unwrap();
        let owner = owner_of("c1", "eth0");
        locked.reserve("10.9.0.4".parse().unwrap(), &owner).unwrap();
        assert_eq!(folder.taken().unwrap().len(), 3);
        assert_eq!(folder.taken_by_host_local().unwrap().len(), 3);
        assert_eq!(folder.leases().unwrap().len(), 1);
        assert_eq!(locked.release(&owner).unwrap().len(), 1);
        assert_eq!(folder.taken().unwrap().len(), 2);
    }

    fn owner_of(container: &str, ifname: &str) -> Owner {
        Owner {
            container_id: container.to_owned(),
            ifname: Some(ifname.to_owned()),
        }
    }

    fn folder(data_dir: &Path) -> LeaseFolder {
        LeaseFolder::new(Some(data_dir), &"net".parse().unwrap())
    }

    /// behaviour R11
    #[test]
    fn lease_files_have_the_format_of_the_reference_plugin() {
        let directory = tempfile::tempdir().unwrap();
        let folder = folder(directory.path());
        assert!(folder.leases().unwrap().is_empty() && !folder.exists());
        let inside = directory.path().join("net");
        fs::create_dir(&inside).unwrap();
        fs::write(inside.join("10.1.0.2"), "old-one").unwrap();
        fs::write(inside.join("fd00::3"), "c1\r\neth0").unwrap();
        fs::write(inside.join("last_reserved_ip.0"), "10.1.0.2").unwrap();
        let leases = folder.leases().unwrap();
        assert_eq!(leases[&"fd00::3".parse().unwrap()], owner_of("c1", "eth0"));
        assert_eq!(leases[&"10.1.0.2".parse().unwrap()].ifname, None);
        assert_eq!(leases.len(), 2);

        let locked = folder.lock().unwrap();
        let address = "10.1.0.3".parse().unwrap();
        locked.reserve(address, &owner_of("c2", "net1")).unwrap();
        assert!(locked.reserve(address, &owner_of("c3", "eth0")).is_err());
        locked.put_last_reserved(0, address).unwrap();
        assert_eq!(fs::read(inside.join("10.1.0.3")).unwrap(), b"c2\r\nnet1");
        assert_eq!(
            fs::read(inside.join("last_reserved_ip.0")).unwrap(),
            b"10.1.0.3"
        );
        assert_eq!(folder.last_reserved().unwrap()[&0], address);
    }

    /// behaviour R11
    #[test]
    fn a_mirrored_lease_blocks_host_local_and_not_the_agent() {
        let directory = tempfile::tempdir().unwrap();
        let folder = folder(directory.path());
        let locked = folder.lock().unwrap();
        let [mirrored, reserved] = [IpAddr::from([10, 1, 0, 2]), IpAddr::from([10, 1, 0, 3])];
        locked.mirror(mirrored, &owner_of("c1", "eth0")).unwrap();
        locked.reserve(reserved, &owner_of("c2", "eth0")).unwrap();
        let text = fs::read_to_string(directory.path().join("net/10.1.0.2")).unwrap();
        assert_eq!(text.trim(), "c1\r\neth0", "the reference plugin trims");
        assert_eq!(folder.leases().unwrap()[&mirrored], owner_of("c1", "eth0"));
        let others = folder.taken_by_host_local().unwrap();
        assert_eq!(others.into_keys().collect::<Vec<_>>(), [reserved]);
        assert_eq!(folder.taken().unwrap().len(), 2);

        locked.mirror(mirrored, &owner_of("c3", "eth0")).unwrap();
        assert_eq!(folder.leases().unwrap()[&mirrored], owner_of("c3", "eth0"));
        assert!(locked.mirror(reserved, &owner_of("c3", "eth0")).is_err());
        assert!(locked.reserve(mirrored, &owner_of("c4", "eth0")).is_err());
        assert_eq!(locked.release(&owner_of("c3", "eth0")).unwrap(), [mirrored]);
    }

    /// behaviour S10
    #[test]
    fn a_lease_release_concerns_one_interface_and_can_be_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let folder = folder(directory.path());
        let locked = folder.lock().unwrap();
        for (number, ifname) in [(2, "eth0"), (3, "net1")] {
            let address = IpAddr::from([10, 1, 0, number]);
            locked.reserve(address, &owner_of("c1", ifname)).unwrap();
        }
        let released = locked.release(&owner_of("c1", "net1")).unwrap();
        assert_eq!(released, [IpAddr::from([10, 1, 0, 3])]);
        assert!(locked.release(&owner_of("c1", "net1")).unwrap().is_empty());
        assert_eq!(folder.leases().unwrap().len(), 1);
    }

    #[test]
    fn an_address_with_an_invalid_owner_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("net");
        fs::create_dir(&inside).unwrap();
        fs::write(inside.join("10.1.0.2"), "../x\r\n/").unwrap();
        assert_eq!(folder(directory.path()).taken().unwrap().len(), 1);
    }
}
