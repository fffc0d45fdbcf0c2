//! Uplinks.

use std::io;

use abi::maps::{self, MapDef};
use abi::{SOURCES, Source, Uplink, UplinkFlags};
use model::InterfaceAddress;
use steps::{Entry, EntryKey, LinkRef};

use crate::bpf::encoding;
use crate::bpf::table::Rows;
use crate::netlink::ifindex::Names;

/// Length of an Ethernet header in bytes.
const ETHERNET: u32 = 14;

/// Rows of [`maps::UPLINKS`].
pub(crate) struct Uplinks;

impl Rows for Uplinks {
    type Key = u32;
    type Value = Uplink;
    const MAP: MapDef<u32, Uplink> = maps::UPLINKS;

    fn key(names: &Names, key: &EntryKey) -> Option<io::Result<u32>> {
        let EntryKey::Uplink(link) = key else {
            return None;
        };
        Some(names.index_of(link))
    }

    fn value(_: &Names, entry: &Entry) -> Option<io::Result<Uplink>> {
        let Entry::Uplink {
            ethernet,
            mtu,
            sources,
            open,
            tunnel,
        } = entry
        else {
            return None;
        };
        if sources.len() > SOURCES {
            return None;
        }
        let mut uplink = Uplink {
            l2_len: if *ethernet { ETHERNET } else { 0 },
            mtu: *mtu,
            flags: flag(*open, UplinkFlags::OPEN) | flag(*tunnel, UplinkFlags::TUNNEL),
            ..Uplink::default()
        };
        for (row, source) in uplink.sources.iter_mut().zip(sources) {
            *row = Source {
                address: encoding::address(source.address),
                prefix_len: source.prefix_len.into(),
                reserved: 0,
            };
        }
        Some(Ok(uplink))
    }

    fn read_key(index: u32, link: &dyn Fn(u32) -> LinkRef) -> Option<EntryKey> {
        Some(EntryKey::Uplink(link(index)))
    }

    fn read(uplink: &Uplink, _: &dyn Fn(u32) -> LinkRef) -> Entry {
        let used = uplink.sources.iter().filter(|row| !row.address.is_any());
        let source = |row: &Source| InterfaceAddress {
            address: encoding::ip(row.address),
            prefix_len: u8::try_from(row.prefix_len).unwrap_or(u8::MAX),
        };
        Entry::Uplink {
            ethernet: uplink.l2_len != 0,
            mtu: uplink.mtu,
            sources: used.take(SOURCES).map(source).collect(),
            open: uplink.flags & UplinkFlags::OPEN != 0,
            tunnel: uplink.flags & UplinkFlags::TUNNEL != 0,
        }
    }
}

const fn flag(set: bool, flag: u32) -> u32 {
    if set { flag } else { 0 }
}
