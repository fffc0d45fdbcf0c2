//! Address allocation by host-local's rules, without its files (behaviours R8 to R10).
//!
//! A pod gets one address of each range set. Allocation is round robin from the address after the
//! last one given, so a released address is the last to be given again. Gateways, the network
//! address and IPv4's broadcast address are never given. The cost is linear in consecutive taken
//! addresses, not in the size of the range: a /64 with three leases is as fast as a /29. Leases
//! come in as an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{Assigned, AttachmentKey, InterfaceAddress, Network, Range, RangeSet};

use crate::AddressRefusal;

/// Addresses that are taken, and the state of the round robin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    /// Taken addresses and their owners, of every network: an address belongs to only one pod of
    /// the node.
    pub taken: BTreeMap<IpAddr, AttachmentKey>,
    /// Addresses of the node itself: ranges skip them, and requests for them are refused.
    pub node: BTreeSet<IpAddr>,
    /// Last address given from each range set of this network, by the set's index.
    pub last_reserved: BTreeMap<usize, IpAddr>,
}

/// Chooses addresses for `owner`, one of each range set of `network`, in the order of the sets. A
/// requested address is used where a set contains it, at most one per set; the rest are refused.
pub fn choose(
    network: &Network,
    leases: &Leases,
    requested: &[IpAddr],
    owner: &AttachmentKey,
) -> Result<Vec<Assigned>, AddressRefusal> {
    if network.ranges.is_empty() {
        return Err(AddressRefusal::NoRanges {
            network: network.name.clone(),
        });
    }
    let gateways: BTreeSet<IpAddr> = network.gateways().iter().map(|g| g.address).collect();
    let mut seen = BTreeSet::new();
    let mut left: Vec<IpAddr> = requested
        .iter()
        .map(IpAddr::to_canonical)
        .filter(|address| seen.insert(*address))
        .collect();
    let mut chosen = Vec::new();
    for (index, set) in network.ranges.iter().enumerate() {
        let pool = Pool {
            set,
            leases,
            gateways: &gateways,
        };
        let requested = left
            .iter()
            .position(|address| pool.set.range_of(*address).is_some());
        chosen.push(match requested {
            Some(position) => pool.give(left.remove(position))?,
            None => pool.next(leases.last_reserved.get(&index).copied(), owner)?,
        });
    }
    if left.is_empty() {
        Ok(chosen)
    } else {
        Err(AddressRefusal::RequestsLeft { addresses: left })
    }
}

/// Returns the address that each range set has assigned of `addresses`, by the index of the set in
/// the configuration.
pub fn last_reserved(network: &Network, addresses: &[Assigned]) -> BTreeMap<usize, IpAddr> {
    let first_of = |set: &RangeSet| {
        let mut addresses = addresses.iter().map(|own| own.address.address);
        addresses.find(|address| set.range_of(*address).is_some())
    };
    let sets = network.ranges.iter().enumerate();
    sets.filter_map(|(index, set)| Some((index, first_of(set)?)))
        .collect()
}

/// One range set with its leases and the network's gateways.
struct Pool<'a> {
    set: &'a RangeSet,
    leases: &'a Leases,
    gateways: &'a BTreeSet<IpAddr>,
}

impl Pool<'_> {
    /// Returns the requested address, unless it is taken or can never be given.
    fn give(&self, address: IpAddr) -> Result<Assigned, AddressRefusal> {
        if self.gateways.contains(&address) {
            return Err(AddressRefusal::GatewayRequested { address });
        }
        if self.leases.node.contains(&address) {
            return Err(AddressRefusal::AddressOfNode { address });
        }
        let free =
            |range: &&Range| !is_edge(range, address) && !self.leases.taken.contains_key(&address);
        let range = self.set.range_of(address).filter(free).ok_or_else(|| {
            AddressRefusal::AddressTaken {
                address,
                set: describe(self.set),
            }
        })?;
        Ok(assigned(range, address))
    }

    /// Returns the next free address after the last one given.
    fn next(
        &self,
        last: Option<IpAddr>,
        owner: &AttachmentKey,
    ) -> Result<Assigned, AddressRefusal> {
        self.refuse_second(owner)?;
        let mut spans = self.spans(last).into_iter();
        let found = spans.find_map(|span| Some((span.range, self.first_free(&span)?)));
        match found {
            Some((range, address)) => Ok(assigned(range, address)),
            None => Err(self.exhausted()),
        }
    }

    /// Returns the refusal for a set without a free address. A static address is a set of one
    /// address.
    fn exhausted(&self) -> AddressRefusal {
        if let [range] = self.set.ranges()
            && range.first() == range.last()
            && self.leases.node.contains(&range.first())
        {
            let address = range.first();
            return AddressRefusal::AddressOfNode { address };
        }
        AddressRefusal::Exhausted {
            set: describe(self.set),
        }
    }

    fn refuse_second(&self, owner: &AttachmentKey) -> Result<(), AddressRefusal> {
        for range in self.set.ranges() {
            let mut held = self.leases.taken.range(range.first()..=range.last());
            if let Some((address, _)) = held.find(|(_, holder)| *holder == owner) {
                return Err(AddressRefusal::DuplicateAllocation {
                    address: *address,
                    owner: owner.clone(),
                });
            }
        }
        Ok(())
    }

    /// Splits the set into spans in search order: the part after `last`, the other ranges in their
    /// order, then the part up to and including `last`.
    fn spans(&self, last: Option<IpAddr>) -> Vec<Span<'_>> {
        let ranges = self.set.ranges();
        let whole = |range| Span::new(range, range.first(), range.last());
        let start = last.and_then(|last| {
            let index = ranges
                .iter()
                .position(|range| self.set.range_of(last) == Some(range))?;
            Some((index, last))
        });
        let Some((index, last)) = start else {
            return ranges.iter().map(whole).collect();
        };
        let range = &ranges[index];
        let mut spans: Vec<Span<'_>> = Vec::new();
        if last < range.last() {
            spans.push(Span::new(range, successor(last), range.last()));
        }
        let others = ranges[index + 1..].iter().chain(&ranges[..index]);
        spans.extend(others.map(whole));
        spans.push(Span::new(range, range.first(), last));
        spans
    }

    fn first_free(&self, span: &Span<'_>) -> Option<IpAddr> {
        let mut taken = self
            .leases
            .taken
            .range(span.first..=span.last)
            .map(|(a, _)| *a);
        let mut next_taken = taken.next();
        let mut candidate = span.first;
        loop {
            while next_taken.is_some_and(|taken| taken < candidate) {
                next_taken = taken.next();
            }
            let free = next_taken != Some(candidate)
                && !self.gateways.contains(&candidate)
                && !self.leases.node.contains(&candidate)
                && !is_edge(span.range, candidate);
            if free {
                return Some(candidate);
            }
            if candidate == span.last {
                return None;
            }
            candidate = successor(candidate);
        }
    }
}

/// A part of a range, both ends included.
struct Span<'a> {
    range: &'a Range,
    first: IpAddr,
    last: IpAddr,
}

impl<'a> Span<'a> {
    fn new(range: &'a Range, first: IpAddr, last: IpAddr) -> Self {
        Self { range, first, last }
    }
}

/// Returns whether this is the network address or IPv4's broadcast address, which a configured
/// range may end at. A subnet of one or two addresses has neither (RFC 3021).
fn is_edge(range: &Range, address: IpAddr) -> bool {
    let subnet = range.subnet();
    let bits = if subnet.is_ipv4() { 32 } else { 128 };
    if subnet.prefix_len() + 1 >= bits {
        return false;
    }
    address == subnet.network() || (subnet.is_ipv4() && address == subnet.last())
}

fn assigned(range: &Range, address: IpAddr) -> Assigned {
    Assigned {
        address: InterfaceAddress {
            address,
            prefix_len: range.subnet().prefix_len(),
        },
        gateway: range.gateway(),
    }
}

fn successor(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().saturating_add(1)).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits().saturating_add(1)).into(),
    }
}

fn describe(set: &RangeSet) -> String {
    let ranges: Vec<String> = set
        .ranges()
        .iter()
        .map(|range| format!("{}-{}", range.first(), range.last()))
        .collect();
    ranges.join(",")
}

#[cfg(test)]
mod tests;
