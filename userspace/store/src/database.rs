//! Database file: tables, transactions, and the checks of a file that may be damaged. Records are
//! opaque bytes by key.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use model::{AttachmentKey, Network, NetworkName, PortSet, Record};
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition, TableError, WriteTransaction,
};

use crate::journal::Expected;
use crate::journal_overlay::JournalOverlay;
use crate::{Contents, StoreError, format, journal};

/// Format number. Changes with the tables, their values, or the files beside the database.
pub(crate) const FORMAT: u32 = 3;
/// Format of versions whose journal has no head. They must not read one that has.
pub(crate) const HEADLESS_JOURNAL: u32 = 2;
/// Format of versions without a journal. They must not read a file that has one.
pub(crate) const WITHOUT_JOURNAL: u32 = 1;
/// Cache size in bytes: many times the size of the file. The library's default is 1 GiB.
const CACHE: usize = 1 << 20;

const NUMBERS: TableDefinition<'static, &str, u32> = TableDefinition::new("numbers");
const RECORDS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("records");
const NETWORKS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("networks");
const LAST_RESERVED: TableDefinition<'static, (&str, u32), &str> =
    TableDefinition::new("last_reserved");
/// Run-time settings by name. Added without a new format number: the table may be absent.
const CHOICES: TableDefinition<'static, &str, &str> = TableDefinition::new("choices");
/// One row per reserved port. Created when the first port is reserved.
const RESERVED_PORTS: TableDefinition<'static, u16, ()> = TableDefinition::new("reserved_ports");
/// By key: value before the first write, value of the last write. Created with the first row.
const SYSCTLS: TableDefinition<'static, &str, (&str, &str)> = TableDefinition::new("sysctls");

#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    database: Database,
}

impl File {
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        match fs::metadata(path) {
            Ok(metadata) if metadata.len() == 0 => Err(damaged(path, "it is empty")),
            Ok(_) => Self::open_existing(path),
            Err(error) if error.kind() == ErrorKind::NotFound => Self::create(path),
            Err(source) => Err(io("read", path, source)),
        }
    }

    fn open_existing(path: &Path) -> Result<Self, StoreError> {
        let opened = Builder::new().set_cache_size(CACHE).open(path);
        let mut database = opened.map_err(|error| refused("open", path, error))?;
        let sound = database
            .check_integrity()
            .map_err(|error| refused("check", path, error))?;
        if !sound {
            return Err(damaged(path, "its checksums are wrong"));
        }
        let path = path.to_owned();
        Ok(Self { path, database })
    }

    /// Creates a new file. It gets its name only when it is complete, so that a crash leaves no
    /// partial file there.
    fn create(path: &Path) -> Result<Self, StoreError> {
        let draft = draft(path);
        absent(&draft)?;
        let created = Builder::new().set_cache_size(CACHE).create(&draft);
        let database = created.map_err(|error| refused("create", path, error))?;
        let owner_only = Permissions::from_mode(0o600);
        fs::set_permissions(&draft, owner_only).map_err(|error| io("protect", &draft, error))?;
        let path = path.to_owned();
        let file = Self { path, database };
        file.write("prepare", |transaction| {
            transaction.open_table(RECORDS)?;
            transaction.open_table(NETWORKS)?;
            transaction.open_table(LAST_RESERVED)?;
            let mut numbers = transaction.open_table(NUMBERS)?;
            numbers.insert("format", FORMAT)?;
            Ok(())
        })?;
        crash::point_at("draft-store");
        // Replaces a leftover journal of a removed database, which must not be replayed onto this
        // one.
        journal::create(&file.path)?;
        fs::hard_link(&draft, &file.path).map_err(|error| io("create", &file.path, error))?;
        crash::point_at("name-store");
        fs::remove_file(&draft).map_err(|error| io("remove", &draft, error))?;
        Ok(file)
    }

    /// Reads all tables.
    pub(crate) fn read(&self) -> Result<Contents, StoreError> {
        self.check_format()?;
        Ok(Contents {
            records: self.read_records()?,
            networks: self.read_networks()?,
            last_reserved: self.read_last_reserved()?,
            generation: self.read_number("generation")?.unwrap_or(0),
            choices: self.read_choices()?,
            reserved_ports: self.read_reserved_ports()?,
            sysctls: self.read_sysctls()?,
        })
    }

    fn check_format(&self) -> Result<(), StoreError> {
        match self.read_number("format")? {
            Some(FORMAT | HEADLESS_JOURNAL | WITHOUT_JOURNAL) => Ok(()),
            Some(found) => Err(StoreError::Format {
                path: self.path.clone(),
                found,
                known: FORMAT,
            }),
            None => Err(damaged(&self.path, "it does not say its format")),
        }
    }

    /// Returns what the journal must be. A database of an earlier format gets the present one
    /// ([`File::put_format`]) once its journal has a head.
    pub(crate) fn expected_journal(&self) -> Result<Expected, StoreError> {
        if self.read_number("format")? != Some(FORMAT) {
            return Ok(Expected::Headless);
        }
        let last = self.read_number("compaction")?;
        Ok(Expected::Compaction(last.unwrap_or(1)))
    }

    fn read_number(&self, name: &str) -> Result<Option<u32>, StoreError> {
        let read = || -> Result<Option<u32>, redb::Error> {
            let table = self.database.begin_read()?.open_table(NUMBERS)?;
            Ok(table.get(name)?.map(|number| number.value()))
        };
        read().map_err(|error| damaged(&self.path, &error.to_string()))
    }

    fn read_records(&self) -> Result<BTreeMap<AttachmentKey, Record>, StoreError> {
        self.read_values(RECORDS)?
            .into_iter()
            .map(|(name, bytes)| {
                let record = format::read_record(&bytes)
                    .map_err(|what| damaged(&self.path, &format!("{name}: {what}")))?;
                if record.attachment.key.to_string() == name {
                    Ok((record.attachment.key.clone(), record))
                } else {
                    Err(damaged(&self.path, &format!("{name} holds another record")))
                }
            })
            .collect()
    }

    fn read_networks(&self) -> Result<BTreeMap<NetworkName, Network>, StoreError> {
        self.read_values(NETWORKS)?
            .into_iter()
            .map(|(name, bytes)| {
                let network = format::read_network(&bytes)
                    .map_err(|what| damaged(&self.path, &format!("{name}: {what}")))?;
                Ok((network.name.clone(), network))
            })
            .collect()
    }

    fn read_values(
        &self,
        table: TableDefinition<'static, &str, &[u8]>,
    ) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let read = || -> Result<Vec<(String, Vec<u8>)>, redb::Error> {
            let table = self.database.begin_read()?.open_table(table)?;
            table
                .iter()?
                .map(|row| {
                    let (key, value) = row?;
                    Ok((key.value().to_owned(), value.value().to_vec()))
                })
                .collect()
        };
        read().map_err(|error| damaged(&self.path, &error.to_string()))
    }

    fn read_last_reserved(&self) -> Result<BTreeMap<(NetworkName, usize), IpAddr>, StoreError> {
        let read = || -> Result<Vec<(String, u32, String)>, redb::Error> {
            let table = self.database.begin_read()?.open_table(LAST_RESERVED)?;
            table
                .iter()?
                .map(|row| {
                    let (key, value) = row?;
                    let (network, set) = key.value();
                    Ok((network.to_owned(), set, value.value().to_owned()))
                })
                .collect()
        };
        let rows = read().map_err(|error| damaged(&self.path, &error.to_string()))?;
        rows.into_iter()
            .map(|(network, set, address)| {
                let network = network.parse().ok();
                let set = usize::try_from(set).ok();
                network
                    .zip(set)
                    .zip(address.parse().ok())
                    .ok_or_else(|| damaged(&self.path, "an address last given"))
            })
            .collect()
    }

    fn read_choices(&self) -> Result<BTreeMap<String, String>, StoreError> {
        let read = || -> Result<BTreeMap<String, String>, redb::Error> {
            let table = match self.database.begin_read()?.open_table(CHOICES) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
                opened => opened?,
            };
            table
                .iter()?
                .map(|row| {
                    let (name, value) = row?;
                    Ok((name.value().to_owned(), value.value().to_owned()))
                })
                .collect()
        };
        read().map_err(|error| damaged(&self.path, &error.to_string()))
    }

    fn read_reserved_ports(&self) -> Result<PortSet, StoreError> {
        let read = || -> Result<PortSet, redb::Error> {
            let table = match self.database.begin_read()?.open_table(RESERVED_PORTS) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(PortSet::default()),
                table => table?,
            };
            table.iter()?.map(|row| Ok(row?.0.value())).collect()
        };
        read().map_err(|error| damaged(&self.path, &error.to_string()))
    }

    fn read_sysctls(&self) -> Result<BTreeMap<String, (String, String)>, StoreError> {
        let read = || -> Result<BTreeMap<String, (String, String)>, redb::Error> {
            let table = match self.database.begin_read()?.open_table(SYSCTLS) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
                table => table?,
            };
            table
                .iter()?
                .map(|row| {
                    let (key, value) = row?;
                    let (before, ours) = value.value();
                    Ok((key.value().to_owned(), (before.to_owned(), ours.to_owned())))
                })
                .collect()
        };
        read().map_err(|error| damaged(&self.path, &error.to_string()))
    }

    pub(crate) fn put_sysctl(
        &self,
        key: &str,
        (before, ours): &(String, String),
    ) -> Result<(), StoreError> {
        self.write("write", |transaction| {
            let mut table = transaction.open_table(SYSCTLS)?;
            table.insert(key, (before.as_str(), ours.as_str()))?;
            Ok(())
        })
    }

    pub(crate) fn forget_sysctl(&self, key: &str) -> Result<(), StoreError> {
        self.write("write", |transaction| {
            transaction.open_table(SYSCTLS)?.remove(key)?;
            Ok(())
        })
    }

    pub(crate) fn forget_sysctls(&self) -> Result<(), StoreError> {
        self.write("write", |transaction| {
            transaction.delete_table(SYSCTLS)?;
            Ok(())
        })
    }

    pub(crate) fn put_choice(&self, name: &str, value: &str) -> Result<(), StoreError> {
        self.write("write", |transaction| {
            transaction.open_table(CHOICES)?.insert(name, value)?;
            Ok(())
        })
    }

    pub(crate) fn remove_choice(&self, name: &str) -> Result<(), StoreError> {
        self.write("write", |transaction| {
            transaction.open_table(CHOICES)?.remove(name)?;
            Ok(())
        })
    }

    /// Writes the parts of `contents` that only the journal has, and the number of this compaction,
    /// in one transaction.
    pub(crate) fn write_overlay(
        &self,
        contents: &Contents,
        overlay: &JournalOverlay,
        compaction: u32,
    ) -> Result<(), StoreError> {
        self.write("write", |transaction| {
            put_records(transaction, contents, &overlay.records)?;
            put_last_reserved(transaction, contents, &overlay.last_reserved)?;
            let mut numbers = transaction.open_table(NUMBERS)?;
            numbers.insert("generation", contents.generation)?;
            numbers.insert("compaction", compaction)?;
            change_reserved_ports(transaction, &overlay.ports_before, &contents.reserved_ports)
        })
    }

    pub(crate) fn put_network(&self, network: &Network) -> Result<(), StoreError> {
        let bytes = format::write_network(network);
        self.write("write", |transaction| {
            let mut table = transaction.open_table(NETWORKS)?;
            table.insert(network.name.as_str(), bytes.as_slice())?;
            Ok(())
        })
    }

    pub(crate) fn remove_network(&self, name: &NetworkName) -> Result<(), StoreError> {
        self.write("write", |transaction| {
            transaction.open_table(NETWORKS)?.remove(name.as_str())?;
            Ok(())
        })
    }

    pub(crate) fn put_generation(&self, generation: u32) -> Result<(), StoreError> {
        self.put_number("generation", generation)
    }

    /// Writes a format number.
    pub(crate) fn put_format(&self, format: u32) -> Result<(), StoreError> {
        self.put_number("format", format)
    }

    /// Returns the format number of the file.
    #[cfg(test)]
    pub(crate) fn format(&self) -> u32 {
        self.read_number("format").unwrap().unwrap()
    }

    fn put_number(&self, name: &str, number: u32) -> Result<(), StoreError> {
        self.write("write", |transaction| {
            transaction.open_table(NUMBERS)?.insert(name, number)?;
            Ok(())
        })
    }

    /// Runs `change` in one transaction: all of it is committed, or nothing.
    fn write(
        &self,
        action: &'static str,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), StoreError> {
        let run = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            change(&transaction)?;
            transaction.commit()?;
            Ok(())
        };
        run().map_err(|source| StoreError::Database {
            action,
            path: self.path.clone(),
            source: Box::new(source),
        })
    }
}

fn put_records(
    transaction: &WriteTransaction,
    contents: &Contents,
    keys: &BTreeSet<AttachmentKey>,
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(RECORDS)?;
    for key in keys {
        let name = key.to_string();
        match contents.records.get(key).map(format::write_record) {
            Some(bytes) => table.insert(name.as_str(), bytes.as_slice())?,
            None => table.remove(name.as_str())?,
        };
    }
    Ok(())
}

fn put_last_reserved(
    transaction: &WriteTransaction,
    contents: &Contents,
    sets: &BTreeSet<(NetworkName, usize)>,
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(LAST_RESERVED)?;
    for of_set in sets {
        if let Some(address) = contents.last_reserved.get(of_set) {
            let (network, set) = of_set;
            let text = address.to_string();
            table.insert((network.as_str(), index(*set)), text.as_str())?;
        }
    }
    Ok(())
}

/// Writes only the rows in which the two sets differ: a node may have ten thousand reserved ports.
fn change_reserved_ports(
    transaction: &WriteTransaction,
    before: &PortSet,
    after: &PortSet,
) -> Result<(), redb::Error> {
    if before == after {
        return Ok(());
    }
    let mut table = transaction.open_table(RESERVED_PORTS)?;
    for port in before.difference(after).iter() {
        table.remove(port)?;
    }
    for port in after.difference(before).iter() {
        table.insert(port, ())?;
    }
    Ok(())
}

/// Converts the index of a range set. A configuration has far fewer than 2^32 of them; larger ones
/// saturate.
fn index(set: usize) -> u32 {
    u32::try_from(set).unwrap_or(u32::MAX)
}

fn refused(action: &'static str, path: &Path, error: DatabaseError) -> StoreError {
    let path = path.to_owned();
    if let DatabaseError::DatabaseAlreadyOpen = error {
        return StoreError::InUse { path };
    }
    if let DatabaseError::Storage(StorageError::Corrupted(what)) = error {
        return StoreError::Damaged { path, what };
    }
    if let DatabaseError::Storage(StorageError::Io(source)) = &error
        && is_invalid_contents(source)
    {
        return damaged(&path, &source.to_string());
    }
    StoreError::Database {
        action,
        path,
        source: Box::new(error.into()),
    }
}

/// Returns whether the file was readable but its contents are invalid.
fn is_invalid_contents(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof
    )
}

fn damaged(path: &Path, what: &str) -> StoreError {
    StoreError::Damaged {
        path: path.to_owned(),
        what: what.to_owned(),
    }
}

/// Returns the path of a new file until it is complete.
pub(crate) fn draft(path: &Path) -> PathBuf {
    path.with_extension("draft")
}

/// Removes a file if it exists.
fn absent(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io("remove", path, error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn io(action: &'static str, path: &Path, source: std::io::Error) -> StoreError {
    StoreError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}
