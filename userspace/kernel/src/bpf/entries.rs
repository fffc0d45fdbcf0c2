//! Writes, removes and reads table entries, with links by name.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use model::IfName;
use steps::{Entries, Entry, EntryKey, LinkRef};

use crate::bpf::tables::{Hash, Tables, Wire, prefix_key, present, removed, written};
use crate::bpf::{batch, counters, encoding, limits};
use crate::error::io_error;
use crate::netlink::ifindex::Names;

/// Only index of the settings array.
const ONLY: u32 = 0;

/// `BPF_ANY`: add the entry or overwrite it.
const ANY: u64 = 0;

/// Writes an entry, then begins an epoch, which makes cached verdicts stale.
pub(crate) fn put(tables: &mut Tables, key: &EntryKey, entry: &Entry) -> io::Result<()> {
    // The epoch begins after the write, and also if it failed: a part of the entry may have
    // changed.
    let wrote = write(tables, key, entry);
    tables.begin_epoch().and(wrote)
}

fn write(tables: &mut Tables, key: &EntryKey, entry: &Entry) -> io::Result<()> {
    let names = &tables.names;
    match (key, entry) {
        (EntryKey::Pod(slot @ 1..), Entry::Pod { .. } | Entry::FreePod { .. }) => {
            let pod = pod(names, entry)?;
            counters::start(tables, *slot, &pod)?;
            written(tables.pods.set(*slot, Wire(pod), ANY))
        }
        (EntryKey::Limit(slot @ 1..), Entry::Limit { .. }) => limits::put(tables, *slot, entry),
        (EntryKey::Interface(link), Entry::Interface { slot, limited }) => {
            let value = Wire(interface(*slot, *limited));
            written(tables.interfaces.insert(names.index_of(link)?, value, ANY))
        }
        (EntryKey::Endpoint(address), Entry::Endpoint { .. }) => {
            let key = Wire(encoding::address(*address));
            let value = Wire(endpoint(names, entry)?);
            written(tables.endpoints.insert(key, value, ANY))
        }
        (
            EntryKey::Hostport {
                address,
                ipv4,
                port,
                protocol,
            },
            Entry::Hostport { .. },
        ) => {
            let key = Wire(encoding::hostport_key(*address, *ipv4, *port, *protocol));
            written(tables.hostports.insert(key, Wire(hostport(entry)?), ANY))
        }
        (EntryKey::Network(bridge), Entry::Network { .. }) => {
            let value = Wire(network(entry)?);
            written(tables.networks.insert(names.index_of(bridge)?, value, ANY))
        }
        (EntryKey::Egress(bridge), Entry::Egress { v4, v6 }) => {
            let value = Wire(encoding::egress(*v4, *v6));
            written(tables.egress.insert(names.index_of(bridge)?, value, ANY))
        }
        (EntryKey::Uplink(link), Entry::Uplink { .. }) => {
            let value = Wire(uplink(entry)?);
            written(tables.uplinks.insert(names.index_of(link)?, value, ANY))
        }
        (EntryKey::Local(address), Entry::Local) => written(tables.locals.insert(
            Wire(encoding::address(*address)),
            1,
            ANY,
        )),
        (EntryKey::Prefix(prefix), Entry::Prefix { .. }) => {
            let key = prefix_key(encoding::prefix_key(*prefix));
            let class = encoding::class(entry).ok_or_else(mismatch)?;
            written(tables.prefixes.insert(&key, class, ANY))
        }
        (EntryKey::Settings, Entry::Settings(settings)) => {
            let settings = with_cookie(settings, tables.netns_cookie);
            written(tables.settings.set(ONLY, Wire(settings), ANY))
        }
        _ => Err(mismatch()),
    }
}

fn uplink(entry: &Entry) -> io::Result<abi::Uplink> {
    let Entry::Uplink {
        ethernet,
        mtu,
        sources,
        open,
    } = entry
    else {
        return Err(mismatch());
    };
    if sources.len() > abi::SOURCES {
        return Err(mismatch());
    }
    let mut uplink = encoding::uplink(*ethernet, *mtu, sources);
    if *open {
        uplink.flags |= abi::UplinkFlags::OPEN;
    }
    Ok(uplink)
}

/// Returns the settings with the cookie of our network namespace, which the planner does not have.
fn with_cookie(settings: &abi::Settings, netns_cookie: u64) -> abi::Settings {
    abi::Settings {
        netns_cookie,
        ..*settings
    }
}

/// Removes an entry, then begins an epoch. An entry that is not there is success.
pub(crate) fn remove(tables: &mut Tables, key: &EntryKey) -> io::Result<()> {
    // The epoch begins after the removal, and also if it failed.
    let removed = erase(tables, key);
    tables.begin_epoch().and(removed)
}

fn erase(tables: &mut Tables, key: &EntryKey) -> io::Result<()> {
    match key {
        EntryKey::Pod(slot) if *slot < tables.pods.len() => {
            written(tables.pods.set(*slot, Wire(abi::Pod::default()), ANY))
        }
        EntryKey::Pod(_) => Ok(()),
        EntryKey::Limit(slot) => limits::remove(tables, *slot),
        EntryKey::Interface(link) => match tables.names.find_of(link)? {
            Some(index) => removed(tables.interfaces.remove(&index)),
            None => Ok(()),
        },
        EntryKey::Endpoint(address) => {
            removed(tables.endpoints.remove(&Wire(encoding::address(*address))))
        }
        EntryKey::Hostport {
            address,
            ipv4,
            port,
            protocol,
        } => {
            let key = encoding::hostport_key(*address, *ipv4, *port, *protocol);
            removed(tables.hostports.remove(&Wire(key)))
        }
        EntryKey::Network(bridge) => match tables.names.find_of(bridge)? {
            Some(index) => removed(tables.networks.remove(&index)),
            None => Ok(()),
        },
        EntryKey::Egress(bridge) => match tables.names.find_of(bridge)? {
            Some(index) => removed(tables.egress.remove(&index)),
            None => Ok(()),
        },
        EntryKey::Uplink(link) => match tables.names.find_of(link)? {
            Some(index) => removed(tables.uplinks.remove(&index)),
            None => Ok(()),
        },
        EntryKey::Local(address) => {
            removed(tables.locals.remove(&Wire(encoding::address(*address))))
        }
        EntryKey::Prefix(prefix) => {
            let key = prefix_key(encoding::prefix_key(*prefix));
            removed(tables.prefixes.remove(&key))
        }
        EntryKey::Settings => written(tables.settings.set(ONLY, Wire(NO_SETTINGS), ANY)),
    }
}

/// Returns whether an address is one of the node's own.
pub(crate) fn is_local(locals: &Hash<Wire<abi::Address>, u32>, address: IpAddr) -> bool {
    locals.get(&Wire(encoding::address(address)), ANY).is_ok()
}

/// Reads the hostports.
pub(crate) fn hostports(tables: &Tables) -> io::Result<Entries> {
    let rows = batch::list(&tables.hostports)?.into_iter();
    Ok(rows
        .filter_map(|(key, value)| Some((encoding::hostport(key.0)?, hostport_entry(&value.0))))
        .collect())
}

/// Reads all entries but the flows; `names` are the links that exist, by index.
pub(crate) fn all(tables: &Tables, names: &BTreeMap<u32, IfName>) -> io::Result<Entries> {
    let link = |index: u32| match names.get(&index) {
        Some(name) => LinkRef::Name(name.clone()),
        None => LinkRef::Gone(index),
    };
    let mut entries = pods(tables, link)?;
    for (index, value) in batch::list(&tables.interfaces)? {
        entries.insert(EntryKey::Interface(link(index)), interface_entry(value.0));
    }
    for (address, value) in batch::list(&tables.endpoints)? {
        let key = EntryKey::Endpoint(encoding::ip(address.0));
        entries.insert(key, endpoint_entry(&value.0, link));
    }
    entries.extend(hostports(tables)?);
    for (index, value) in batch::list(&tables.networks)? {
        let entry = encoding::network_entry(&value.0);
        entries.insert(EntryKey::Network(link(index)), entry);
    }
    for (index, value) in batch::list(&tables.egress)? {
        let entry = Entry::Egress {
            v4: encoding::ip_or_none(value.0.v4),
            v6: encoding::ip_or_none(value.0.v6),
        };
        entries.insert(EntryKey::Egress(link(index)), entry);
    }
    for (index, value) in batch::list(&tables.uplinks)? {
        entries.insert(
            EntryKey::Uplink(link(index)),
            encoding::uplink_entry(&value.0),
        );
    }
    for (address, _) in batch::list(&tables.locals)? {
        entries.insert(EntryKey::Local(encoding::ip(address.0)), Entry::Local);
    }
    for (key, class) in batch::list(&tables.prefixes)? {
        let key = abi::PrefixKey {
            prefix_len: key.prefix_len(),
            address: key.data().0,
        };
        let entry = encoding::prefix_entry(class);
        entries.extend(encoding::prefix(key).map(|prefix| (EntryKey::Prefix(prefix), entry)));
    }
    let mut settings = tables
        .settings
        .get(&ONLY, ANY)
        .map_err(|error| io_error(&error))?
        .0;
    if settings != NO_SETTINGS {
        // The planner's settings have no cookie. Settings with another namespace's cookie differ
        // from them and are written again.
        if settings.netns_cookie == tables.netns_cookie {
            settings.netns_cookie = 0;
        }
        entries.insert(EntryKey::Settings, Entry::Settings(settings));
    }
    Ok(entries)
}

/// Reads the rows of the pod table that are or were in use, and the limits.
fn pods(tables: &Tables, link: impl Fn(u32) -> LinkRef) -> io::Result<Entries> {
    let mut entries = Entries::new();
    for (slot, row) in batch::list(&tables.pods)? {
        // Slot 0 and rows that were never used are skipped.
        let entry = (slot != 0).then(|| pod_entry(&row.0, &link)).flatten();
        entries.extend(entry.map(|entry| (EntryKey::Pod(slot), entry)));
    }
    entries.extend(limits::all(tables)?);
    Ok(entries)
}

/// Reads the entries under these keys.
pub(crate) fn some(tables: &Tables, keys: &BTreeSet<EntryKey>) -> io::Result<Entries> {
    let mut entries = Entries::new();
    for key in keys {
        let entry = find(tables, key)?;
        entries.extend(entry.map(|entry| (key.clone(), entry)));
    }
    Ok(entries)
}

fn find(tables: &Tables, key: &EntryKey) -> io::Result<Option<Entry>> {
    let named = |index| tables.names.named(index);
    match key {
        EntryKey::Pod(slot) => {
            let row = present(tables.pods.get(slot, ANY))?;
            Ok(row.and_then(|row| pod_entry(&row.0, named)))
        }
        EntryKey::Limit(slot) => limits::find(tables, *slot),
        EntryKey::Interface(link) => {
            let Some(index) = tables.names.find_of(link)? else {
                return Ok(None);
            };
            let value = present(tables.interfaces.get(&index, ANY))?;
            Ok(value.map(|value| interface_entry(value.0)))
        }
        EntryKey::Endpoint(address) => {
            let value = tables
                .endpoints
                .get(&Wire(encoding::address(*address)), ANY);
            Ok(present(value)?.map(|value| endpoint_entry(&value.0, named)))
        }
        EntryKey::Hostport {
            address,
            ipv4,
            port,
            protocol,
        } => {
            let key = encoding::hostport_key(*address, *ipv4, *port, *protocol);
            let value = present(tables.hostports.get(&Wire(key), ANY))?;
            Ok(value.map(|value| hostport_entry(&value.0)))
        }
        // No attachment has an entry with such a key.
        EntryKey::Network(_)
        | EntryKey::Egress(_)
        | EntryKey::Uplink(_)
        | EntryKey::Local(_)
        | EntryKey::Prefix(_)
        | EntryKey::Settings => Ok(None),
    }
}

/// Contents of an array before the first write: zeros, which are not [`abi::Settings::default`].
const NO_SETTINGS: abi::Settings = zerocopy::transmute!([0_u8; size_of::<abi::Settings>()]);

fn pod(names: &Names, entry: &Entry) -> io::Result<abi::Pod> {
    if let Entry::FreePod { generation } = entry {
        return Ok(abi::Pod {
            generation: *generation,
            ..abi::Pod::default()
        });
    }
    let Entry::Pod {
        v4,
        v6,
        mac,
        link,
        bridge,
        generation,
        masquerade,
        trusted,
        bypass,
        isolated,
        ingress,
        access,
    } = entry
    else {
        return Err(mismatch());
    };
    Ok(abi::Pod {
        v4: encoding::address_or_any(*v4),
        v6: encoding::address_or_any(*v6),
        mac: encoding::mac(*mac),
        interface: names.index_of(link)?,
        generation: *generation,
        flags: encoding::masquerade_flags(*masquerade)
            | encoding::spoof_check(*trusted)
            | encoding::bypass(*bypass)
            | encoding::isolated(*isolated)
            | encoding::ingress(*ingress)
            | encoding::access(*access),
        network: names.index_of(bridge)?,
        ..abi::Pod::default()
    })
}

fn pod_entry(row: &abi::Pod, link: impl Fn(u32) -> LinkRef) -> Option<Entry> {
    if row.interface == 0 {
        let generation = row.generation;
        return (generation != 0).then_some(Entry::FreePod { generation });
    }
    Some(Entry::Pod {
        v4: encoding::ip_or_none(row.v4),
        v6: encoding::ip_or_none(row.v6),
        mac: encoding::model_mac(row.mac),
        link: link(row.interface),
        bridge: link(row.network),
        generation: row.generation,
        masquerade: encoding::masquerades(row.flags),
        trusted: encoding::is_trusted(row.flags),
        bypass: encoding::may_bypass(row.flags),
        isolated: encoding::is_isolated(row.flags),
        ingress: encoding::ingress_policy(row.flags),
        access: encoding::network_access(row.flags),
    })
}

fn interface(pod: u32, limited: bool) -> abi::Interface {
    abi::Interface {
        pod,
        flags: encoding::limited(limited),
    }
}

fn interface_entry(value: abi::Interface) -> Entry {
    Entry::Interface {
        slot: value.pod,
        limited: encoding::is_limited(value.flags),
    }
}

fn endpoint(names: &Names, entry: &Entry) -> io::Result<abi::Endpoint> {
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
        return Err(mismatch());
    };
    Ok(abi::Endpoint {
        pod: *slot,
        generation: *generation,
        interface: names.index_of(link)?,
        flags: encoding::masquerade_flags(*masquerade)
            | encoding::spoof_check(false)
            | encoding::published(*published)
            | encoding::limited(*limited),
        mac: encoding::mac(*mac),
        reserved: 0,
    })
}

fn endpoint_entry(value: &abi::Endpoint, link: impl Fn(u32) -> LinkRef) -> Entry {
    Entry::Endpoint {
        slot: value.pod,
        generation: value.generation,
        link: link(value.interface),
        mac: encoding::model_mac(value.mac),
        masquerade: encoding::masquerades(value.flags),
        published: encoding::is_published(value.flags),
        limited: encoding::is_limited(value.flags),
    }
}

fn hostport(entry: &Entry) -> io::Result<abi::Hostport> {
    let Entry::Hostport {
        address,
        port,
        slot,
        generation,
    } = entry
    else {
        return Err(mismatch());
    };
    Ok(abi::Hostport {
        address: encoding::address(*address),
        port: abi::Port::new(*port),
        pod: *slot,
        generation: *generation,
        ..abi::Hostport::default()
    })
}

/// Lets `process` (thread group ID) bind the port of a hostport; 0 for no process. An entry that is
/// not there is success. Writing the entry again withdraws the permission.
pub(crate) fn set_binder(tables: &mut Tables, key: &EntryKey, process: u32) -> io::Result<()> {
    let EntryKey::Hostport {
        address,
        ipv4,
        port,
        protocol,
    } = key
    else {
        return Err(mismatch());
    };
    let key = encoding::hostport_key(*address, *ipv4, *port, *protocol);
    let Some(Wire(value)) = present(tables.hostports.get(&Wire(key), ANY))? else {
        return Ok(());
    };
    let value = abi::Hostport {
        binder: process,
        ..value
    };
    written(tables.hostports.insert(Wire(key), Wire(value), ANY))
}

fn hostport_entry(value: &abi::Hostport) -> Entry {
    Entry::Hostport {
        address: encoding::ip(value.address),
        port: value.port.number(),
        slot: value.pod,
        generation: value.generation,
    }
}

fn network(entry: &Entry) -> io::Result<abi::Network> {
    let Entry::Network {
        v4,
        v6,
        mac,
        duplicates,
    } = entry
    else {
        return Err(mismatch());
    };
    let [duplicates_v4, duplicates_v6] = duplicates.unwrap_or_default();
    Ok(abi::Network {
        v4: encoding::address_or_any(*v4),
        v6: encoding::address_or_any(*v6),
        mac: encoding::mac(*mac),
        duplicates_v4,
        duplicates_v6,
    })
}

pub(crate) fn mismatch() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "the entry does not belong to the table of its key",
    )
}
