//! Durable records of what was decided: attachments, the networks they are on, the addresses last given, and the
//! counter that tells one owner of a slot from the next.
//!
//! Everything is read when the store is opened and written through afterwards, so that reading never fails and a
//! damaged file is found before anybody relies on it. Knows nothing of the kernel and decides nothing: what a record
//! means is the engine's business.

#![forbid(unsafe_code)]

mod database;
mod doubt;
mod error;
mod format;

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use model::{AttachmentKey, Network, NetworkName, PortSet, Record};

use crate::database::File;

pub use crate::doubt::is_in_doubt;
pub use crate::error::StoreError;

/// The records of one agent, in one file that it alone has open.
#[derive(Debug)]
pub struct Store {
    file: File,
    contents: Contents,
}

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
            let contents = file.read()?;
            Ok(Self { file, contents })
        };
        doubt::surviving(open).unwrap_or_else(|what| {
            Err(StoreError::Damaged {
                path: path.to_owned(),
                what,
            })
        })
    }

    /// Opens a new file at `path`; the damaged one that is there gets another name, which is returned. To be done only
    /// where no attachment is alive.
    pub fn replace(path: &Path) -> Result<(Self, PathBuf), StoreError> {
        let aside = path.with_extension("damaged");
        fs::rename(path, &aside).map_err(|source| StoreError::Io {
            action: "put aside",
            path: path.to_owned(),
            source,
        })?;
        crash::point_at("put-store-aside");
        Ok((Self::open(path)?, aside))
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
        let attachments = self.contents.records.values().map(|r| &r.attachment);
        let leases = attachments.flat_map(|attachment| {
            let addresses = attachment.addresses.iter().map(|a| a.address.address);
            addresses.map(|address| (address, attachment.key.clone()))
        });
        leases.collect()
    }

    /// The address last given, by index of the range set of `network`.
    pub fn last_reserved(&self, network: &NetworkName) -> BTreeMap<usize, IpAddr> {
        let all = self.contents.last_reserved.iter();
        all.filter(|((name, _), _)| name == network)
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
        self.put_given(record, &BTreeMap::new())
    }

    /// As [`Store::put`], and with it the addresses of its network that were given last, by index of the range set.
    pub fn put_given(
        &mut self,
        record: &Record,
        addresses: &BTreeMap<usize, IpAddr>,
    ) -> Result<(), StoreError> {
        self.write_record(record, addresses, None)
    }

    /// As [`Store::put`], and with it the ports of the node that we have reserved, or are about to.
    pub fn put_reserving(&mut self, record: &Record, ports: &PortSet) -> Result<(), StoreError> {
        self.write_record(record, &BTreeMap::new(), Some(ports))
    }

    fn write_record(
        &mut self,
        record: &Record,
        addresses: &BTreeMap<usize, IpAddr>,
        ports: Option<&PortSet>,
    ) -> Result<(), StoreError> {
        let generation = self.contents.generation.max(record.attachment.generation);
        let reserved = ports.map(|ports| [&self.contents.reserved_ports, ports]);
        self.file
            .put_record(record, generation, addresses, reserved)?;
        crash::point_at("put-record");
        let key = record.attachment.key.clone();
        for (set, address) in addresses {
            let last = &mut self.contents.last_reserved;
            last.insert((key.network.clone(), *set), *address);
        }
        self.contents.records.insert(key, record.clone());
        self.contents.generation = generation;
        self.note_ports(ports);
        Ok(())
    }

    /// Forgets an attachment; one that is unknown is forgotten already.
    pub fn remove(&mut self, key: &AttachmentKey) -> Result<(), StoreError> {
        self.remove_record(key, None)
    }

    /// As [`Store::remove`], and with it remembers the ports of the node that are still reserved.
    pub fn remove_reserving(
        &mut self,
        key: &AttachmentKey,
        ports: &PortSet,
    ) -> Result<(), StoreError> {
        self.remove_record(key, Some(ports))
    }

    fn remove_record(
        &mut self,
        key: &AttachmentKey,
        ports: Option<&PortSet>,
    ) -> Result<(), StoreError> {
        let reserved = ports.map(|ports| [&self.contents.reserved_ports, ports]);
        self.file.remove_record(key, reserved)?;
        crash::point_at("remove-record");
        self.contents.records.remove(key);
        self.note_ports(ports);
        Ok(())
    }

    fn note_ports(&mut self, ports: Option<&PortSet>) {
        if let Some(ports) = ports {
            self.contents.reserved_ports.clone_from(ports);
        }
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

    /// Remembers the ports of the node that we have reserved.
    pub fn put_reserved_ports(&mut self, ports: &PortSet) -> Result<(), StoreError> {
        if *ports != self.contents.reserved_ports {
            let before = &self.contents.reserved_ports;
            self.file.put_reserved_ports(before, ports)?;
            crash::point_at("put-reserved-ports");
            self.contents.reserved_ports.clone_from(ports);
        }
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

#[cfg(test)]
mod tests;
