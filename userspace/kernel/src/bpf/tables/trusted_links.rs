//! Uplinks that a network trusts.

use std::io;

use abi::TrustedLinkKey;
use abi::maps::{self, MapDef};
use steps::{Entry, EntryKey, LinkRef};

use crate::bpf::table::Rows;
use crate::netlink::ifindex::Names;

/// Rows of [`maps::TRUSTED_LINKS`].
pub(crate) struct TrustedLinks;

impl Rows for TrustedLinks {
    type Key = TrustedLinkKey;
    type Value = u32;
    const MAP: MapDef<TrustedLinkKey, u32> = maps::TRUSTED_LINKS;

    fn key(names: &Names, key: &EntryKey) -> Option<io::Result<TrustedLinkKey>> {
        let EntryKey::TrustedLink { bridge, link } = key else {
            return None;
        };
        let network = names.index_of(bridge);
        Some(network.and_then(|network| {
            let interface = names.index_of(link)?;
            Ok(TrustedLinkKey { network, interface })
        }))
    }

    fn value(_: &Names, entry: &Entry) -> Option<io::Result<u32>> {
        matches!(entry, Entry::TrustedLink).then_some(Ok(1))
    }

    fn read_key(key: TrustedLinkKey, link: &dyn Fn(u32) -> LinkRef) -> Option<EntryKey> {
        Some(EntryKey::TrustedLink {
            bridge: link(key.network),
            link: link(key.interface),
        })
    }

    fn read(_: &u32, _: &dyn Fn(u32) -> LinkRef) -> Entry {
        Entry::TrustedLink
    }
}
