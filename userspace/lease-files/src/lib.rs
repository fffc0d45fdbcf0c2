//! host-local's leases as that plugin keeps them on disk: `<dataDir>/<network>/<address>` holds `container\r\nifname`,
//! `last_reserved_ip.<set>` the address given last, and `lock` is locked by whoever changes something (behaviour R11).
//!
//! So a node can go from the reference plugin to ours and back without two pods having one address. Chooses no address.
//!
//! Whoever has records of its own writes here for others only: such a file ends with a line end, which the reference plugin
//! trims. It means nothing to its writer, so what a lost DEL or a reboot leaves of it keeps no address from being given.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use model::{AttachmentKey, ContainerId, IfName, NetworkName};

/// Where host-local keeps its networks unless it is told otherwise.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

const LOCK: &str = "lock";
const LAST: &str = "last_reserved_ip.";

/// Behind a lease that somebody has on record, too.
const ON_RECORD: &str = "\r\n";

/// The leases of one network.
#[derive(Clone, Debug)]
pub struct LeaseFolder {
    path: PathBuf,
    network: NetworkName,
}

/// Nobody else changes the leases while this lives.
#[derive(Debug)]
pub struct Locked<'a> {
    folder: &'a LeaseFolder,
    /// Held for its lock.
    _lock: File,
}

/// Whose an address is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// The container.
    pub container_id: String,
    /// The interface; old files do not tell.
    pub ifname: Option<String>,
}

impl LeaseFolder {
    /// The folder of `network` below `data_dir`, or below the usual one.
    pub fn new(data_dir: Option<&Path>, network: &NetworkName) -> Self {
        let parent = data_dir.unwrap_or(Path::new(DEFAULT_DATA_DIR));
        Self {
            path: parent.join(network.as_str()),
            network: network.clone(),
        }
    }

    /// The leases; none when there is no folder.
    pub fn leases(&self) -> io::Result<BTreeMap<IpAddr, Owner>> {
        let leases = self.texts()?.into_iter();
        Ok(leases.map(|(it, text)| (it, owner(&text))).collect())
    }

    fn texts(&self) -> io::Result<BTreeMap<IpAddr, String>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
            entries => entries?,
        };
        let mut leases = BTreeMap::new();
        for entry in entries {
            let entry = entry?;
            let address: Option<IpAddr> = entry.file_name().to_str().and_then(|n| n.parse().ok());
            let Some(address) = address else { continue };
            match small_files::read(entry.path()) {
                Ok(text) => leases.insert(address, text),
                // Released since it was listed.
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
        }
        Ok(leases)
    }

    /// The leases as addresses that attachments of this network have. An owner that no attachment can have is one that
    /// nobody will ask for.
    pub fn taken(&self) -> io::Result<BTreeMap<IpAddr, AttachmentKey>> {
        let leases = self.leases()?.into_iter();
        Ok(leases
            .map(|(address, owner)| (address, self.key(&owner)))
            .collect())
    }

    /// Those of them that nobody has on record.
    pub fn taken_by_others(&self) -> io::Result<BTreeMap<IpAddr, AttachmentKey>> {
        let others = self
            .texts()?
            .into_iter()
            .filter(|(_, text)| !text.ends_with(ON_RECORD));
        Ok(others
            .map(|(address, text)| (address, self.key(&owner(&text))))
            .collect())
    }

    /// The address given last, by the index of the range set.
    pub fn last_reserved(&self) -> io::Result<BTreeMap<usize, IpAddr>> {
        let mut last = BTreeMap::new();
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(last),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let set = name.to_str().and_then(|name| name.strip_prefix(LAST));
            let Some(set) = set.and_then(|set| set.parse::<usize>().ok()) else {
                continue;
            };
            let text = small_files::read(entry.path())?;
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

    /// Makes the folder if it is missing, and waits until nobody else changes it.
    pub fn lock(&self) -> io::Result<Locked<'_>> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o755).create(&self.path)?;
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false);
        let lock = options.open(self.path.join(LOCK))?;
        lock.lock()?;
        Ok(Locked {
            folder: self,
            _lock: lock,
        })
    }

    /// Whether there is a folder: without one there is nothing to release.
    pub fn exists(&self) -> bool {
        self.path.is_dir()
    }
}

impl Locked<'_> {
    /// Writes down that `owner` has `address`; fails when somebody has it.
    pub fn reserve(&self, address: IpAddr, owner: &Owner) -> io::Result<()> {
        self.write(address, owner, "")
    }

    /// Writes down for others that `owner` has `address` by the record of whoever calls; fails when somebody has it who is
    /// on no record.
    pub fn note(&self, address: IpAddr, owner: &Owner) -> io::Result<()> {
        let path = self.file(&address.to_string());
        match small_files::read(&path) {
            // The record says whose it is: this one is of the past.
            Ok(text) if text.ends_with(ON_RECORD) => fs::remove_file(&path)?,
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(_) | Err(_) => {}
        }
        self.write(address, owner, ON_RECORD)
    }

    fn write(&self, address: IpAddr, owner: &Owner, end: &str) -> io::Result<()> {
        let path = self.file(&address.to_string());
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).open(&path)?;
        let ifname = owner.ifname.as_deref().unwrap_or_default();
        let written = write!(file, "{}\r\n{ifname}{end}", owner.container_id);
        written.inspect_err(|_| drop(fs::remove_file(&path)))
    }

    /// Writes down which address the range set gave last.
    pub fn put_last_reserved(&self, set: usize, address: IpAddr) -> io::Result<()> {
        fs::write(self.file(&format!("{LAST}{set}")), address.to_string())
    }

    /// Releases what `owner` has; a file that does not tell the interface is its container's. Tells the addresses.
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
    fn what_the_reference_plugin_wrote_is_read_and_what_we_write_is_the_same() {
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
    fn what_is_written_for_others_binds_them_and_not_its_writer() {
        let directory = tempfile::tempdir().unwrap();
        let folder = folder(directory.path());
        let locked = folder.lock().unwrap();
        let [noted, reserved] = [IpAddr::from([10, 1, 0, 2]), IpAddr::from([10, 1, 0, 3])];
        locked.note(noted, &owner_of("c1", "eth0")).unwrap();
        locked.reserve(reserved, &owner_of("c2", "eth0")).unwrap();
        let text = fs::read_to_string(directory.path().join("net/10.1.0.2")).unwrap();
        assert_eq!(text.trim(), "c1\r\neth0", "the reference plugin trims");
        assert_eq!(folder.leases().unwrap()[&noted], owner_of("c1", "eth0"));
        let others = folder.taken_by_others().unwrap();
        assert_eq!(others.into_keys().collect::<Vec<_>>(), [reserved]);
        assert_eq!(folder.taken().unwrap().len(), 2);

        locked.note(noted, &owner_of("c3", "eth0")).unwrap();
        assert_eq!(folder.leases().unwrap()[&noted], owner_of("c3", "eth0"));
        assert!(locked.note(reserved, &owner_of("c3", "eth0")).is_err());
        assert!(locked.reserve(noted, &owner_of("c4", "eth0")).is_err());
        assert_eq!(locked.release(&owner_of("c3", "eth0")).unwrap(), [noted]);
    }

    /// behaviour S10
    #[test]
    fn a_release_is_of_one_interface_and_may_come_again() {
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
    fn an_address_whose_owner_is_nonsense_is_taken_all_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("net");
        fs::create_dir(&inside).unwrap();
        fs::write(inside.join("10.1.0.2"), "../x\r\n/").unwrap();
        assert_eq!(folder(directory.path()).taken().unwrap().len(), 1);
    }
}
