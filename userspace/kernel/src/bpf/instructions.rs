//! Encodes BPF instructions, for the probes' programs of a few instructions.

/// `BPF_ALU64 | BPF_MOV | BPF_K`: loads an immediate into a register.
pub(crate) const MOVE: u64 = 0xb7;
/// `BPF_JMP | BPF_CALL`: calls a helper.
pub(crate) const CALL: u64 = 0x85;
/// `BPF_JMP | BPF_EXIT`: returns register 0.
pub(crate) const EXIT: u64 = 0x95;

/// Encodes one instruction (`struct bpf_insn`); `registers` are destination and source << 4.
pub(crate) fn instruction(code: u64, registers: u64, value: u64) -> u64 {
    code | registers << 8 | value << 32
}

/// Encodes an instruction's offset, which is added to `registers`.
pub(crate) fn offset_bits(offset: i16) -> u64 {
    u64::from(offset.cast_unsigned()) << 8
}

/// Encodes a signed number as an immediate of 32 bits.
pub(crate) fn low_bits(value: i16) -> u64 {
    u64::from(i32::from(value).cast_unsigned())
}
