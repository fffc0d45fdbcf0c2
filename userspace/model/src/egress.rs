//! Fixed source addresses of a network's flows to the outside.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses of the node that masquerading pods of a network get, instead of the uplink's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EgressAddresses {
    /// Source of IPv4 flows; `None` for the uplink's address.
    pub v4: Option<Ipv4Addr>,
    /// Source of IPv6 flows; `None` for the uplink's address.
    pub v6: Option<Ipv6Addr>,
}

/// Error of a list with two addresses of one family: there is no rule to choose between them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is the second address of its family")]
pub struct SecondEgressAddress(pub IpAddr);

impl EgressAddresses {
    /// Returns the addresses of a list; the same address may be repeated.
    pub fn of(list: impl IntoIterator<Item = IpAddr>) -> Result<Self, SecondEgressAddress> {
        let mut addresses = Self::default();
        for address in list {
            let is_second = match address {
                IpAddr::V4(own) => addresses.v4.replace(own).is_some_and(|other| other != own),
                IpAddr::V6(own) => addresses.v6.replace(own).is_some_and(|other| other != own),
            };
            if is_second {
                return Err(SecondEgressAddress(address));
            }
        }
        Ok(addresses)
    }

    /// Returns the addresses, IPv4 first.
    pub fn iter(self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.v4.map(IpAddr::V4);
        v4.into_iter().chain(self.v6.map(IpAddr::V6))
    }

    /// Returns whether flows get the uplink's address in both families.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Result<EgressAddresses, SecondEgressAddress> {
        EgressAddresses::of(texts.iter().map(|text| text.parse().unwrap()))
    }

    #[test]
    fn a_list_has_at_most_one_egress_address_of_each_family() {
        let both = of(&["2001:db8::9", "192.0.2.9", "192.0.2.9"]).unwrap();
        let texts: Vec<String> = both.iter().map(|own| own.to_string()).collect();
        assert_eq!(texts, ["192.0.2.9", "2001:db8::9"]);
        assert!(of(&[]).unwrap().is_empty() && !both.is_empty());
        for second in [["192.0.2.9", "192.0.2.8"], ["2001:db8::9", "2001:db8::8"]] {
            let error = of(&second).unwrap_err();
            assert_eq!(error, SecondEgressAddress(second[1].parse().unwrap()));
        }
    }
}
