//! With whom pods' limits count, in the datapath's trie. A prefix is there before a limit asks for it, and goes when no
//! limit does any more. Knows nothing of rates.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use abi::{LimitFlags, Peer, PrefixKey};
use aya::maps::lpm_trie::Key;
use model::{Cidr, Peers, Prefixes};

use crate::error::io_error;
use crate::limits::{DIRECTIONS, row};
use crate::tables::{Tables, Wire, removed, written};
use crate::{batch, bytes};

const ANY: u64 = 0;

/// The prefixes of each slot and generation.
pub(crate) type Listed = BTreeMap<(u32, u32), BTreeSet<Cidr>>;

/// [`LimitFlags`] for them.
pub(crate) fn flags(peers: &Peers) -> u32 {
    match peers {
        Peers::All => 0,
        Peers::Only(_) => LimitFlags::ONLY_PEERS,
        Peers::Except(_) => LimitFlags::EXCEPT_PEERS,
    }
}

/// The flags that the limits of a slot have.
pub(crate) fn flags_of(tables: &Tables, slot: u32) -> io::Result<u32> {
    let mut flags = 0;
    for direction in DIRECTIONS {
        let limit = tables.limits.get(&row(slot, direction), ANY);
        flags |= limit.map_err(|error| io_error(&error))?.0.flags;
    }
    Ok(flags)
}

/// Adds what is named.
pub(crate) fn add(
    tables: &mut Tables,
    slot: u32,
    peers: &Peers,
    generation: u32,
) -> io::Result<()> {
    peers
        .prefixes()
        .iter()
        .try_for_each(|prefix| written(tables.peers.insert(&key(slot, prefix), generation, ANY)))
}

/// Removes what is not named any more.
pub(crate) fn remove_others(tables: &mut Tables, slot: u32, peers: &Peers) -> io::Result<()> {
    let kept: BTreeSet<Cidr> = peers.prefixes().iter().collect();
    for (found, _) in batch::list(&tables.peers)? {
        let other = prefix(&found).filter(|(of, prefix)| *of == slot && !kept.contains(prefix));
        if other.is_some() {
            removed(tables.peers.remove(&found))?;
        }
    }
    Ok(())
}

/// All that are there, as far as limits with these flags ask for any.
pub(crate) fn asked_for(tables: &Tables, flags: u32) -> io::Result<Listed> {
    let mut listed = Listed::new();
    if flags == 0 {
        return Ok(listed);
    }
    for (found, generation) in batch::list(&tables.peers)? {
        if let Some((slot, prefix)) = prefix(&found) {
            listed.entry((slot, generation)).or_default().insert(prefix);
        }
    }
    Ok(listed)
}

/// With whom the limits of a slot count.
pub(crate) fn of(listed: &Listed, slot: u32, generation: u32, flags: u32) -> Peers {
    let named = listed.get(&(slot, generation)).into_iter().flatten();
    // More than there may be is not as we have written it, whatever it is.
    let prefixes = Prefixes::new(named.copied()).unwrap_or_default();
    if flags & LimitFlags::ONLY_PEERS != 0 {
        Peers::Only(prefixes)
    } else if flags & LimitFlags::EXCEPT_PEERS != 0 {
        Peers::Except(prefixes)
    } else {
        Peers::All
    }
}

fn key(slot: u32, prefix: Cidr) -> Key<Wire<Peer>> {
    let PrefixKey {
        prefix_len,
        address,
    } = bytes::prefix_key(prefix);
    let peer = Peer { pod: slot, address };
    Key::new(Peer::POD_BITS + prefix_len, Wire(peer))
}

fn prefix(key: &Key<Wire<Peer>>) -> Option<(u32, Cidr)> {
    let Peer { pod, address } = key.data().0;
    let prefix_len = key.prefix_len().checked_sub(Peer::POD_BITS)?;
    let prefix = bytes::prefix(PrefixKey {
        prefix_len,
        address,
    })?;
    Some((pod, prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_comes_back_from_its_key() {
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
