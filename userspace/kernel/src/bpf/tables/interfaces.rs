//! Pods behind host links.

use std::io;

use abi::maps::{self, MapDef};
use steps::{Entry, EntryKey, LinkRef};

use crate::bpf::encoding;
use crate::bpf::table::Rows;
use crate::netlink::ifindex::Names;

/// Rows of [`maps::INTERFACES`].
pub(crate) struct Interfaces;

impl Rows for Interfaces {
    type Key = u32;
    type Value = abi::Interface;
    const MAP: MapDef<u32, abi::Interface> = maps::INTERFACES;

    fn key(names: &Names, key: &EntryKey) -> Option<io::Result<u32>> {
        let EntryKey::Interface(link) = key else {
            return None;
        };
        Some(names.index_of(link))
    }

    fn value(_: &Names, entry: &Entry) -> Option<io::Result<abi::Interface>> {
        let Entry::Interface { slot, limited } = entry else {
            return None;
        };
        Some(Ok(abi::Interface {
            pod: *slot,
            flags: encoding::limited(*limited),
        }))
    }

    fn read_key(index: u32, link: &dyn Fn(u32) -> LinkRef) -> Option<EntryKey> {
        Some(EntryKey::Interface(link(index)))
    }

    fn read(value: &abi::Interface, _: &dyn Fn(u32) -> LinkRef) -> Entry {
        Entry::Interface {
            slot: value.pod,
            limited: encoding::is_limited(value.flags),
        }
    }
}
