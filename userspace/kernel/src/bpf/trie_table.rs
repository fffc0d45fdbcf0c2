//! A table whose entries the planner plans, and which is one trie: its keys are prefixes.

use std::io;

use abi::maps::MapDef;
use abi::{Address, PrefixKey};
use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use model::Cidr;
use steps::{Entries, Entry, EntryKey, LinkRef};

use crate::bpf::map::{ANY, Layout, Trie, Wire, removed, take, written};
use crate::bpf::table::{Table, mismatch};
use crate::bpf::{batch, encoding};
use crate::error::OpenError;
use crate::netlink::ifindex::Names;

/// How the entries of a trie look in its map. Enough for a [`Table`] that is one [`TrieTable`].
pub(crate) trait TrieRows {
    /// Bits of a key.
    type Bits: Layout;
    /// Value of the map.
    type Value: Layout;
    /// The map.
    const MAP: MapDef<Self::Bits, Self::Value>;

    /// Returns the number of significant bits and the bits; `None` for a key of another table.
    fn key(key: &EntryKey) -> Option<(u32, Self::Bits)>;

    /// Returns the map's value; `None` for an entry of another table.
    fn value(entry: &Entry) -> Option<Self::Value>;

    /// Returns the planner's key; `None` for one that the agent never writes.
    fn read_key(length: u32, bits: Self::Bits) -> Option<EntryKey>;

    /// Returns the planner's entry.
    fn read(value: Self::Value) -> Entry;
}

/// A table that is one trie.
pub(crate) struct TrieTable<R: TrieRows>(Trie<R::Bits, R::Value>);

impl<R: TrieRows> Table for TrieTable<R> {
    fn take(object: &mut Ebpf) -> Result<Self, OpenError> {
        Ok(Self(take(object, &R::MAP)?))
    }

    fn put(&mut self, _: &Names, key: &EntryKey, entry: &Entry) -> io::Result<()> {
        let value = R::value(entry).ok_or_else(mismatch)?;
        written(self.0.insert(&written_key::<R>(key)?, Wire(value), ANY))
    }

    fn remove(&mut self, _: &Names, key: &EntryKey) -> io::Result<()> {
        removed(self.0.remove(&written_key::<R>(key)?))
    }

    fn find(&self, _: &Names, key: &EntryKey) -> io::Result<Option<Entry>> {
        // A lookup returns the longest match, which may be another prefix.
        Ok(self.list(&LinkRef::Gone)?.remove(key))
    }

    fn list(&self, _: &dyn Fn(u32) -> LinkRef) -> io::Result<Entries> {
        let listed = batch::list(&self.0)?.into_iter();
        let entry = |(key, value): (Key<Wire<R::Bits>>, Wire<R::Value>)| {
            let planned = R::read_key(key.prefix_len(), key.data().0)?;
            Some((planned, R::read(value.0)))
        };
        Ok(listed.filter_map(entry).collect())
    }
}

fn written_key<R: TrieRows>(key: &EntryKey) -> io::Result<Key<Wire<R::Bits>>> {
    let (length, bits) = R::key(key).ok_or_else(mismatch)?;
    Ok(Key::new(length, Wire(bits)))
}

/// Returns the key of a prefix of addresses.
pub(crate) fn prefix_key(prefix: Cidr) -> (u32, Address) {
    let key = encoding::prefix_key(prefix);
    (key.prefix_len, key.address)
}

/// Returns the prefix of addresses of a key; `None` for one that the agent never writes.
pub(crate) fn prefix(length: u32, address: Address) -> Option<Cidr> {
    encoding::prefix(PrefixKey {
        prefix_len: length,
        address,
    })
}
