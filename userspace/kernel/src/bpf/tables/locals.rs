//! The node's own addresses.

use std::io;
use std::net::IpAddr;

use abi::Address;
use abi::maps::{self, MapDef};
use steps::{Entry, EntryKey, LinkRef};

use crate::bpf::encoding;
use crate::bpf::map::{ANY, Wire};
use crate::bpf::table::{HashTable, Rows};
use crate::netlink::ifindex::Names;

/// Rows of [`maps::LOCALS`].
pub(crate) struct Locals;

impl HashTable<Locals> {
    /// Returns whether an address is one of the node's own.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.0.get(&Wire(encoding::address(address)), ANY).is_ok()
    }
}

impl Rows for Locals {
    type Key = Address;
    type Value = u32;
    const MAP: MapDef<Address, u32> = maps::LOCALS;

    fn key(_: &Names, key: &EntryKey) -> Option<io::Result<Address>> {
        let EntryKey::Local(address) = key else {
            return None;
        };
        Some(Ok(encoding::address(*address)))
    }

    fn value(_: &Names, entry: &Entry) -> Option<io::Result<u32>> {
        matches!(entry, Entry::Local).then_some(Ok(1))
    }

    fn read_key(address: Address, _: &dyn Fn(u32) -> LinkRef) -> Option<EntryKey> {
        Some(EntryKey::Local(encoding::ip(address)))
    }

    fn read(_: &u32, _: &dyn Fn(u32) -> LinkRef) -> Entry {
        Entry::Local
    }
}
