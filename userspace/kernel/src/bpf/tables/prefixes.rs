//! Prefixes that decide whether packets to them are masqueraded.

use abi::maps::{self, MapDef};
use abi::{Address, PrefixClass};
use steps::{Entry, EntryKey};

use crate::bpf::trie_table::{self, TrieRows};

/// Rows of [`maps::PREFIXES`].
pub(crate) struct PrefixRows;

impl TrieRows for PrefixRows {
    type Bits = Address;
    type Value = u32;
    const MAP: MapDef<Address, u32> = maps::PREFIXES;

    fn key(key: &EntryKey) -> Option<(u32, Address)> {
        let EntryKey::Prefix(prefix) = key else {
            return None;
        };
        Some(trie_table::prefix_key(*prefix))
    }

    fn value(entry: &Entry) -> Option<u32> {
        class(entry)
    }

    fn read_key(length: u32, address: Address) -> Option<EntryKey> {
        trie_table::prefix(length, address).map(EntryKey::Prefix)
    }

    fn read(class: u32) -> Entry {
        let has = |bit| class & bit != 0;
        Entry::Prefix {
            no_masquerade: has(PrefixClass::NO_MASQUERADE),
            pods: has(PrefixClass::PODS),
            shared: has(PrefixClass::SHARED),
            complete: has(PrefixClass::COMPLETE),
            peer: has(PrefixClass::PEER),
        }
    }
}

fn class(entry: &Entry) -> Option<u32> {
    let Entry::Prefix {
        no_masquerade,
        pods,
        shared,
        complete,
        peer,
    } = entry
    else {
        return None;
    };
    let bit = |set: &bool, bit| if *set { bit } else { 0 };
    Some(
        bit(no_masquerade, PrefixClass::NO_MASQUERADE)
            | bit(pods, PrefixClass::PODS)
            | bit(shared, PrefixClass::SHARED)
            | bit(complete, PrefixClass::COMPLETE)
            | bit(peer, PrefixClass::PEER),
    )
}
