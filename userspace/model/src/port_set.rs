//! Sets of port numbers, of which a node may have ten thousand. The protocol is not part of the
//! set.

use fixedbitset::FixedBitSet;

/// Number of 16-bit port numbers.
const PORTS: usize = 1 << 16;

/// A set of ports with one bit per port number, so that the cost of comparison and union does not
/// depend on its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSet(FixedBitSet);

impl PortSet {
    /// Returns whether the set has no port.
    pub fn is_empty(&self) -> bool {
        self.0.is_clear()
    }

    /// Returns the ports that are in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut both = self.clone();
        both.0.union_with(&other.0);
        both
    }

    /// Returns the ports that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut rest = self.clone();
        rest.0.difference_with(&other.0);
        rest
    }

    /// Adds the ports `added` and removes the ports `removed`.
    pub fn change(&mut self, added: &[u16], removed: &[u16]) {
        for (ports, contained) in [(added, true), (removed, false)] {
            ports
                .iter()
                .map(|port| usize::from(*port))
                .for_each(|port| self.0.set(port, contained));
        }
    }

    /// Returns the ports in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.0.ones().filter_map(|port| u16::try_from(port).ok())
    }

    /// Returns the first and last ports of each range of consecutive ports, in ascending order.
    pub fn ranges(&self) -> Vec<(u16, u16)> {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for port in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(port) => *last = port,
                _ => ranges.push((port, port)),
            }
        }
        ranges
    }
}

impl Default for PortSet {
    fn default() -> Self {
        Self(FixedBitSet::with_capacity(PORTS))
    }
}

impl Extend<u16> for PortSet {
    fn extend<I: IntoIterator<Item = u16>>(&mut self, ports: I) {
        ports
            .into_iter()
            .for_each(|port| self.0.insert(usize::from(port)));
    }
}

impl FromIterator<u16> for PortSet {
    fn from_iter<I: IntoIterator<Item = u16>>(ports: I) -> Self {
        let mut set = Self::default();
        set.extend(ports);
        set
    }
}

impl<const N: usize> From<[u16; N]> for PortSet {
    fn from(ports: [u16; N]) -> Self {
        ports.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn ports() -> impl Strategy<Value = BTreeSet<u16>> {
        let edge = prop_oneof![0..70_u16, 65_500..=u16::MAX];
        prop::collection::btree_set(edge, 0..60)
    }

    proptest! {
        #[test]
        fn a_set_of_ports_is_a_set(one in ports(), other in ports()) {
            let set = |ports: &BTreeSet<u16>| ports.iter().copied().collect::<PortSet>();
            let (left, right) = (set(&one), set(&other));
            prop_assert!(left.iter().eq(one.iter().copied()));
            prop_assert_eq!(left.is_empty(), one.is_empty());
            prop_assert_eq!(left == right, one == other);
            prop_assert!(left.union(&right).iter().eq(one.union(&other).copied()));
            prop_assert!(left.difference(&right).iter().eq(one.difference(&other).copied()));
        }
    }
}
