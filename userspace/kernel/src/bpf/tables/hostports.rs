//! Pods that publish host ports.

use std::io;
use std::net::IpAddr;

use abi::maps::{self, MapDef};
use abi::{Family, Hostport, HostportKey};
use model::Protocol;
use steps::{Entry, EntryKey, LinkRef};

use crate::bpf::encoding;
use crate::bpf::map::{ANY, Wire, present, written};
use crate::bpf::table::{HashTable, Rows, mismatch};
use crate::netlink::ifindex::Names;

/// Rows of [`maps::HOSTPORTS`].
pub(crate) struct Hostports;

impl HashTable<Hostports> {
    /// Lets `process` (thread group ID) bind the port of a hostport; 0 for no process. An entry
    /// that is not there is success. Writing the entry again withdraws the permission.
    pub(crate) fn set_binder(&mut self, key: &EntryKey, process: u32) -> io::Result<()> {
        let key = Wire(hostport_key(key).ok_or_else(mismatch)?);
        let Some(Wire(value)) = present(self.0.get(&key, ANY))? else {
            return Ok(());
        };
        let value = Hostport {
            binder: process,
            ..value
        };
        written(self.0.insert(key, Wire(value), ANY))
    }
}

impl Rows for Hostports {
    type Key = HostportKey;
    type Value = Hostport;
    const MAP: MapDef<HostportKey, Hostport> = maps::HOSTPORTS;

    fn key(_: &Names, key: &EntryKey) -> Option<io::Result<HostportKey>> {
        hostport_key(key).map(Ok)
    }

    fn value(_: &Names, entry: &Entry) -> Option<io::Result<Hostport>> {
        let Entry::Hostport {
            address,
            port,
            slot,
            generation,
        } = entry
        else {
            return None;
        };
        Some(Ok(Hostport {
            address: encoding::address(*address),
            port: abi::Port::new(*port),
            pod: *slot,
            generation: *generation,
            ..Hostport::default()
        }))
    }

    fn read_key(key: HostportKey, _: &dyn Fn(u32) -> LinkRef) -> Option<EntryKey> {
        entry_key(key)
    }

    fn read(value: &Hostport, _: &dyn Fn(u32) -> LinkRef) -> Entry {
        Entry::Hostport {
            address: encoding::ip(value.address),
            port: value.port.number(),
            slot: value.pod,
            generation: value.generation,
        }
    }
}

fn hostport_key(key: &EntryKey) -> Option<HostportKey> {
    let EntryKey::Hostport {
        address,
        ipv4,
        port,
        protocol,
    } = key
    else {
        return None;
    };
    let (port, number) = (abi::Port::new(*port), protocol.number());
    let family = if *ipv4 { Family::V4 } else { Family::V6 };
    Some(match address {
        Some(address) => HostportKey::new(encoding::address(*address), port, number),
        None => HostportKey::wildcard(family, port, number),
    })
}

/// Converts a hostport's key. `None` for a protocol other than TCP, UDP and SCTP.
fn entry_key(key: HostportKey) -> Option<EntryKey> {
    let protocol = Protocol::from_number(key.protocol)?;
    let address: Option<IpAddr> = encoding::ip_or_none(key.address);
    Some(EntryKey::Hostport {
        address,
        ipv4: key.family == Family::V4 as u8,
        port: key.port.number(),
        protocol,
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hostport_keys_survive_the_round_trip_through_the_abi(given: Option<Ipv4Addr>, port: u16) {
            prop_assume!(given != Some(Ipv4Addr::UNSPECIFIED));
            let key = EntryKey::Hostport {
                address: given.map(IpAddr::V4),
                ipv4: true,
                port,
                protocol: Protocol::Udp,
            };
            prop_assert_eq!(hostport_key(&key).and_then(entry_key), Some(key));
        }
    }
}
