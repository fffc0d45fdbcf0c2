//! Prefix table: destinations to which pods keep their own address (no masquerade).
//!
//! The datapath looks up the longest match only, so each prefix carries the union of all prefixes
//! that cover it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::BitOr;

use model::Cidr;
use steps::{Entries, Entry, EntryKey};

/// First IPv4-mapped IPv6 address, `::ffff:0:0` (RFC 4291, 2.5.5.2).
const MAPPED: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0);

#[derive(Clone, Copy, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent properties of a prefix"
)]
struct Class {
    no_masquerade: bool,
    pods: bool,
    shared: bool,
    open: bool,
    peer: bool,
}

/// Returns the entries for the pods' subnets, those of them where hosts may have addresses that the
/// agent does not know (`open`), the prefixes that containers of other software share with them,
/// the prefixes that are not masqueraded, and those of `peers` whose packets come by a tunnel.
pub(crate) fn prefixes(
    pods: &BTreeSet<Cidr>,
    open: &BTreeSet<Cidr>,
    shared: &BTreeSet<Cidr>,
    no_masquerade: &BTreeSet<Cidr>,
    peers: &BTreeSet<Cidr>,
) -> Entries {
    let mut own: BTreeMap<Cidr, Class> = BTreeMap::new();
    for cidr in shared {
        own.entry(*cidr).or_default().shared = true;
    }
    for cidr in pods {
        own.entry(*cidr).or_default().pods = true;
    }
    for cidr in open {
        own.entry(*cidr).or_default().open = true;
    }
    for cidr in no_masquerade {
        own.entry(*cidr).or_default().no_masquerade = true;
    }
    for cidr in peers {
        own.entry(*cidr).or_default().peer = true;
    }
    // The trie stores IPv4 as mapped addresses below `::/0`: an entry for `0.0.0.0/0` keeps `::/0`
    // from applying to it.
    let has_mapped = own.keys().any(|cidr| cidr.contains(MAPPED.into()));
    let everything = Cidr::containing(Ipv4Addr::UNSPECIFIED.into(), 0).filter(|_| has_mapped);
    if let Some(cidr) = everything {
        own.entry(cidr).or_default();
    }
    // The prefixes that cover the current one, outermost first, each with the flags of all before
    // it. In the order of the map, a prefix is before those that it covers.
    let mut around: Vec<(Cidr, Class)> = Vec::new();
    let mut entries = Entries::new();
    for (cidr, class) in own {
        while around.pop_if(|(outer, _)| !covers(outer, &cidr)).is_some() {}
        let merged = around.last().map_or(class, |(_, outer)| class | *outer);
        around.push((cidr, merged));
        entries.insert(EntryKey::Prefix(cidr), merged.entry());
    }
    entries
}

impl BitOr for Class {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self {
            no_masquerade: self.no_masquerade || other.no_masquerade,
            pods: self.pods || other.pods,
            shared: self.shared || other.shared,
            open: self.open || other.open,
            peer: self.peer || other.peer,
        }
    }
}

impl Class {
    fn entry(self) -> Entry {
        Entry::Prefix {
            no_masquerade: self.no_masquerade,
            pods: self.pods,
            shared: self.shared,
            complete: self.pods && !self.shared && !self.open,
            peer: self.peer,
        }
    }
}

/// Returns whether `outer` contains all of `inner`; a prefix covers itself.
pub(crate) fn covers(outer: &Cidr, inner: &Cidr) -> bool {
    outer.prefix_len() <= inner.prefix_len() && outer.contains(inner.network())
}

#[cfg(test)]
mod tests;
