//! Our netfilter table, `inet viaduct`: hostports for packets that enter by links without our
//! programs, and the check of their source; hostports for the node's own sockets.
//!
//! The table as a whole is one transaction. Its maps mirror the hostport table: a hostport is
//! written to both by one step. See decision 81.

mod elements;
mod ruleset;
mod stale_flows;

use std::io;

use nix::errno::Errno;
use steps::{Entries, Entry, EntryKey, NetfilterState, NetfilterTable};

use crate::error::is;
use crate::firewall::nftables::{Batch, Element, Nftables, ReadElement};
use elements::{MAPS, MirroredHostport};
pub(crate) use ruleset::TABLE;
use ruleset::{FAMILY, LINKS};
use stale_flows::StaleFlows;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use stale_flows::fuzz;

/// The table in the kernel, as far as this agent knows.
pub(crate) struct Netfilter {
    /// Opened with the first use.
    socket: Option<Nftables>,
    /// Whether the table has the maps of hostports.
    mirrors: bool,
    /// Whether the kernel has refused the table: it lacks an expression.
    unsupported: bool,
}

impl Netfilter {
    pub(crate) fn new() -> Self {
        Self {
            socket: None,
            mirrors: false,
            unsupported: false,
        }
    }

    fn socket(&mut self) -> io::Result<Option<&mut Nftables>> {
        if self.socket.is_none() {
            self.socket = Nftables::open()?;
        }
        Ok(self.socket.as_mut())
    }

    /// Reads the table. `hostports` are the rows of the hostport table, which it must mirror.
    pub(crate) fn observe(&mut self, hostports: &Entries) -> io::Result<NetfilterState> {
        let state = self.read(hostports)?;
        self.mirrors = matches!(&state, NetfilterState::Present(table) if table.hostports)
            || state == NetfilterState::Damaged;
        Ok(state)
    }

    fn read(&mut self, hostports: &Entries) -> io::Result<NetfilterState> {
        if self.unsupported {
            return Ok(NetfilterState::Unsupported);
        }
        let Some(socket) = self.socket()? else {
            return Ok(NetfilterState::Unsupported);
        };
        match socket.has_table(FAMILY, TABLE) {
            Ok(true) => {}
            Ok(false) => return Ok(NetfilterState::Absent),
            Err(error) if is_unsupported(&error) => return Ok(NetfilterState::Unsupported),
            Err(error) => return Err(error),
        }
        let Some(table) = ruleset::read(socket)? else {
            return Ok(NetfilterState::Damaged);
        };
        if table.hostports && !has_hostports(socket, hostports)? {
            return Ok(NetfilterState::Damaged);
        }
        Ok(NetfilterState::Present(table))
    }

    /// Replaces the table.
    pub(crate) fn put(&mut self, table: &NetfilterTable, hostports: &Entries) -> io::Result<()> {
        let mut batch = Batch::default();
        // The table may or may not exist.
        batch.add_table(FAMILY, TABLE);
        batch.delete_table(FAMILY, TABLE);
        ruleset::add(&mut batch, table);
        if table.hostports {
            for map in MAPS {
                let rows: Vec<Element> = mirrored(hostports)
                    .filter(|hostport| hostport.map == map)
                    .map(MirroredHostport::element)
                    .collect();
                batch.add_elements(FAMILY, TABLE, map, &rows);
            }
        }
        let Some(socket) = self.socket()? else {
            return Err(Errno::EOPNOTSUPP.into());
        };
        match socket.commit(batch).map_err(io::Error::from) {
            Ok(()) => {
                self.mirrors = table.hostports;
                Ok(())
            }
            Err(error) => {
                self.unsupported = is_unsupported(&error);
                Err(error)
            }
        }
    }

    /// Removes the table.
    pub(crate) fn remove(&mut self) -> io::Result<()> {
        self.mirrors = false;
        let Some(socket) = self.socket()? else {
            return Ok(());
        };
        let mut batch = Batch::default();
        batch.add_table(FAMILY, TABLE);
        batch.delete_table(FAMILY, TABLE);
        Ok(socket.commit(batch)?)
    }

    /// Writes a hostport to the table, if it mirrors hostports. A table that is gone is left to the
    /// next reconciliation.
    pub(crate) fn put_hostport(
        &mut self,
        key: &EntryKey,
        entry: &Entry,
        is_local: impl Fn(std::net::IpAddr) -> bool,
    ) -> io::Result<()> {
        let Some(hostport) = MirroredHostport::of(key, entry).filter(|_| self.mirrors) else {
            return Ok(());
        };
        let element = hostport.clone().element();
        let mut add = Batch::default();
        add.add_elements(FAMILY, TABLE, hostport.map, std::slice::from_ref(&element));
        let added = match self.commit(add) {
            // It has another pod's address.
            Err(error) if is(&error, Errno::EEXIST) => {
                let mut replace = Batch::default();
                replace.delete_elements(FAMILY, TABLE, hostport.map, &[hostport.key_element()]);
                replace.add_elements(FAMILY, TABLE, hostport.map, &[element]);
                self.commit(replace)
            }
            other => other,
        };
        match added {
            Err(error) if is(&error, Errno::ENOENT) => self.mirrors = false,
            other => other?,
        }
        end_flows(StaleFlows::before(key).as_ref(), is_local);
        Ok(())
    }

    /// Removes a hostport from the table. One that is not there is success.
    pub(crate) fn remove_hostport(
        &mut self,
        key: &EntryKey,
        is_local: impl Fn(std::net::IpAddr) -> bool,
    ) -> io::Result<()> {
        let Some(hostport) = MirroredHostport::key_of(key).filter(|_| self.mirrors) else {
            return Ok(());
        };
        let mut batch = Batch::default();
        batch.delete_elements(FAMILY, TABLE, hostport.map, &[hostport.key_element()]);
        match self.commit(batch) {
            Err(error) if is(&error, Errno::ENOENT) => {}
            other => other?,
        }
        end_flows(StaleFlows::before(key).as_ref(), is_local);
        Ok(())
    }

    fn commit(&mut self, batch: Batch) -> io::Result<()> {
        match self.socket()? {
            Some(socket) => Ok(socket.commit(batch)?),
            None => Err(Errno::ENOENT.into()),
        }
    }
}

/// Ends UDP connections in the conntrack table that keep an earlier translation of the hostport. A
/// failure is logged: they end by their timeout.
fn end_flows(stale: Option<&StaleFlows>, is_local: impl Fn(std::net::IpAddr) -> bool) {
    let Some(stale) = stale else {
        return;
    };
    if let Err(error) = stale.end(is_local) {
        tracing::warn!(%error, port = stale.port(), "cannot end tracked UDP connections of a hostport: they end by their timeout");
    }
}

fn mirrored(hostports: &Entries) -> impl Iterator<Item = MirroredHostport> {
    let rows = hostports.iter();
    rows.filter_map(|(key, entry)| MirroredHostport::of(key, entry))
}

/// Returns whether the maps have exactly these hostports.
fn has_hostports(socket: &mut Nftables, hostports: &Entries) -> io::Result<bool> {
    for map in MAPS {
        let mut wanted: Vec<ReadElement> = mirrored(hostports)
            .filter(|hostport| hostport.map == map)
            .map(MirroredHostport::read)
            .collect();
        let mut found = socket.elements(FAMILY, TABLE, map)?;
        wanted.sort();
        found.sort();
        if wanted != found {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the kernel lacks nftables, or an expression of our rules.
fn is_unsupported(error: &io::Error) -> bool {
    [
        Errno::EOPNOTSUPP,
        Errno::EAFNOSUPPORT,
        Errno::EPROTONOSUPPORT,
        Errno::ENOENT,
        Errno::EINVAL,
    ]
    .into_iter()
    .any(|errno| is(error, errno))
}

/// Returns the names in the set of links.
fn links(socket: &mut Nftables) -> io::Result<Vec<String>> {
    let names = socket.elements(FAMILY, TABLE, LINKS)?;
    Ok(names
        .iter()
        .map(|element| crate::firewall::nftables::text(&element.key))
        .collect())
}
