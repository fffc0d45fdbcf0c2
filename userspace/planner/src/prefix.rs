//! The prefix table: to which destinations a pod keeps its own address (DATAPATH §3.5).
//!
//! The datapath asks for the longest match alone, so each prefix carries what holds for all that cover it. Knows
//! nothing of the trie's bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use model::Cidr;

use crate::{Entries, Entry, EntryKey};

/// Where IPv4 addresses begin among IPv6 ones (RFC 4291, 2.5.5.2).
const MAPPED: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0);

#[derive(Clone, Copy, Default)]
struct Class {
    no_masquerade: bool,
    pods: bool,
}

/// The entries for the subnets of pods and the prefixes that are not masqueraded.
pub(crate) fn prefixes(pods: &BTreeSet<Cidr>, no_masquerade: &BTreeSet<Cidr>) -> Entries {
    let mut own: BTreeMap<Cidr, Class> = BTreeMap::new();
    for cidr in pods {
        own.entry(*cidr).or_default().pods = true;
    }
    for cidr in no_masquerade {
        own.entry(*cidr).or_default().no_masquerade = true;
    }
    // The trie keeps IPv4 inside of `::/0`, which says nothing about it.
    let around = own.keys().any(|cidr| cidr.contains(MAPPED.into()));
    let everything = Cidr::containing(Ipv4Addr::UNSPECIFIED.into(), 0).filter(|_| around);
    if let Some(cidr) = everything {
        own.entry(cidr).or_default();
    }
    let merged = |cidr: &Cidr| {
        let covering = own.iter().filter(|(other, _)| covers(other, cidr));
        let merge = |all: Class, (_, one): (&Cidr, &Class)| Class {
            no_masquerade: all.no_masquerade || one.no_masquerade,
            pods: all.pods || one.pods,
        };
        covering.fold(Class::default(), merge)
    };
    let entry = |cidr: &Cidr| {
        let Class {
            no_masquerade,
            pods,
        } = merged(cidr);
        let entry = Entry::Prefix {
            no_masquerade,
            pods,
        };
        (EntryKey::Prefix(*cidr), entry)
    };
    own.keys().map(entry).collect()
}

/// Whether `outer` holds all of `inner`; a prefix covers itself.
fn covers(outer: &Cidr, inner: &Cidr) -> bool {
    outer.prefix_len() <= inner.prefix_len() && outer.contains(inner.network())
}

#[cfg(test)]
mod tests;
