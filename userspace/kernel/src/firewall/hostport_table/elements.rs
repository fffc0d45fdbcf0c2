//! Elements of the table's maps: one for each row of the hostport table.

use std::net::IpAddr;

use model::Protocol;
use steps::{Entry, EntryKey};

use crate::firewall::nftables::{Element, ReadElement};

/// Maps from protocol and port, and from address, protocol and port, to the pod's address and port.
pub(super) const ANY_V4: &str = "ports4";
pub(super) const ONE_V4: &str = "addresses4";
pub(super) const ANY_V6: &str = "ports6";
pub(super) const ONE_V6: &str = "addresses6";

pub(super) const MAPS: [&str; 4] = [ANY_V4, ONE_V4, ANY_V6, ONE_V6];

/// A hostport as an element of one of the [`MAPS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MirroredHostport {
    pub(super) map: &'static str,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl MirroredHostport {
    /// Returns the element of a row; `None` for other tables, and for addresses that are on no
    /// wire: the loopback's, and link-local ones, which name no link.
    pub(super) fn of(key: &EntryKey, entry: &Entry) -> Option<Self> {
        let Entry::Hostport { address, port, .. } = entry else {
            return None;
        };
        let mut value = octets(*address);
        value.extend(port.to_be_bytes());
        Some(Self {
            value: padded(value),
            ..Self::key_of(key)?
        })
    }

    /// As [`MirroredHostport::of`], without the pod.
    pub(super) fn key_of(key: &EntryKey) -> Option<Self> {
        let EntryKey::Hostport {
            address,
            ipv4,
            port,
            protocol,
        } = key
        else {
            return None;
        };
        let map = match (address, ipv4) {
            (None, true) => ANY_V4,
            (Some(_), true) => ONE_V4,
            (None, false) => ANY_V6,
            (Some(_), false) => ONE_V6,
        };
        if address.is_some_and(is_on_no_wire) {
            return None;
        }
        let mut key = address.map(octets).unwrap_or_default();
        key.extend([number(*protocol), 0, 0, 0]);
        key.extend(port.to_be_bytes());
        Some(Self {
            map,
            key: padded(key),
            value: Vec::new(),
        })
    }

    pub(super) fn element(self) -> Element {
        Element::Value(self.key, self.value)
    }

    /// Returns the element by which the kernel removes it.
    pub(super) fn key_element(&self) -> Element {
        Element::Key(self.key.clone())
    }

    pub(super) fn read(self) -> ReadElement {
        ReadElement {
            key: self.key,
            value: self.value,
        }
    }
}

pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn is_on_no_wire(address: IpAddr) -> bool {
    address.is_loopback() || matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Pads to whole registers of four bytes, as the parts of a concatenation are.
fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the IP protocol number.
fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => abi::protocol::TCP,
        Protocol::Udp => abi::protocol::UDP,
        Protocol::Sctp => abi::protocol::SCTP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(address: Option<&str>, ipv4: bool) -> Option<MirroredHostport> {
        let key = EntryKey::Hostport {
            address: address.map(|text| text.parse().unwrap()),
            ipv4,
            port: 8080,
            protocol: Protocol::Udp,
        };
        let entry = Entry::Hostport {
            address: if ipv4 { "10.1.0.2" } else { "fd00::2" }.parse().unwrap(),
            port: 80,
            slot: 1,
            generation: 1,
        };
        MirroredHostport::of(&key, &entry)
    }

    #[test]
    fn keys_and_values_are_padded_to_registers() {
        let any = row(None, true).unwrap();
        assert_eq!(any.map, ANY_V4);
        assert_eq!(any.key, [17, 0, 0, 0, 0x1f, 0x90, 0, 0]);
        assert_eq!(any.value, [10, 1, 0, 2, 0, 80, 0, 0]);
        let one = row(Some("192.0.2.1"), true).unwrap();
        assert_eq!(one.map, ONE_V4);
        assert_eq!(one.key, [192, 0, 2, 1, 17, 0, 0, 0, 0x1f, 0x90, 0, 0]);
        let v6 = row(Some("2001:db8::1"), false).unwrap();
        assert_eq!((v6.map, v6.key.len(), v6.value.len()), (ONE_V6, 24, 20));
        assert_eq!(row(None, false).unwrap().map, ANY_V6);
    }

    #[test]
    fn addresses_that_are_on_no_wire_have_no_element() {
        assert_eq!(row(Some("127.0.0.1"), true), None);
        assert_eq!(row(Some("::1"), false), None);
        assert_eq!(row(Some("fe80::1"), false), None);
    }
}
