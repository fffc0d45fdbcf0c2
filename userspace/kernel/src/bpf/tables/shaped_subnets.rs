//! Shaped subnets of limits, in the datapath's trie.
//!
//! A limit with [`LimitFlags`] counts only the packets to and from these subnets, or all others. A
//! subnet is added before a limit refers to it, and removed when no limit does.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use abi::{LimitFlags, PrefixKey, ShapedSubnetKey};
use aya::maps::lpm_trie::Key;
use model::{Cidr, Prefixes, ShapedSubnets};

use crate::bpf::map::{ANY, Trie, Wire, removed, written};
use crate::bpf::{batch, encoding};

/// The trie: generations of pods.
pub(crate) type SubnetTrie = Trie<ShapedSubnetKey, u32>;

/// Prefixes by slot and generation.
pub(crate) type PrefixesBySlot = BTreeMap<(u32, u32), BTreeSet<Cidr>>;

/// Returns the [`LimitFlags`] for shaped subnets.
pub(crate) fn flags(subnets: &ShapedSubnets) -> u32 {
    match subnets {
        ShapedSubnets::All => 0,
        ShapedSubnets::Only(_) => LimitFlags::ONLY_SUBNETS,
        ShapedSubnets::Except(_) => LimitFlags::EXCEPT_SUBNETS,
    }
}

/// Adds the prefixes of a slot.
pub(crate) fn add(
    trie: &mut SubnetTrie,
    slot: u32,
    subnets: &ShapedSubnets,
    generation: u32,
) -> io::Result<()> {
    subnets
        .prefixes()
        .iter()
        .try_for_each(|prefix| written(trie.insert(&key(slot, prefix), Wire(generation), ANY)))
}

/// Removes the prefixes of a slot that are not in `subnets`.
pub(crate) fn remove_others(
    trie: &mut SubnetTrie,
    slot: u32,
    subnets: &ShapedSubnets,
) -> io::Result<()> {
    let wanted: BTreeSet<Cidr> = subnets.prefixes().iter().collect();
    for (found, _) in batch::list(trie)? {
        let other = prefix(&found).filter(|(of, prefix)| *of == slot && !wanted.contains(prefix));
        if other.is_some() {
            removed(trie.remove(&found))?;
        }
    }
    Ok(())
}

/// Returns the prefixes of all slots, or none if `flags` says that no limit uses any.
pub(crate) fn list_if_used(trie: &SubnetTrie, flags: u32) -> io::Result<PrefixesBySlot> {
    let mut listed = PrefixesBySlot::new();
    if flags == 0 {
        return Ok(listed);
    }
    for (found, generation) in batch::list(trie)? {
        if let Some((slot, prefix)) = prefix(&found) {
            listed
                .entry((slot, generation.0))
                .or_default()
                .insert(prefix);
        }
    }
    Ok(listed)
}

/// Returns the shaped subnets of a slot.
pub(crate) fn find(
    listed: &PrefixesBySlot,
    slot: u32,
    generation: u32,
    flags: u32,
) -> ShapedSubnets {
    let named = listed.get(&(slot, generation)).into_iter().flatten();
    // More prefixes than the maximum were not written by this agent: reported as none.
    let prefixes = Prefixes::new(named.copied()).unwrap_or_default();
    if flags & LimitFlags::ONLY_SUBNETS != 0 {
        ShapedSubnets::Only(prefixes)
    } else if flags & LimitFlags::EXCEPT_SUBNETS != 0 {
        ShapedSubnets::Except(prefixes)
    } else {
        ShapedSubnets::All
    }
}

fn key(slot: u32, prefix: Cidr) -> Key<Wire<ShapedSubnetKey>> {
    let PrefixKey {
        prefix_len,
        address,
    } = encoding::prefix_key(prefix);
    let peer = ShapedSubnetKey { pod: slot, address };
    Key::new(ShapedSubnetKey::POD_BITS + prefix_len, Wire(peer))
}

fn prefix(key: &Key<Wire<ShapedSubnetKey>>) -> Option<(u32, Cidr)> {
    let ShapedSubnetKey { pod, address } = key.data().0;
    let prefix_len = key.prefix_len().checked_sub(ShapedSubnetKey::POD_BITS)?;
    let prefix = encoding::prefix(PrefixKey {
        prefix_len,
        address,
    })?;
    Some((pod, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnets_key_converts_back_to_slot_and_prefix() {
        for text in [
            "10.1.0.0/16",
            "0.0.0.0/0",
            "fd00::/8",
            "::/0",
            "192.0.2.1/32",
        ] {
            let cidr: Cidr = text.parse().unwrap();
            assert_eq!(prefix(&key(7, cidr)), Some((7, cidr)), "{text}");
        }
    }
}
