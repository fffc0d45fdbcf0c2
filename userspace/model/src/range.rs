//! Address ranges as host-local's configuration describes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Cidr, InterfaceAddress};

/// Why ranges cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The prefix has no address to give (behaviour R8).
    #[error("Network {0} too small to allocate from")]
    TooSmall(Cidr),
    /// An end of the range or the gateway lies outside of the subnet.
    #[error("{what} {address} not in network {subnet}")]
    Outside {
        /// Which address.
        what: &'static str,
        /// The address.
        address: IpAddr,
        /// The subnet.
        subnet: Cidr,
    },
    /// The range ends before it starts.
    #[error("RangeStart {first} is after RangeEnd {last}")]
    Backwards {
        /// Start.
        first: IpAddr,
        /// End.
        last: IpAddr,
    },
    /// A set without ranges.
    #[error("empty range set")]
    Empty,
    /// IPv4 and IPv6 in one set.
    #[error("mixed address families in one range set")]
    MixedFamilies,
    /// An address that no interface can have beside its gateway.
    #[error("{0} is no address for a pod")]
    NoAddress(InterfaceAddress),
    /// Two ranges share addresses.
    #[error("subnet {0} overlaps with {1}")]
    Overlap(Cidr, Cidr),
}

/// A pool of addresses: `first..=last` of `subnet`, without the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    subnet: Cidr,
    first: IpAddr,
    last: IpAddr,
    gateway: Option<IpAddr>,
}

impl Range {
    /// A range of `subnet`; what is `None` gets host-local's default: first address `.1`, last one before the
    /// broadcast address (IPv4) or the last of all (IPv6), gateway `.1`.
    pub fn new(
        subnet: Cidr,
        first: Option<IpAddr>,
        last: Option<IpAddr>,
        gateway: Option<IpAddr>,
    ) -> Result<Self, RangeError> {
        let bits = if subnet.is_ipv4() { 32 } else { 128 };
        if subnet.prefix_len() > bits - 2 {
            return Err(RangeError::TooSmall(subnet));
        }
        let start = offset(subnet.network(), 1);
        let end = if subnet.is_ipv4() {
            offset(subnet.last(), -1)
        } else {
            subnet.last()
        };
        let range = Self {
            subnet,
            first: first.unwrap_or(start),
            last: last.unwrap_or(end),
            gateway: Some(gateway.unwrap_or(start)),
        };
        range.check()
    }

    /// The range of one address alone, as the static plugin gives one. It may be of a subnet without room for others,
    /// and its gateway, if it has any, on another one.
    pub fn single(own: InterfaceAddress, gateway: Option<IpAddr>) -> Result<Self, RangeError> {
        let subnet = own.subnet().filter(|_| gateway != Some(own.address));
        let Some(subnet) = subnet else {
            return Err(RangeError::NoAddress(own));
        };
        if gateway.is_some_and(|gateway| gateway.is_ipv4() != subnet.is_ipv4()) {
            return Err(RangeError::MixedFamilies);
        }
        Ok(Self {
            subnet,
            first: own.address,
            last: own.address,
            gateway,
        })
    }

    /// The first address of the subnet: the gateway where none is named.
    pub fn default_gateway(subnet: Cidr) -> IpAddr {
        offset(subnet.network(), 1)
    }

    fn check(self) -> Result<Self, RangeError> {
        let ends = [
            ("RangeStart", Some(self.first)),
            ("RangeEnd", Some(self.last)),
            ("gateway", self.gateway),
        ];
        let named = ends.map(|(what, end)| end.map(|end| (what, end)));
        for (what, address) in named.into_iter().flatten() {
            if !self.subnet.contains(address) {
                return Err(RangeError::Outside {
                    what,
                    address,
                    subnet: self.subnet,
                });
            }
        }
        if self.first > self.last {
            return Err(RangeError::Backwards {
                first: self.first,
                last: self.last,
            });
        }
        Ok(self)
    }

    /// The subnet, whose prefix length the pod's address gets.
    pub fn subnet(&self) -> Cidr {
        self.subnet
    }

    /// First address that may be given.
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// Last address that may be given.
    pub fn last(&self) -> IpAddr {
        self.last
    }

    /// The bridge's address, never given to a pod.
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// Whether `address` may be given to a pod.
    pub fn offers(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.subnet.is_ipv4()
            && address >= self.first
            && address <= self.last
            && Some(address) != self.gateway
    }
}

/// Alternatives of which a pod gets one address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeSet(Vec<Range>);

impl RangeSet {
    /// A set of at least one range, all of one family, none overlapping.
    pub fn new(ranges: Vec<Range>) -> Result<Self, RangeError> {
        let Some(head) = ranges.first() else {
            return Err(RangeError::Empty);
        };
        if ranges
            .iter()
            .any(|range| range.subnet.is_ipv4() != head.subnet.is_ipv4())
        {
            return Err(RangeError::MixedFamilies);
        }
        for (index, range) in ranges.iter().enumerate() {
            let clash = ranges[..index].iter().find(|other| overlap(other, range));
            if let Some(other) = clash {
                return Err(RangeError::Overlap(range.subnet, other.subnet));
            }
        }
        Ok(Self(ranges))
    }

    /// The one range of a whole pod CIDR.
    pub fn of_cidr(subnet: Cidr) -> Result<Self, RangeError> {
        Self::new(vec![Range::new(subnet, None, None, None)?])
    }

    /// The ranges, in the order of the configuration.
    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// Whether the set is IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.0.iter().all(|range| range.subnet.is_ipv4())
    }

    /// The first range of this set that shares addresses with one of `other`.
    pub fn overlap(&self, other: &Self) -> Option<(Cidr, Cidr)> {
        self.0
            .iter()
            .flat_map(|a| other.0.iter().map(move |b| (a, b)))
            .filter(|(a, b)| overlap(a, b))
            .map(|(a, b)| (a.subnet, b.subnet))
            .next()
    }
}

fn overlap(a: &Range, b: &Range) -> bool {
    a.subnet.is_ipv4() == b.subnet.is_ipv4() && a.first <= b.last && b.first <= a.last
}

fn offset(address: IpAddr, by: i8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().wrapping_add_signed(by.into())).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits().wrapping_add_signed(by.into())).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(subnet: &str) -> Range {
        Range::new(subnet.parse().unwrap(), None, None, None).unwrap()
    }

    /// behaviour R8.
    #[test]
    fn the_first_address_is_the_gateway_and_the_broadcast_is_not_given() {
        let v4 = range("10.1.0.0/24");
        assert_eq!(v4.gateway(), Some(IpAddr::from([10, 1, 0, 1])));
        assert_eq!(v4.last(), IpAddr::from([10, 1, 0, 254]));
        assert!(!v4.offers(IpAddr::from([10, 1, 0, 1])));
        let v6 = range("fd00::/120");
        assert_eq!(v6.last(), "fd00::ff".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn a_subnet_without_room_is_refused_in_host_locals_words() {
        let error = Range::new("10.1.0.0/31".parse().unwrap(), None, None, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Network 10.1.0.0/31 too small to allocate from"
        );
    }

    #[test]
    fn a_set_refuses_overlap_and_mixed_families() {
        let overlapping = RangeSet::new(vec![range("10.1.0.0/16"), range("10.1.2.0/24")]);
        assert!(matches!(overlapping, Err(RangeError::Overlap(..))));
        let mixed = RangeSet::new(vec![range("10.1.0.0/16"), range("fd00::/64")]);
        assert_eq!(mixed, Err(RangeError::MixedFamilies));
    }
}
