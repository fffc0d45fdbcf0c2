//! Property of the prefix table: the longest match has the flags of every match.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use model::Cidr;
use proptest::prelude::*;
use steps::{Entry, EntryKey};

use super::prefixes;

/// Prefixes that often cover one another.
fn cidrs() -> impl Strategy<Value = BTreeSet<Cidr>> {
    let cidr = (0..16_u32, 0..=8_u8).prop_map(|(bits, length)| {
        let address = Ipv4Addr::from_bits(0x0a00_0000 | bits << 20);
        Cidr::containing(address.into(), length + 4).unwrap()
    });
    prop::collection::btree_set(cidr, 0..6)
}

proptest! {
    #[test]
    fn the_longest_match_has_the_bits_of_every_match(
        pods in cidrs(),
        open in cidrs(),
        shared in cidrs(),
        no_masquerade in cidrs(),
        peers in cidrs(),
        bits in 0..256_u32,
    ) {
        let address: IpAddr = Ipv4Addr::from_bits(0x0a00_0000 | bits << 16).into();
        let table = prefixes(&pods, &open, &shared, &no_masquerade, &peers);
        let longest = table.iter().filter_map(|(key, entry)| {
            let EntryKey::Prefix(cidr) = key else { return None };
            cidr.contains(address).then_some((cidr.prefix_len(), entry))
        }).max_by_key(|(length, _)| *length).map(|(_, entry)| entry.clone());
        let any = |cidrs: &BTreeSet<Cidr>| cidrs.iter().any(|cidr| cidr.contains(address));
        let expected = Entry::Prefix {
            no_masquerade: any(&no_masquerade),
            pods: any(&pods),
            shared: any(&shared),
            complete: any(&pods) && !any(&shared) && !any(&open),
            peer: any(&peers),
        };
        let nothing = Entry::Prefix { no_masquerade: false, pods: false, shared: false, complete: false, peer: false };
        prop_assert_eq!(longest.unwrap_or(nothing), expected);
    }
}
