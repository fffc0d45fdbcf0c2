//! Prefixes that decide whether packets to them are masqueraded.

use std::io;

use abi::maps;
use abi::{Address, PrefixClass, PrefixKey};
use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use steps::{Entries, Entry, EntryKey, LinkRef};

use crate::bpf::map::{ANY, Trie, Wire, removed, take, written};
use crate::bpf::table::{Table, mismatch};
use crate::bpf::{batch, encoding};
use crate::error::OpenError;
use crate::netlink::ifindex::Names;

/// The prefix table.
pub(crate) struct Prefixes(Trie<Address, u32>);

impl Table for Prefixes {
    fn take(object: &mut Ebpf) -> Result<Self, OpenError> {
        Ok(Self(take(object, &maps::PREFIXES)?))
    }

    fn put(&mut self, _: &Names, key: &EntryKey, entry: &Entry) -> io::Result<()> {
        let class = class(entry).ok_or_else(mismatch)?;
        written(self.0.insert(&prefix_key(key)?, Wire(class), ANY))
    }

    fn remove(&mut self, _: &Names, key: &EntryKey) -> io::Result<()> {
        removed(self.0.remove(&prefix_key(key)?))
    }

    fn find(&self, _: &Names, key: &EntryKey) -> io::Result<Option<Entry>> {
        let key = prefix_key(key)?;
        // A lookup returns the longest match, which may be another prefix.
        let listed = batch::list(&self.0)?.into_iter();
        let found = |(found, _): &(Key<Wire<Address>>, Wire<u32>)| {
            found.prefix_len() == key.prefix_len() && found.data() == key.data()
        };
        let class = listed.filter(found).map(|(_, class)| class.0).next();
        Ok(class.map(prefix_entry))
    }

    fn list(&self, _: &dyn Fn(u32) -> LinkRef) -> io::Result<Entries> {
        let listed = batch::list(&self.0)?.into_iter();
        Ok(listed
            .filter_map(|(key, class)| {
                let prefix = encoding::prefix(PrefixKey {
                    prefix_len: key.prefix_len(),
                    address: key.data().0,
                })?;
                Some((EntryKey::Prefix(prefix), prefix_entry(class.0)))
            })
            .collect())
    }
}

fn prefix_key(key: &EntryKey) -> io::Result<Key<Wire<Address>>> {
    let EntryKey::Prefix(prefix) = key else {
        return Err(mismatch());
    };
    let key = encoding::prefix_key(*prefix);
    Ok(Key::new(key.prefix_len, Wire(key.address)))
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

fn prefix_entry(class: u32) -> Entry {
    Entry::Prefix {
        no_masquerade: class & PrefixClass::NO_MASQUERADE != 0,
        pods: class & PrefixClass::PODS != 0,
        shared: class & PrefixClass::SHARED != 0,
        complete: class & PrefixClass::COMPLETE != 0,
        peer: class & PrefixClass::PEER != 0,
    }
}
