//! Durable store of the agent: attachments, their networks, the addresses last given, and the
//! generation counter that distinguishes successive owners of a slot.
//!
//! The whole file is read when the store is opened, and every change is written through. So reads
//! never fail, and a damaged file is detected before the agent relies on it. The engine interprets
//! the records.

#![forbid(unsafe_code)]

mod change;
mod database;
mod error;
mod format;
mod journal;
mod journal_overlay;
mod panic_guard;
#[cfg(any(test, feature = "fuzzing"))]
pub mod testing;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use model::{AttachmentKey, Network, NetworkName, PortSet, Record};

use crate::change::Change;
use crate::database::{FORMAT, File};
use crate::journal::{Expected, Journal};
use crate::journal_overlay::JournalOverlay;

pub use crate::error::StoreError;
pub use crate::panic_guard::is_catching_panics;

/// Store of one agent: a database and a journal, opened by this process alone.
#[derive(Debug)]
pub struct Store {
    file: File,
    journal: Journal,
    contents: Contents,
    overlay: JournalOverlay,
}

/// Journal length in bytes from which an idle agent compacts it: some forty attachments.
const COMPACT_WHEN_IDLE: u64 = 64 << 10;

/// Journal length in bytes at which the next change compacts it first, even while requests wait.
const COMPACT_AT_ONCE: u64 = 1 << 20;

/// Contents of the store, in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Attachments by key.
    pub records: BTreeMap<AttachmentKey, Record>,
    /// Networks by name: those of the records, so that a restarted agent has their bridges.
    pub networks: BTreeMap<NetworkName, Network>,
    /// Address last given, by network and index of the range set.
    pub last_reserved: BTreeMap<(NetworkName, usize), IpAddr>,
    /// Highest generation ever given to an attachment.
    pub generation: u32,
    /// Settings changed at run time, by name: they survive a restart of the agent.
    pub choices: BTreeMap<String, String>,
    /// Host ports that this agent has added to `ip_local_reserved_ports`.
    pub reserved_ports: PortSet,
    /// Sysctls that this agent has written, by key: value before the first write, value of the last
    /// write.
    pub sysctls: BTreeMap<String, (String, String)>,
}

impl Store {
    /// Opens the store at `path`, or creates one when there is none. Fails for a file that another
    /// agent has open, that is damaged, or that an unknown version wrote: an empty store beside
    /// live pods would give their addresses to other pods.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let open = || {
            let file = File::open(path)?;
            let mut contents = file.read()?;
            let mut overlay = JournalOverlay::of(&contents);
            let expected = file.expected_journal()?;
            let (journal, changes) = Journal::open(path, expected)?;
            for change in changes {
                overlay.add(&change);
                change.apply(&mut contents);
            }
            if expected == Expected::Headless {
                file.put_format(FORMAT)?;
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

    /// Opens a new store at `path` and renames the damaged one and its journal; returns the new
    /// name of the database. Permitted only where no attachment is alive.
    pub fn replace(path: &Path) -> Result<(Self, PathBuf), StoreError> {
        // The journal first: it must never be replayed onto a database that it does not belong to.
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

    /// Returns the files of a store at `path`, in the order in which they are to be removed.
    pub fn files(path: &Path) -> [PathBuf; 4] {
        let drafts = (database::draft(path), journal::draft(path));
        let journal = journal::path_beside(path);
        [drafts.0, drafts.1, journal, path.to_owned()]
    }

    /// Returns all contents.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns the record of one attachment.
    pub fn get(&self, key: &AttachmentKey) -> Option<&Record> {
        self.contents.records.get(key)
    }

    /// Returns all records by key.
    pub fn records(&self) -> &BTreeMap<AttachmentKey, Record> {
        &self.contents.records
    }

    /// Returns all networks by name.
    pub fn networks(&self) -> &BTreeMap<NetworkName, Network> {
        &self.contents.networks
    }

    /// Returns the addresses of all attachments, in any state and network.
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

    /// Returns the addresses last given, by index of the range set of `network`.
    pub fn last_reserved(&self, network: &NetworkName) -> BTreeMap<usize, IpAddr> {
        self.contents
            .last_reserved
            .iter()
            .filter(|((name, _), _)| name == network)
            .map(|((_, set), address)| (*set, *address))
            .collect()
    }

    /// Returns the highest generation that any attachment has had; the next attachment gets a
    /// higher one.
    pub fn generation(&self) -> u32 {
        self.contents.generation
    }

    /// Stores a record in place of the one with its key. Its generation is used up for good, even
    /// if the attachment fails: flows may carry it.
    pub fn put(&mut self, record: &Record) -> Result<(), StoreError> {
        self.commit(Change::put(record), "put-record")
    }

    /// Stores a record as [`Store::put`] does, together with the addresses last given in its
    /// network, by index of the range set.
    pub fn put_with_last_reserved(
        &mut self,
        record: &Record,
        addresses: &BTreeMap<usize, IpAddr>,
    ) -> Result<(), StoreError> {
        let change = Change {
            last_reserved: addresses.clone(),
            ..Change::put(record)
        };
        self.commit(change, "put-record")
    }

    /// Stores a record as [`Store::put`] does, together with the ports that the agent has reserved
    /// or is about to reserve.
    pub fn put_reserving(&mut self, record: &Record, ports: &PortSet) -> Result<(), StoreError> {
        let change = Change::put(record).with_ports(&self.contents.reserved_ports, ports);
        self.commit(change, "put-record")
    }

    /// Removes a record; an unknown key is success.
    pub fn remove(&mut self, key: &AttachmentKey) -> Result<(), StoreError> {
        self.commit(Change::remove(key), "remove-record")
    }

    /// Removes a record as [`Store::remove`] does, and stores the ports that stay reserved.
    pub fn remove_reserving(
        &mut self,
        key: &AttachmentKey,
        ports: &PortSet,
    ) -> Result<(), StoreError> {
        let change = Change::remove(key).with_ports(&self.contents.reserved_ports, ports);
        self.commit(change, "remove-record")
    }

    /// Stores the host ports that the agent has reserved.
    pub fn put_reserved_ports(&mut self, ports: &PortSet) -> Result<(), StoreError> {
        let before = &self.contents.reserved_ports;
        if ports == before {
            return Ok(());
        }
        let change = Change::default().with_ports(before, ports);
        self.commit(change, "put-reserved-ports")
    }

    fn commit(&mut self, change: Change, effect: &'static str) -> Result<(), StoreError> {
        if self.journal.length() > COMPACT_AT_ONCE {
            self.compact_journal()?;
        }
        // On disk first: after a failure the contents in memory are unchanged.
        self.journal.append(&change)?;
        crash::point_at(effect);
        self.overlay.add(&change);
        change.apply(&mut self.contents);
        Ok(())
    }

    /// Returns whether an idle agent should [compact the journal](Store::compact_journal).
    pub fn is_compaction_due(&self) -> bool {
        self.journal.length() > COMPACT_WHEN_IDLE
    }

    /// Writes the journal's changes into the database in one transaction, then empties the journal.
    /// It may be called at any time, and takes as long as a few changes, however many the journal
    /// has.
    pub fn compact_journal(&mut self) -> Result<(), StoreError> {
        if self.journal.length() == 0 {
            return Ok(());
        }
        // The database first: a crash in between replays changes that it already has, which is
        // harmless.
        let number = self.journal.next_compaction();
        self.file
            .write_overlay(&self.contents, &self.overlay, number)?;
        crash::point_at("catch-up");
        self.journal.clear()?;
        crash::point_at("clear-journal");
        self.overlay = JournalOverlay::of(&self.contents);
        Ok(())
    }

    /// Stores a network.
    pub fn put_network(&mut self, network: &Network) -> Result<(), StoreError> {
        self.file.put_network(network)?;
        crash::point_at("put-network");
        let name = network.name.clone();
        self.contents.networks.insert(name, network.clone());
        Ok(())
    }

    /// Removes a network. The addresses last given in it stay, because the network may come back.
    pub fn remove_network(&mut self, name: &NetworkName) -> Result<(), StoreError> {
        self.file.remove_network(name)?;
        crash::point_at("remove-network");
        self.contents.networks.remove(name);
        Ok(())
    }

    /// Returns the run-time setting `name`.
    pub fn choice(&self, name: &str) -> Option<&str> {
        self.contents.choices.get(name).map(String::as_str)
    }

    /// Stores the run-time setting `name`.
    pub fn put_choice(&mut self, name: &str, value: &str) -> Result<(), StoreError> {
        self.file.put_choice(name, value)?;
        crash::point_at("put-choice");
        let choices = &mut self.contents.choices;
        choices.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    /// Removes the run-time setting `name`.
    pub fn remove_choice(&mut self, name: &str) -> Result<(), StoreError> {
        if self.contents.choices.contains_key(name) {
            self.file.remove_choice(name)?;
            crash::point_at("remove-choice");
            self.contents.choices.remove(name);
        }
        Ok(())
    }

    /// Stores the value that a sysctl is set to, and its previous value unless one is stored
    /// already.
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

    /// Removes the stored values of a sysctl.
    pub fn forget_sysctl(&mut self, key: &str) -> Result<(), StoreError> {
        self.file.forget_sysctl(key)?;
        crash::point_at("forget-sysctl");
        self.contents.sysctls.remove(key);
        Ok(())
    }

    /// Removes the stored values of all sysctls.
    pub fn forget_sysctls(&mut self) -> Result<(), StoreError> {
        self.file.forget_sysctls()?;
        crash::point_at("forget-sysctls");
        self.contents.sysctls.clear();
        Ok(())
    }

    /// Raises the generation counter to at least `seen`, so that those generations are not given
    /// again.
    pub fn raise_generation(&mut self, seen: u32) -> Result<(), StoreError> {
        if seen > self.contents.generation {
            self.file.put_generation(seen)?;
            crash::point_at("put-generation");
            self.contents.generation = seen;
        }
        Ok(())
    }
}

/// Renames a file, if it exists.
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
