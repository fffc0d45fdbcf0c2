//! A table whose entries the planner plans: keys and values between the planner's types and a map.

use std::io;
use std::net::IpAddr;

use abi::Address;
use abi::maps::MapDef;
use aya::Ebpf;
use steps::{Entries, Entry, EntryKey, LinkRef};

use crate::bpf::map::{ANY, Hash, Layout, Wire, present, removed, take, written};
use crate::bpf::{batch, encoding};
use crate::error::{OpenError, is_gone};
use crate::netlink::ifindex::Names;

/// A table whose entries the planner plans.
pub(crate) trait Table: Sized {
    /// Takes the maps of the table out of a loaded object.
    fn take(object: &mut Ebpf) -> Result<Self, OpenError>;

    /// Writes an entry.
    fn put(&mut self, names: &Names, key: &EntryKey, entry: &Entry) -> io::Result<()>;

    /// Removes an entry. An entry that is not there is success.
    fn remove(&mut self, names: &Names, key: &EntryKey) -> io::Result<()>;

    /// Reads an entry.
    fn find(&self, names: &Names, key: &EntryKey) -> io::Result<Option<Entry>>;

    /// Reads all entries. `link` returns the link with an index.
    fn list(&self, link: &dyn Fn(u32) -> LinkRef) -> io::Result<Entries>;
}

/// How the entries of a hash look in its map. Enough for a [`Table`] that is one [`HashTable`].
pub(crate) trait Rows {
    /// Key of the map.
    type Key: Layout;
    /// Value of the map.
    type Value: Layout;
    /// The map.
    const MAP: MapDef<Self::Key, Self::Value>;

    /// Returns the map's key; `None` for a key of another table.
    fn key(names: &Names, key: &EntryKey) -> Option<io::Result<Self::Key>>;

    /// Returns the map's value; `None` for an entry of another table, or one that does not fit.
    fn value(names: &Names, entry: &Entry) -> Option<io::Result<Self::Value>>;

    /// Returns the planner's key; `None` for one that the agent never writes.
    fn read_key(key: Self::Key, link: &dyn Fn(u32) -> LinkRef) -> Option<EntryKey>;

    /// Returns the planner's entry.
    fn read(value: &Self::Value, link: &dyn Fn(u32) -> LinkRef) -> Entry;
}

/// Key of a hash that stands for the one field of the planner's key.
pub(crate) trait RowKey: Layout {
    /// Type of the field.
    type Planned;

    /// Returns the map's key.
    fn of(names: &Names, planned: &Self::Planned) -> io::Result<Self>;

    /// Returns the field of the planner's key.
    fn planned(self, link: &dyn Fn(u32) -> LinkRef) -> Self::Planned;
}

/// Interface index.
impl RowKey for u32 {
    type Planned = LinkRef;

    fn of(names: &Names, link: &LinkRef) -> io::Result<Self> {
        names.index_of(link)
    }

    fn planned(self, link: &dyn Fn(u32) -> LinkRef) -> LinkRef {
        link(self)
    }
}

impl RowKey for Address {
    type Planned = IpAddr;

    fn of(_: &Names, address: &IpAddr) -> io::Result<Self> {
        Ok(encoding::address(*address))
    }

    fn planned(self, _: &dyn Fn(u32) -> LinkRef) -> IpAddr {
        encoding::ip(self)
    }
}

/// Declares [`Rows`] whose values are an expression of the planner's entry, and the other way
/// round. Each line is `Rows = MAP<Key, Value>[kind of key] { entry => value, value => entry }`.
macro_rules! rows {
    ($(
        $(#[$doc:meta])*
        $rows:ident = $map:ident<$key:ty, $value:ty>[$kind:ident] {
            $entry:pat => $written:expr,
            $row:pat => $read:expr $(,)?
        }
    )*) => {
        $(
            $(#[$doc])*
            pub(crate) struct $rows;

            impl $crate::bpf::table::Rows for $rows {
                type Key = $key;
                type Value = $value;
                const MAP: abi::maps::MapDef<$key, $value> = abi::maps::$map;

                fn key(names: &Names, key: &EntryKey) -> Option<io::Result<$key>> {
                    let EntryKey::$kind(planned) = key else {
                        return None;
                    };
                    Some($crate::bpf::table::RowKey::of(names, planned))
                }

                fn value(_: &Names, entry: &Entry) -> Option<io::Result<$value>> {
                    let $entry = entry else {
                        return None;
                    };
                    Some(Ok($written))
                }

                fn read_key(key: $key, link: &dyn Fn(u32) -> LinkRef) -> Option<EntryKey> {
                    let planned = $crate::bpf::table::RowKey::planned(key, link);
                    Some(EntryKey::$kind(planned))
                }

                fn read($row: &$value, _: &dyn Fn(u32) -> LinkRef) -> Entry {
                    $read
                }
            }
        )*
    };
}
pub(crate) use rows;

/// A table that is one hash.
pub(crate) struct HashTable<R: Rows>(pub(crate) Hash<R::Key, R::Value>);

impl<R: Rows> Table for HashTable<R> {
    fn take(object: &mut Ebpf) -> Result<Self, OpenError> {
        Ok(Self(take(object, &R::MAP)?))
    }

    fn put(&mut self, names: &Names, key: &EntryKey, entry: &Entry) -> io::Result<()> {
        let key = R::key(names, key).ok_or_else(mismatch)??;
        let value = R::value(names, entry).ok_or_else(mismatch)??;
        written(self.0.insert(Wire(key), Wire(value), ANY))
    }

    fn remove(&mut self, names: &Names, key: &EntryKey) -> io::Result<()> {
        match existing::<R>(names, key)? {
            Some(key) => removed(self.0.remove(&Wire(key))),
            None => Ok(()),
        }
    }

    fn find(&self, names: &Names, key: &EntryKey) -> io::Result<Option<Entry>> {
        let Some(key) = existing::<R>(names, key)? else {
            return Ok(None);
        };
        let value = present(self.0.get(&Wire(key), ANY))?;
        Ok(value.map(|value| R::read(&value.0, &|index| names.named(index))))
    }

    fn list(&self, link: &dyn Fn(u32) -> LinkRef) -> io::Result<Entries> {
        let rows = batch::list(&self.0)?.into_iter();
        Ok(rows
            .filter_map(|(key, value)| Some((R::read_key(key.0, link)?, R::read(&value.0, link))))
            .collect())
    }
}

/// Returns the map's key; `None` where the link in it is gone, and with it the entry.
fn existing<R: Rows>(names: &Names, key: &EntryKey) -> io::Result<Option<R::Key>> {
    match R::key(names, key).ok_or_else(mismatch)? {
        Err(error) if is_gone(&error) => Ok(None),
        key => key.map(Some),
    }
}

/// Returns the error for an entry of another table than its key.
pub(crate) fn mismatch() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "the entry does not belong to the table of its key",
    )
}
