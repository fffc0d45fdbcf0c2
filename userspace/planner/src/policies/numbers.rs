//! Numbers of identities and rule sets.

use std::collections::BTreeSet;

/// Gives out numbers by contents: the same contents have the same number, as long as no others have
/// the same hash. Never 0.
#[derive(Debug, Default)]
pub(super) struct Numbers(BTreeSet<u32>);

impl Numbers {
    pub(super) fn of(&mut self, contents: &[u8]) -> u32 {
        let mut number = fnv1a(contents);
        while number == 0 || !self.0.insert(number) {
            number = number.wrapping_add(1);
        }
        number
    }
}

/// FNV-1a hash of 32 bits.
pub(super) fn fnv1a(bytes: &[u8]) -> u32 {
    const OFFSET_BASIS: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    bytes.iter().fold(OFFSET_BASIS, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(PRIME)
    })
}
