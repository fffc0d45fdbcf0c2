//! Fixed egress addresses of the networks of a bridge.

use std::io;

use abi::maps::{self, MapDef};
use steps::{Entry, EntryKey, LinkRef};

use crate::bpf::encoding::{address_or_any, ip_or_none};
use crate::bpf::table::Rows;
use crate::netlink::ifindex::Names;

/// Rows of [`maps::EGRESS`].
pub(crate) struct Egress;

impl Rows for Egress {
    type Key = u32;
    type Value = abi::Egress;
    const MAP: MapDef<u32, abi::Egress> = maps::EGRESS;

    fn key(names: &Names, key: &EntryKey) -> Option<io::Result<u32>> {
        let EntryKey::Egress(bridge) = key else {
            return None;
        };
        Some(names.index_of(bridge))
    }

    fn value(_: &Names, entry: &Entry) -> Option<io::Result<abi::Egress>> {
        let Entry::Egress { v4, v6 } = entry else {
            return None;
        };
        let value = abi::Egress::new(address_or_any(*v4), address_or_any(*v6));
        Some(Ok(value))
    }

    fn read_key(bridge: u32, link: &dyn Fn(u32) -> LinkRef) -> Option<EntryKey> {
        Some(EntryKey::Egress(link(bridge)))
    }

    fn read(value: &abi::Egress, _: &dyn Fn(u32) -> LinkRef) -> Entry {
        Entry::Egress {
            v4: ip_or_none(value.v4),
            v6: ip_or_none(value.v6),
        }
    }
}
