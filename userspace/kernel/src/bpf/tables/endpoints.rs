//! Pods by address.

use std::io;

use abi::Address;
use abi::maps::{self, MapDef};
use steps::{Entry, EntryKey, LinkRef};

use crate::bpf::encoding;
use crate::bpf::table::Rows;
use crate::netlink::ifindex::Names;

/// Rows of [`maps::ENDPOINTS`].
pub(crate) struct Endpoints;

impl Rows for Endpoints {
    type Key = Address;
    type Value = abi::Endpoint;
    const MAP: MapDef<Address, abi::Endpoint> = maps::ENDPOINTS;

    fn key(_: &Names, key: &EntryKey) -> Option<io::Result<Address>> {
        let EntryKey::Endpoint(address) = key else {
            return None;
        };
        Some(Ok(encoding::address(*address)))
    }

    fn value(names: &Names, entry: &Entry) -> Option<io::Result<abi::Endpoint>> {
        let Entry::Endpoint {
            slot,
            generation,
            link,
            mac,
            masquerade,
            published,
            limited,
        } = entry
        else {
            return None;
        };
        Some(names.index_of(link).map(|interface| abi::Endpoint {
            pod: *slot,
            generation: *generation,
            interface,
            flags: encoding::masquerade_flags(*masquerade)
                | encoding::spoof_check(false)
                | encoding::published(*published)
                | encoding::limited(*limited),
            mac: encoding::mac(*mac),
            reserved: 0,
        }))
    }

    fn read_key(address: Address, _: &dyn Fn(u32) -> LinkRef) -> Option<EntryKey> {
        Some(EntryKey::Endpoint(encoding::ip(address)))
    }

    fn read(value: &abi::Endpoint, link: &dyn Fn(u32) -> LinkRef) -> Entry {
        Entry::Endpoint {
            slot: value.pod,
            generation: value.generation,
            link: link(value.interface),
            mac: encoding::model_mac(value.mac),
            masquerade: encoding::masqueraded(value.flags),
            published: encoding::is_published(value.flags),
            limited: encoding::is_limited(value.flags),
        }
    }
}
