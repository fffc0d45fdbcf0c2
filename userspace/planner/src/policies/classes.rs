//! Classes of addresses: those that the same peers of rules contain.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use model::{Cidr, PolicyPeer};

use super::limit::{MAX_MEMBERS, PolicyLimit};
use super::numbers::{Numbers, fnv1a};
use crate::prefix::covers;

/// First IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2): the tries have IPv4 addresses there.
const MAPPED: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0);

/// The peers that contain an address, as places in their order: in order, and each one once.
type Class = Rc<[usize]>;

/// The identities of all classes. Addresses that no peer contains have none.
#[derive(Debug)]
pub(super) struct Classes {
    /// Of each prefix whose class is not that of the prefix around it; 0 where no peer contains it.
    pub(super) of_prefixes: BTreeMap<Cidr, u32>,
    /// Of the addresses that a peer contains, by its place.
    pub(super) of_peers: Vec<BTreeSet<u32>>,
}

impl Classes {
    /// Returns the classes of addresses by these peers.
    pub(super) fn of(
        peers: &[&PolicyPeer],
        groups: &BTreeMap<String, BTreeSet<Cidr>>,
    ) -> Result<Self, PolicyLimit> {
        let mut distinct = Distinct::default();
        let mut prefixes = BTreeMap::new();
        let mut around: Vec<(Cidr, Class)> = Vec::new();
        // A prefix comes before those within it.
        for (prefix, changes) in changes(peers, groups) {
            while around
                .last()
                .is_some_and(|(outer, _)| !covers(outer, &prefix))
            {
                around.pop();
            }
            let outer = around.last().map(|(_, class)| Rc::clone(class));
            let class = distinct.within(outer.clone().unwrap_or_default(), changes)?;
            if outer.map_or(!class.is_empty(), |outer| outer != class) {
                prefixes.insert(prefix, Rc::clone(&class));
            }
            around.push((prefix, class));
        }
        let mut of_peers = vec![BTreeSet::new(); peers.len()];
        let numbers = number(prefixes.values(), peers);
        for (class, identity) in &numbers {
            for place in &***class {
                if let Some(known) = of_peers.get_mut(*place) {
                    known.insert(*identity);
                }
            }
        }
        let identity = |class| numbers.get(class).copied().unwrap_or(0);
        let of_prefixes = prefixes
            .iter()
            .map(|(prefix, class)| (*prefix, identity(class)));
        Ok(Self {
            of_prefixes: with_all_v4(of_prefixes.collect()),
            of_peers,
        })
    }
}

/// Returns the identity of each class with a member, by the contents of its peers.
fn number<'a>(
    classes: impl Iterator<Item = &'a Class>,
    peers: &[&PolicyPeer],
) -> BTreeMap<&'a Class, u32> {
    let hash = |peer: &&PolicyPeer| fnv1a(format!("{peer:?}").as_bytes());
    let hashes: Vec<u32> = peers.iter().map(hash).collect();
    let mut numbers = Numbers::default();
    let distinct: BTreeSet<&Class> = classes.filter(|class| !class.is_empty()).collect();
    let number = |class: &'a Class| {
        let hashes = class.iter().filter_map(|place| hashes.get(*place));
        let contents: Vec<u8> = hashes.flat_map(|hash| hash.to_be_bytes()).collect();
        (class, numbers.of(&contents))
    };
    distinct.into_iter().map(number).collect()
}

/// Adds all IPv4 addresses, without an identity, where a short IPv6 prefix would contain them.
fn with_all_v4(mut identities: BTreeMap<Cidr, u32>) -> BTreeMap<Cidr, u32> {
    let all_v4 = Cidr::containing(Ipv4Addr::UNSPECIFIED.into(), 0);
    if let Some(all_v4) = all_v4
        && identities
            .keys()
            .any(|prefix| prefix.contains(MAPPED.into()))
    {
        identities.entry(all_v4).or_insert(0);
    }
    identities
}

/// Where peers begin or end to contain addresses, by their places.
type Changes = BTreeMap<usize, bool>;

fn changes(
    peers: &[&PolicyPeer],
    groups: &BTreeMap<String, BTreeSet<Cidr>>,
) -> BTreeMap<Cidr, Changes> {
    let mut changes: BTreeMap<Cidr, Changes> = BTreeMap::new();
    for (place, peer) in peers.iter().enumerate() {
        match peer {
            PolicyPeer::Block { cidr, except } => {
                changes.entry(*cidr).or_default().insert(place, true);
                for hole in except {
                    changes.entry(*hole).or_default().insert(place, false);
                }
            }
            PolicyPeer::Group(name) => {
                for prefix in groups.get(name).into_iter().flatten() {
                    changes.entry(*prefix).or_default().insert(place, true);
                }
            }
        }
    }
    changes
}

/// The classes so far. Prefixes with the same changes within the same class share one: pods of one
/// workload are in the same groups.
#[derive(Default)]
struct Distinct {
    known: BTreeMap<(Class, Changes), Class>,
    members: usize,
}

impl Distinct {
    /// Returns the class of a prefix with these changes within another one.
    fn within(&mut self, outer: Class, changes: Changes) -> Result<Class, PolicyLimit> {
        let key = (outer, changes);
        if let Some(known) = self.known.get(&key) {
            return Ok(Rc::clone(known));
        }
        let (outer, changes) = &key;
        self.members += outer.len() + changes.len();
        if self.members > MAX_MEMBERS {
            return Err(PolicyLimit::Overlaps);
        }
        let mut members: BTreeSet<usize> = outer.iter().copied().collect();
        for (place, is_contained) in changes {
            if *is_contained {
                members.insert(*place);
            } else {
                members.remove(place);
            }
        }
        let class: Class = members.into_iter().collect();
        self.known.insert(key, Rc::clone(&class));
        Ok(class)
    }
}
