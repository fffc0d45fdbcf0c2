//! Addresses of the nodes whose tunnelled packets this node accepts.

use std::io;

use abi::Address;
use abi::maps::{self, MapDef};
use steps::{Entry, EntryKey, LinkRef};

use crate::bpf::encoding;
use crate::bpf::table::Rows;
use crate::netlink::ifindex::Names;

/// Rows of [`maps::TUNNEL_PEERS`].
pub(crate) struct TunnelPeers;

impl Rows for TunnelPeers {
    type Key = Address;
    type Value = u32;
    const MAP: MapDef<Address, u32> = maps::TUNNEL_PEERS;

    fn key(_: &Names, key: &EntryKey) -> Option<io::Result<Address>> {
        let EntryKey::TunnelPeer(address) = key else {
            return None;
        };
        Some(Ok(encoding::address(*address)))
    }

    fn value(_: &Names, entry: &Entry) -> Option<io::Result<u32>> {
        matches!(entry, Entry::TunnelPeer).then_some(Ok(1))
    }

    fn read_key(address: Address, _: &dyn Fn(u32) -> LinkRef) -> Option<EntryKey> {
        Some(EntryKey::TunnelPeer(encoding::ip(address)))
    }

    fn read(_: &u32, _: &dyn Fn(u32) -> LinkRef) -> Entry {
        Entry::TunnelPeer
    }
}
