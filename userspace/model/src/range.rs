//! Address ranges and range sets, by the rules of host-local's configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Cidr, InterfaceAddress};

/// Why a range or a range set is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The prefix has no address to give (behaviour R8).
    #[error("Network {0} too small to allocate from")]
    TooSmall(Cidr),
    /// An end of the range, or a gateway that must not, lies outside of the subnet.
    #[error("{what} {address} not in network {subnet}")]
    Outside {
        /// Configuration key of the address.
        what: &'static str,
        /// Address outside of the subnet.
        address: IpAddr,
        /// Subnet of the range.
        subnet: Cidr,
    },
    /// The range ends before it starts.
    #[error("RangeStart {first} is after RangeEnd {last}")]
    Backwards {
        /// `rangeStart`.
        first: IpAddr,
        /// `rangeEnd`.
        last: IpAddr,
    },
    /// A set without ranges.
    #[error("empty range set")]
    Empty,
    /// IPv4 and IPv6 in one set.
    #[error("mixed address families in one range set")]
    MixedFamilies,
    /// The address is invalid for a pod: it is its own gateway, or its prefix length is invalid.
    #[error("{0} is no address for a pod")]
    NoAddress(InterfaceAddress),
    /// Two ranges share addresses.
    #[error("subnet {0} overlaps with {1}")]
    Overlap(Cidr, Cidr),
}

/// A range of addresses: `first..=last` of `subnet`, without the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    subnet: Cidr,
    first: IpAddr,
    last: IpAddr,
    gateway: Option<IpAddr>,
}

impl Range {
    /// Returns a range of `subnet`. `None` means host-local's default: first address `.1`, last
    /// address before the broadcast address (IPv4) or the last of the subnet (IPv6), gateway `.1`.
    /// As with host-local, the gateway may be outside of the subnet.
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

    /// Returns the range of one address, as the static IPAM plugin configures it. Its subnet may
    /// have no room for others, and its gateway may be outside of the subnet.
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

    /// Returns the first address of the subnet, the gateway where none is configured.
    pub fn default_gateway(subnet: Cidr) -> IpAddr {
        offset(subnet.network(), 1)
    }

    /// Returns the range, unless its gateway is outside of the subnet: for runtimes that refuse
    /// such a network, as podman and Docker do.
    pub fn with_inner_gateway(self) -> Result<Self, RangeError> {
        match self.gateway {
            Some(gateway) if !self.subnet.contains(gateway) => {
                Err(self.outside("gateway", gateway))
            }
            Some(_) | None => Ok(self),
        }
    }

    fn outside(&self, what: &'static str, address: IpAddr) -> RangeError {
        RangeError::Outside {
            what,
            address,
            subnet: self.subnet,
        }
    }

    fn check(self) -> Result<Self, RangeError> {
        for (what, address) in [("RangeStart", self.first), ("RangeEnd", self.last)] {
            if !self.subnet.contains(address) {
                return Err(self.outside(what, address));
            }
        }
        if let Some(gateway) = self.gateway
            && gateway.is_ipv4() != self.subnet.is_ipv4()
        {
            return Err(self.outside("gateway", gateway));
        }
        if self.first > self.last {
            return Err(RangeError::Backwards {
                first: self.first,
                last: self.last,
            });
        }
        Ok(self)
    }

    /// Returns the subnet, whose prefix length the pod's address gets.
    pub fn subnet(&self) -> Cidr {
        self.subnet
    }

    /// Returns the first address that may be given.
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// Returns the last address that may be given.
    pub fn last(&self) -> IpAddr {
        self.last
    }

    /// Returns the gateway, which is never given to a pod; `None` without one.
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// Returns whether `address` may be given to a pod.
    pub fn offers(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.subnet.is_ipv4()
            && address >= self.first
            && address <= self.last
            && Some(address) != self.gateway
    }
}

/// Alternative ranges, from which a pod gets one address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeSet(Vec<Range>);

impl RangeSet {
    /// Returns a set of at least one range, all of one address family, none overlapping.
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
        // Earlier ranges in the order of their addresses. They are disjoint, so if the last one
        // that begins before the end of a range does not overlap it, none does. A vector and not a
        // map: the plugin, which has few ranges, would have the map's code.
        let mut earlier: Vec<&Range> = Vec::new();
        for (index, range) in ranges.iter().enumerate() {
            let end = earlier.partition_point(|other| other.first <= range.last);
            let clash = earlier[..end]
                .last()
                .filter(|other| overlap(other, range))
                .and_then(|_| ranges[..index].iter().find(|other| overlap(other, range)));
            if let Some(other) = clash {
                return Err(RangeError::Overlap(range.subnet, other.subnet));
            }
            earlier.insert(end, range);
        }
        Ok(Self(ranges))
    }

    /// Returns a set of one range, a whole pod CIDR.
    pub fn of_cidr(subnet: Cidr) -> Result<Self, RangeError> {
        Self::new(vec![Range::new(subnet, None, None, None)?])
    }

    /// Returns the ranges in the order of the configuration.
    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// Returns the range that may give `address`.
    pub fn range_of(&self, address: IpAddr) -> Option<&Range> {
        let mut ranges = self.0.iter();
        ranges.find(|range| (range.first..=range.last).contains(&address))
    }

    /// Returns whether the set is IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.0.iter().all(|range| range.subnet.is_ipv4())
    }

    /// Returns the subnets of the first range that shares addresses with a range of `other`, and of
    /// that range.
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

    /// behaviour R8: host-local checks the ends of a range, but not its gateway.
    #[test]
    fn a_gateway_may_be_outside_of_the_subnet_but_not_of_the_other_family() {
        let subnet = "10.1.0.0/24".parse().unwrap();
        let by = |gateway: &str| Range::new(subnet, None, None, Some(gateway.parse().unwrap()));
        let outer = by("10.8.0.1").unwrap();
        assert_eq!(outer.gateway(), Some(IpAddr::from([10, 8, 0, 1])));
        assert!(outer.offers(IpAddr::from([10, 1, 0, 1])), "it is free then");
        let refused = outer.with_inner_gateway().unwrap_err().to_string();
        assert_eq!(refused, "gateway 10.8.0.1 not in network 10.1.0.0/24");
        let inner = by("10.1.0.254").unwrap();
        assert_eq!(inner.with_inner_gateway(), Ok(inner));
        let other_family = by("fd00::1").unwrap_err().to_string();
        assert_eq!(other_family, "gateway fd00::1 not in network 10.1.0.0/24");
        let end = Some(IpAddr::from([10, 8, 0, 9]));
        assert!(matches!(
            Range::new(subnet, None, end, None),
            Err(RangeError::Outside {
                what: "RangeEnd",
                ..
            })
        ));
    }

    #[test]
    fn a_set_refuses_overlap_and_mixed_families() {
        let overlapping = RangeSet::new(vec![range("10.1.0.0/16"), range("10.1.2.0/24")]);
        assert!(matches!(overlapping, Err(RangeError::Overlap(..))));
        let mixed = RangeSet::new(vec![range("10.1.0.0/16"), range("fd00::/64")]);
        assert_eq!(mixed, Err(RangeError::MixedFamilies));
    }

    #[test]
    fn an_overlap_in_a_set_is_reported_with_the_first_range_that_overlaps() {
        let subnets = ["10.3.0.0/16", "10.1.0.0/16", "10.0.0.0/8", "10.2.0.0/16"];
        let overlapping = RangeSet::new(subnets.map(range).to_vec());
        let [first, _, third, _] = subnets.map(|subnet| subnet.parse().unwrap());
        assert_eq!(overlapping, Err(RangeError::Overlap(third, first)));
    }

    #[test]
    fn a_set_of_many_disjoint_ranges_is_accepted_in_any_order() {
        let subnet = "10.0.0.0/8".parse().unwrap();
        let single = |number: u32| {
            let address = IpAddr::from(Ipv4Addr::from_bits(0x0a00_0002 + number));
            Range::new(subnet, Some(address), Some(address), None).unwrap()
        };
        let mut ranges: Vec<Range> = (0..10_000)
            .map(|number| single(number * 7919 % 10_007))
            .collect();
        assert_eq!(RangeSet::new(ranges.clone()).unwrap().ranges(), ranges);
        ranges.push(single(7919));
        let twice = RangeSet::new(ranges);
        assert_eq!(twice, Err(RangeError::Overlap(subnet, subnet)));
    }
}
