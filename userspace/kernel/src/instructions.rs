//! Programs of a few instructions, in the machine's own words: for trials, which are no part of the object.

/// Puts a number into a register.
pub(crate) const MOVE: u64 = 0xb7;
/// Calls a helper of the kernel.
pub(crate) const CALL: u64 = 0x85;
/// Returns what is in register 0.
pub(crate) const EXIT: u64 = 0x95;

/// One instruction.
pub(crate) fn word(code: u64, registers: u64, value: u64) -> u64 {
    code | registers << 8 | value << 32
}

/// An instruction's offset, which stands above its registers.
pub(crate) fn place(offset: i16) -> u64 {
    u64::from(offset.cast_unsigned()) << 8
}

/// A number as the 32 bits of an instruction's value.
pub(crate) fn low_bits(value: i16) -> u64 {
    u64::from(i32::from(value).cast_unsigned())
}
