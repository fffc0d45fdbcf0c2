//! CRC-32C (RFC 9260, appendix A) of a message in which one word changes. Contains no packet
//! format.
//!
//! A CRC is linear: the CRCs of two messages of the same length differ by the CRC, without its
//! initial value, of the difference. Where the difference is one word followed by zeros only, that
//! CRC is the word times a power of x. Polynomials are written as in the CRC: bit 31 is the
//! coefficient of 1.

/// x³², modulo the generator.
const GENERATOR: u32 = 0x82f6_3b78;
/// 1.
const ONE: u32 = 1 << 31;
/// x⁸: a shift by one byte.
const BYTE: u32 = 1 << 23;
/// Digits of a packet's length, of four bits each.
const DIGITS: usize = 4;
/// Values of a digit.
const VALUES: usize = 16;

/// x⁸ to the power of the value of each digit of a length, by the digit's place and by its value.
/// Of each its multiples: times polynomials below x⁴, which are the values of four bits.
static POWERS: [[[u32; VALUES]; VALUES]; DIGITS] = multiples();
/// Times x⁴, what four bits lose at a shift by four.
static CARRY: [u32; VALUES] = of_four_bits(ONE >> 4, 0);

const fn multiples() -> [[[u32; VALUES]; VALUES]; DIGITS] {
    let powers = powers();
    let mut multiples = [[[0; VALUES]; VALUES]; DIGITS];
    let mut place = 0;
    while place < DIGITS {
        let mut value = 0;
        while value < VALUES {
            multiples[place][value] = of_four_bits(powers[place][value], 28);
            value += 1;
        }
        place += 1;
    }
    multiples
}

/// Returns the products with all values of four bits that are shifted to the left.
const fn of_four_bits(factor: u32, shift: u32) -> [u32; VALUES] {
    let mut products = [0; VALUES];
    let (mut index, mut bits) = (0, 0);
    while index < VALUES {
        products[index] = multiply(bits << shift, factor);
        index += 1;
        bits += 1;
    }
    products
}

const fn powers() -> [[u32; VALUES]; DIGITS] {
    let mut powers = [[ONE; VALUES]; DIGITS];
    let (mut place, mut unit) = (0, BYTE);
    while place < DIGITS {
        let mut value = 1;
        while value < VALUES {
            powers[place][value] = multiply(powers[place][value - 1], unit);
            value += 1;
        }
        unit = multiply(powers[place][VALUES - 1], unit);
        place += 1;
    }
    powers
}

/// Returns the product modulo the generator.
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut product, mut shifted, mut bit) = (0, b, 0);
    while bit < 32 {
        product ^= shifted & mask(a >> (31 - bit));
        shifted = (shifted >> 1) ^ (GENERATOR & mask(shifted));
        bit += 1;
    }
    product
}

/// Returns all ones if the lowest bit is set, else zero.
const fn mask(bits: u32) -> u32 {
    (bits & 1).wrapping_neg()
}

/// Returns the difference in the CRC of a message when its word at `length` bytes from the end
/// changes by `difference`. Both are as they lie in packet memory. A packet has less than 65536
/// bytes.
///
/// By tables, four bits at a time: the verifier would walk both outcomes of each single bit.
#[inline(always)]
pub fn change(difference: u32, length: u32) -> u32 {
    let mut changed = u32::from_le(difference);
    for (place, powers) in POWERS.iter().enumerate() {
        let power = &powers[length as usize >> (4 * place) & (VALUES - 1)];
        let mut product = 0;
        for digit in 0..u32::BITS / 4 {
            let bits = (changed >> (4 * digit)) as usize & (VALUES - 1);
            let lost = product as usize & (VALUES - 1);
            product = (product >> 4) ^ CARRY[lost] ^ power[bits];
        }
        changed = product;
    }
    changed.to_le()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, as the RFC defines it.
    fn full(bytes: &[u8]) -> u32 {
        let mut crc = u32::MAX;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 0 {
                    crc >> 1
                } else {
                    crc >> 1 ^ GENERATOR
                };
            }
        }
        !crc
    }

    #[test]
    fn the_check_value_is_the_registered_one() {
        assert_eq!(full(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn an_updated_crc_is_the_recomputed_one(
            mut message in proptest::collection::vec(any::<u8>(), 12..3_000),
            ports: [u8; 4],
        ) {
            let before = full(&message).to_le();
            let old = u32::from_ne_bytes([message[0], message[1], message[2], message[3]]);
            message[..4].copy_from_slice(&ports);
            let difference = old ^ u32::from_ne_bytes(ports);
            let length = u32::try_from(message.len()).unwrap();
            prop_assert_eq!(before ^ change(difference, length), full(&message).to_le());
        }
    }
}
