//! Durable records of what was decided: attachments, the networks they are on, the addresses last given, and the
//! counter that tells one owner of a slot from the next.
//!
//! Everything is read when the store is opened and written through afterwards, so that reading never fails and a
//! damaged file is found before anybody relies on it. Knows nothing of the kernel and decides nothing: what a record
//! means is the engine's business.

#![forbid(unsafe_code)]

mod change;
mod database;
mod error;
mod format;
mod journal;
mod journal_overlay;
mod panic_guard;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use model::{AttachmentKey, Network, NetworkName, PortSet, Record};

use crate::change::Change;
use crate::database::File;
use crate::journal::Journal;
use crate::journal_overlay::JournalOverlay;

pub use crate::error::StoreError;
pub use crate::panic_guard::is_catching_panics;

/// The records of one agent, in one file that it alone has open.
#[derive(Debug)]
pub struct Store {
    file: File,
    journal: Journal,
    contents: Contents,
    overlay: JournalOverlay,
}

/// Bytes of a journal that is worth settling: those of some forty attachments that came and stayed.
const MANY: u64 = 64 << 10;

/// Bytes of a journal that is settled whether or not somebody waits.
const MOST: u64 = 1 << 20;

/// What the file holds, in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Attachments by key.
    pub records: BTreeMap<AttachmentKey, Record>,
    /// Networks by name: those that records are on, so that a restarted agent knows their bridges.
    pub networks: BTreeMap<NetworkName, Network>,
    /// The address last given, by network and index of the range set.
    pub last_reserved: BTreeMap<(NetworkName, usize), IpAddr>,
    /// The highest generation ever given to an attachment.
    pub generation: u32,
    /// What was decided while the agent ran, by name: it holds for the next agent too.
    pub choices: BTreeMap<String, String>,
    /// The ports of the node that we have reserved, and nobody before us.
    pub reserved_ports: PortSet,
    /// Sysctls that we have written, by key: what they were before us, and what we wrote last.
    pub sysctls: BTreeMap<String, (String, String)>,
}

impl Store {
    /// Opens the file at `path`, or makes one when there is none. A file that another agent has open, that is
    /// damaged or that another version wrote is refused: to start empty beside live pods would give their addresses
    /// away.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let open = || {
            let file = File::open(path)?;
            let mut contents = file.read()?;
            let mut overlay = JournalOverlay::of(&contents);
            let (journal, changes) = Journal::open(path)?;
            for change in changes {
                overlay.note(&change);
                change.apply(&mut contents);
            }
            Ok(Self {
                file,
                journal,
                contents,
                overlay,
            })
        };
        panic_guard::catch_panics(open).unwrap_or_else(|what| {
            Err(StoreError::Damaged {
                path: path.to_owned(),
                what,
            })
        })
    }

    /// Opens a new file at `path`; the damaged one that is there gets another name, which is returned, and its journal
    /// too. To be done only where no attachment is alive.
    pub fn replace(path: &Path) -> Result<(Self, PathBuf), StoreError> {
        // The journal first: it must never be read beside a database that it does not belong to.
        put_aside(
            &journal::path_beside(path),
            &path.with_extension("journal.damaged"),
        )?;
        crash::point_at("put-journal-aside");
        let aside = path.with_extension("damaged");
        put_aside(path, &aside)?;
        crash::point_at("put-store-aside");
        Ok((Self::open(path)?, aside))
    }

    /// The files that a store at `path` has, in the order in which they are to be removed.
    pub fn files(path: &Path) -> [PathBuf; 3] {
        let journal = journal::path_beside(path);
        [database::draft(path), journal, path.to_owned()]
    }

    /// All that is remembered.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// What is remembered of one attachment.
    pub fn get(&self, key: &AttachmentKey) -> Option<&Record> {
        self.contents.records.get(key)
    }

    /// Attachments by key.
    pub fn records(&self) -> &BTreeMap<AttachmentKey, Record> {
        &self.contents.records
    }

    /// Networks by name.
    pub fn networks(&self) -> &BTreeMap<NetworkName, Network> {
        &self.contents.networks
    }

    /// Addresses that attachments have, whatever their state and network.
    pub fn leases(&self) -> BTreeMap<IpAddr, AttachmentKey> {
        self.contents
            .records
            .values()
            .map(|r| &r.attachment)
            .flat_map(|attachment| {
                attachment
                    .addresses
                    .iter()
                    .map(|a| a.address.address)
                    .map(|address| (address, attachment.key.clone()))
            })
            .collect()
    }

    /// The address last given, by index of the range set of `network`.
    pub fn last_reserved(&self, network: &NetworkName) -> BTreeMap<usize, IpAddr> {
        self.contents
            .last_reserved
            .iter()
            .filter(|((name, _), _)| name == network)
            .map(|((_, set), address)| (*set, *address))
            .collect()
    }

    /// The highest generation that any attachment ever had: the next one gets a higher one.
    pub fn generation(&self) -> u32 {
        self.contents.generation
    }

    /// Remembers an attachment, in place of what was remembered under its key. Its generation is spent for good, even
    /// if the attachment comes to nothing: flows may carry it.
    pub fn put(&mut self, record: &Record) -> Result<(), StoreError> {
        self.make(Change::put(record), "put-record")
    }

    /// As [`Store::put`], and with it the addresses of its network that were given last, by index of the range set.
    pub fn put_with_last_reserved(
        &mut self,
        record: &Record,
        addresses: &BTreeMap<usize, IpAddr>,
    ) -> Result<(), StoreError> {
        let change = Change {
            last_reserved: addresses.clone(),
            ..Change::put(record)
        };
        self.make(change, "put-record")
    }

    /// As [`Store::put`], and with it the ports of the node that we have reserved, or are about to.
    pub fn put_reserving(&mut self, record: &Record, ports: &PortSet) -> Result<(), StoreError> {
        let change = Change::put(record).with_ports(&self.contents.reserved_ports, ports);
        self.make(change, "put-record")
    }

    /// Forgets an attachment; one that is unknown is forgotten already.
    pub fn remove(&mut self, key: &AttachmentKey) -> Result<(), StoreError> {
        self.make(Change::remove(key), "remove-record")
    }

    /// As [`Store::remove`], and with it remembers the ports of the node that are still reserved.
    pub fn remove_reserving(
        &mut self,
        key: &AttachmentKey,
        ports: &PortSet,
    ) -> Result<(), StoreError> {
        let change = Change::remove(key).with_ports(&self.contents.reserved_ports, ports);
        self.make(change, "remove-record")
    }

    /// Remembers the ports of the node that we have reserved.
    pub fn put_reserved_ports(&mut self, ports: &PortSet) -> Result<(), StoreError> {
        let before = &self.contents.reserved_ports;
        if ports == before {
            return Ok(());
        }
        let change = Change::default().with_ports(before, ports);
        self.make(change, "put-reserved-ports")
    }

    fn make(&mut self, change: Change, effect: &'static str) -> Result<(), StoreError> {
        if self.journal.length() > MOST {
            self.compact_journal()?;
        }
        self.journal.append(&change)?;
        crash::point_at(effect);
        self.overlay.note(&change);
        change.apply(&mut self.contents);
        Ok(())
    }

    /// Whether it is time to [compact_journal](Store::compact_journal), for whoever has time.
    pub fn is_compaction_due(&self) -> bool {
        self.journal.length() > MANY
    }

    /// Writes into the database what only the journal has. Nothing depends on when: it takes as long as a few changes,
    /// however many there were.
    pub fn compact_journal(&mut self) -> Result<(), StoreError> {
        if self.journal.length() == 0 {
            return Ok(());
        }
        self.file.write_overlay(&self.contents, &self.overlay)?;
        crash::point_at("catch-up");
        self.journal.clear()?;
        crash::point_at("clear-journal");
        self.overlay = JournalOverlay::of(&self.contents);
        Ok(())
    }

    /// Remembers a network.
    pub fn put_network(&mut self, network: &Network) -> Result<(), StoreError> {
        self.file.put_network(network)?;
        crash::point_at("put-network");
        let name = network.name.clone();
        self.contents.networks.insert(name, network.clone());
        Ok(())
    }

    /// Forgets a network, but not the addresses last given in it: it may come back.
    pub fn remove_network(&mut self, name: &NetworkName) -> Result<(), StoreError> {
        self.file.remove_network(name)?;
        crash::point_at("remove-network");
        self.contents.networks.remove(name);
        Ok(())
    }

    /// What was decided under `name`.
    pub fn choice(&self, name: &str) -> Option<&str> {
        self.contents.choices.get(name).map(String::as_str)
    }

    /// Remembers what was decided under `name`.
    pub fn put_choice(&mut self, name: &str, value: &str) -> Result<(), StoreError> {
        self.file.put_choice(name, value)?;
        crash::point_at("put-choice");
        let choices = &mut self.contents.choices;
        choices.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    /// Forgets what was decided under `name`.
    pub fn remove_choice(&mut self, name: &str) -> Result<(), StoreError> {
        if self.contents.choices.contains_key(name) {
            self.file.remove_choice(name)?;
            crash::point_at("remove-choice");
            self.contents.choices.remove(name);
        }
        Ok(())
    }

    /// Remembers what a sysctl is made; and what it was, unless that is remembered already.
    pub fn put_sysctl(&mut self, key: &str, was: &str, ours: &str) -> Result<(), StoreError> {
        let known = self.contents.sysctls.get(key);
        let before = known.map_or(was, |(before, _)| before).to_owned();
        let written = (before, ours.to_owned());
        if known != Some(&written) {
            self.file.put_sysctl(key, &written)?;
            crash::point_at("put-sysctl");
            self.contents.sysctls.insert(key.to_owned(), written);
        }
        Ok(())
    }

    /// Forgets what a sysctl was.
    pub fn forget_sysctl(&mut self, key: &str) -> Result<(), StoreError> {
        self.file.forget_sysctl(key)?;
        crash::point_at("forget-sysctl");
        self.contents.sysctls.remove(key);
        Ok(())
    }

    /// Forgets what sysctls were.
    pub fn forget_sysctls(&mut self) -> Result<(), StoreError> {
        self.file.forget_sysctls()?;
        crash::point_at("forget-sysctls");
        self.contents.sysctls.clear();
        Ok(())
    }

    /// Makes sure that generations up to `seen` are not given again.
    pub fn raise_generation(&mut self, seen: u32) -> Result<(), StoreError> {
        if seen > self.contents.generation {
            self.file.put_generation(seen)?;
            crash::point_at("put-generation");
            self.contents.generation = seen;
        }
        Ok(())
    }
}

/// Gives a file another name, if it is there.
fn put_aside(path: &Path, aside: &Path) -> Result<(), StoreError> {
    match fs::rename(path, aside) {
        Err(source) if source.kind() != ErrorKind::NotFound => Err(StoreError::Io {
            action: "put aside",
            path: path.to_owned(),
            source,
        }),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
