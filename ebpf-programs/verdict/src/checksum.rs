//! Internet checksum arithmetic (RFC 1071, RFC 1624): sums of words, independent of where they lie
//! in a packet.

/// The difference that a change makes to a ones' complement sum.
///
/// Words are taken as they lie in memory; the sum is the same in either byte order (RFC 1071, 2B).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    sum: u64,
}

impl Difference {
    /// No difference.
    pub const NONE: Self = Self { sum: 0 };

    /// Adds the difference of one more changed word.
    #[inline(always)]
    #[must_use]
    pub const fn and(self, from: u32, to: u32) -> Self {
        // At most a few dozen words are added: 64 bits never overflow.
        Self {
            sum: self.sum + !from as u64 + to as u64,
        }
    }

    /// Adds two differences.
    #[inline(always)]
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            sum: self.sum + other.sum,
        }
    }

    /// Adds the differences of four changed words.
    #[inline(always)]
    #[must_use]
    pub const fn and_words(self, from: [u32; 4], to: [u32; 4]) -> Self {
        self.and(from[0], to[0])
            .and(from[1], to[1])
            .and(from[2], to[2])
            .and(from[3], to[3])
    }

    /// Returns the difference with this folded form.
    #[inline(always)]
    pub const fn from_folded(folded: u32) -> Self {
        Self { sum: folded as u64 }
    }

    /// Returns the difference folded to 32 bits, as the kernel's checksum helpers take it.
    #[inline(always)]
    pub const fn folded(self) -> u32 {
        let once = (self.sum & 0xffff_ffff) + (self.sum >> 32);
        let twice = (once & 0xffff_ffff) + (once >> 32);
        (twice & 0xffff_ffff) as u32
    }

    /// Returns the difference folded to 16 bits.
    #[inline(always)]
    pub const fn halved(self) -> u16 {
        fold(self.sum)
    }

    /// Returns the checksum field after this difference (RFC 1624, equation 3), as it lies in
    /// memory.
    #[inline(always)]
    pub const fn apply(self, checksum: u16) -> u16 {
        !fold(!(checksum as u32) as u64 + self.folded() as u64)
    }
}

/// Folds a wide sum to a 16-bit ones' complement sum.
#[inline(always)]
pub const fn fold(sum: u64) -> u16 {
    let a = (sum & 0xffff_ffff) + (sum >> 32);
    let b = (a & 0xffff) + ((a >> 16) & 0xffff) + (a >> 32);
    let c = (b & 0xffff) + (b >> 16);
    (((c & 0xffff) + (c >> 16)) & 0xffff) as u16
}

/// Adds three halves to a 16-bit ones' complement sum, in the few instructions that so small a sum
/// needs.
#[inline(always)]
pub const fn fold_halves(halves: [u16; 3]) -> u16 {
    let sum = halves[0] as u32 + halves[1] as u32 + halves[2] as u32;
    let once = (sum & 0xffff) + (sum >> 16);
    (((once & 0xffff) + (once >> 16)) & 0xffff) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn full(words: &[u32]) -> u16 {
        let mut sum: u64 = 0;
        for word in words {
            sum += u64::from(*word);
        }
        !fold(sum)
    }

    proptest! {
        #[test]
        fn an_updated_checksum_is_the_recomputed_one(
            mut words in proptest::collection::vec(any::<u32>(), 1..40),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u32>()), 1..8),
        ) {
            let mut checksum = full(&words);
            let mut difference = Difference::NONE;
            for (index, to) in changes {
                let index = index.index(words.len());
                difference = difference.and(words[index], to);
                words[index] = to;
            }
            checksum = difference.apply(checksum);
            let recomputed = full(&words);
            // Ones' complement has two zeros; no packet's sum is the positive one unless all its
            // words are zero.
            prop_assert!(checksum == recomputed || words.iter().all(|word| *word == 0));
        }

        #[test]
        fn halves_are_folded_as_any_sum(halves: [u16; 3]) {
            let sum = halves.iter().map(|half| u64::from(*half)).sum();
            prop_assert_eq!(fold_halves(halves), fold(sum));
        }

        #[test]
        fn a_difference_and_its_inverse_cancel(checksum: u16, from: u32, to: u32) {
            let there = Difference::NONE.and(from, to).apply(checksum);
            let back = Difference::NONE.and(to, from).apply(there);
            prop_assert!(back == checksum || (checksum == 0xffff && back == 0) || (checksum == 0 && back == 0xffff));
        }
    }
}
