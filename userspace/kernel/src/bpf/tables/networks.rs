//! Gateways and Ethernet addresses of bridges.

use std::io;

use abi::maps::{self, MapDef};
use steps::{Entry, EntryKey, LinkRef};

use crate::bpf::encoding::{self, address_or_any, ip_or_none};
use crate::bpf::table::Rows;
use crate::netlink::ifindex::Names;

/// Rows of [`maps::NETWORKS`].
pub(crate) struct Networks;

impl Rows for Networks {
    type Key = u32;
    type Value = abi::Network;
    const MAP: MapDef<u32, abi::Network> = maps::NETWORKS;

    fn key(names: &Names, key: &EntryKey) -> Option<io::Result<u32>> {
        let EntryKey::Network(bridge) = key else {
            return None;
        };
        Some(names.index_of(bridge))
    }

    fn value(_: &Names, entry: &Entry) -> Option<io::Result<abi::Network>> {
        let Entry::Network {
            v4,
            v6,
            mac,
            duplicates,
        } = entry
        else {
            return None;
        };
        let [duplicates_v4, duplicates_v6] = duplicates.unwrap_or_default();
        Some(Ok(abi::Network {
            v4: address_or_any(*v4),
            v6: address_or_any(*v6),
            mac: encoding::mac(*mac),
            duplicates_v4,
            duplicates_v6,
        }))
    }

    fn read_key(bridge: u32, link: &dyn Fn(u32) -> LinkRef) -> Option<EntryKey> {
        Some(EntryKey::Network(link(bridge)))
    }

    fn read(value: &abi::Network, _: &dyn Fn(u32) -> LinkRef) -> Entry {
        let duplicates = [value.duplicates_v4, value.duplicates_v6];
        Entry::Network {
            v4: ip_or_none(value.v4),
            v6: ip_or_none(value.v6),
            mac: encoding::model_mac(value.mac),
            duplicates: (duplicates != [0; 2]).then_some(duplicates),
        }
    }
}
