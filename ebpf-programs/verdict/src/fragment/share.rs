//! Keys of datagrams, and whose share of the tables they take.

use abi::{FragmentKey, Share, Tuple};

use crate::node::Node;
use crate::work::{Headers, Hook, Work};

/// Sets the key of the fragment's datagram.
#[inline(always)]
pub(super) fn set_key<E: Node>(env: &E, work: &mut Work, hook: Hook) {
    let share = share(env, work, hook);
    fill_key(&mut work.fragment.key, &work.headers, share);
}

/// Sets all fields of a datagram's key.
#[inline(always)]
pub(super) fn fill_key(key: &mut FragmentKey, headers: &Headers, share: u32) {
    key.source = headers.tuple.source;
    key.destination = headers.tuple.destination;
    key.identification = headers.identification;
    key.protocol = headers.tuple.protocol;
    key.reserved = [0; 3];
    key.share = share;
}

/// Returns the share that a fragment's datagram takes; 0 where nothing is translated: packets that
/// the node forwards for others.
#[inline(always)]
fn share<E: Node>(env: &E, work: &Work, hook: Hook) -> u32 {
    let tuple = &work.headers.tuple;
    match hook {
        Hook::FromPod => work.pod,
        Hook::UplinkIn => {
            if env.is_local(&tuple.destination) || env.endpoint(&tuple.destination).is_some() {
                let sender = mixed(0, tuple.source.words());
                Share::OUTSIDE | sender & (Share::OUTSIDE_DATAGRAMS - 1)
            } else {
                0
            }
        }
        Hook::UplinkOut => sender_share(env, tuple),
    }
}

/// Returns the share of a datagram that leaves a hook with this tuple untranslated: its pod's, or
/// that of the node; 0 for others.
#[inline(always)]
pub(super) fn sender_share<E: Node>(env: &E, tuple: &Tuple) -> u32 {
    if let Some(endpoint) = env.endpoint(&tuple.source) {
        return endpoint.pod;
    }
    if env.is_local(&tuple.source) {
        let receiver = mixed(0, tuple.destination.words());
        Share::NODE | receiver & (Share::NODE_DATAGRAMS - 1)
    } else {
        0
    }
}

/// Returns the share of translated datagrams with these addresses.
#[inline(always)]
pub(super) fn translated_share(tuple: &Tuple) -> u32 {
    let hash = mixed(mixed(0, tuple.source.words()), tuple.destination.words());
    Share::TRANSLATED | hash & (Share::TRANSLATED_DATAGRAMS - 1)
}

/// Returns the share of held fragments that belongs to one of datagrams: there are fewer of those
/// from outside.
#[inline(always)]
pub(super) const fn held_share(share: u32) -> u32 {
    if share & Share::OUTSIDE == 0 {
        share
    } else {
        share & (Share::OUTSIDE | (Share::OUTSIDE_HELD - 1))
    }
}

/// Adds four words to a hash: a multiplication and a shift for each word, as in Murmur hashes.
#[inline(always)]
pub(super) const fn mixed(hash: u32, words: [u32; 4]) -> u32 {
    let [a, b, c, d] = words;
    mixed_word(mixed_word(mixed_word(mixed_word(hash, a), b), c), d)
}

#[inline(always)]
const fn mixed_word(hash: u32, word: u32) -> u32 {
    let hash = (hash ^ word).wrapping_mul(0x85eb_ca6b);
    (hash ^ hash >> 15).wrapping_mul(0xc2b2_ae35) ^ hash >> 13
}
