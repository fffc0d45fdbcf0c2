//! Aggregation of prefixes: fewer prefixes that cover the same addresses.

use std::collections::BTreeSet;

use model::Cidr;

use crate::prefix::covers;

/// Returns the smallest set of prefixes that covers exactly the addresses of `prefixes`.
pub(crate) fn aggregate(prefixes: &BTreeSet<Cidr>) -> BTreeSet<Cidr> {
    let mut merged: Vec<Cidr> = Vec::new();
    // In the order of the addresses, and a prefix before those that it covers.
    for prefix in prefixes {
        if merged.last().is_some_and(|last| covers(last, prefix)) {
            continue;
        }
        let mut next = *prefix;
        while let Some(whole) = merged.last().and_then(|last| joined(last, &next)) {
            merged.pop();
            next = whole;
        }
        merged.push(next);
    }
    merged.into_iter().collect()
}

/// Returns the prefix whose halves the two are.
fn joined(low: &Cidr, high: &Cidr) -> Option<Cidr> {
    let length = low.prefix_len().checked_sub(1)?;
    let whole = Cidr::containing(low.network(), length)?;
    let is_half = low.prefix_len() == high.prefix_len() && low != high;
    (is_half && whole.contains(high.network())).then_some(whole)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    fn cidrs() -> impl Strategy<Value = BTreeSet<Cidr>> {
        let cidr = (0..256_u32, 0..=8_u8).prop_map(|(bits, length)| {
            let address = Ipv4Addr::from_bits(0x0a00_0000 | bits);
            Cidr::containing(address.into(), 24 + length).unwrap()
        });
        prop::collection::btree_set(cidr, 0..40)
    }

    proptest! {
        #[test]
        fn aggregated_prefixes_cover_the_same_addresses_and_cannot_be_joined(cidrs in cidrs()) {
            let merged = aggregate(&cidrs);
            for bits in 0..256_u32 {
                let address: IpAddr = Ipv4Addr::from_bits(0x0a00_0000 | bits).into();
                let covering = |cidrs: &BTreeSet<Cidr>| {
                    cidrs.iter().filter(|cidr| cidr.contains(address)).count()
                };
                prop_assert_eq!(covering(&cidrs) > 0, covering(&merged) == 1);
            }
            for low in &merged {
                prop_assert!(merged.iter().all(|high| joined(low, high).is_none()));
            }
            prop_assert_eq!(aggregate(&merged), merged);
        }
    }

    #[test]
    fn the_pod_cidrs_of_a_cluster_become_few_prefixes() {
        let of_node = |number: u32| {
            let network = Ipv4Addr::from_bits(0x0a00_0000 | number << 8);
            Cidr::containing(network.into(), 24).unwrap()
        };
        let all: BTreeSet<Cidr> = (0..5_000)
            .filter(|number| *number != 1)
            .map(of_node)
            .collect();
        let texts: Vec<String> = aggregate(&all).iter().map(Cidr::to_string).collect();
        assert_eq!(texts.len(), 16, "{texts:?}");
        assert_eq!(texts[..2], ["10.0.0.0/24", "10.0.2.0/23"]);
    }
}
