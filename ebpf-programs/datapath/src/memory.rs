//! Unaligned access to words of a packet: the compiler would access them byte by byte, and the
//! kernel's CPUs need not.

use core::arch::asm;

/// Most words of one access.
const MOST: usize = 12;

/// Calls a function for the word of this index. The index is a constant wherever this is inlined:
/// an instruction's offset must be one.
macro_rules! at_word {
    ($index:expr, $access:ident($($argument:expr),*)) => {
        match $index {
            0 => $access::<0>($($argument),*),
            1 => $access::<4>($($argument),*),
            2 => $access::<8>($($argument),*),
            3 => $access::<12>($($argument),*),
            4 => $access::<16>($($argument),*),
            5 => $access::<20>($($argument),*),
            6 => $access::<24>($($argument),*),
            7 => $access::<28>($($argument),*),
            8 => $access::<32>($($argument),*),
            9 => $access::<36>($($argument),*),
            10 => $access::<40>($($argument),*),
            _ => $access::<44>($($argument),*),
        }
    };
}

/// Reads `N` words from the address on. The caller has compared it with the end of what may be
/// read.
///
/// # Safety
/// They must lie within the packet.
#[inline(always)]
pub(crate) unsafe fn words_at<const N: usize>(at: usize) -> [u32; N] {
    const { assert!(N <= MOST) };
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *word = unsafe { at_word!(index, load(at)) };
    }
    words
}

/// Returns the lowest byte of a number. Written in assembly: where a number has no other bits, the
/// compiler would leave the instruction out, but the verifier of Linux 6.1 may have lost the bound.
#[inline(always)]
pub(crate) fn lowest_byte(number: u32) -> u32 {
    let mut number = u64::from(number);
    // SAFETY: nothing but the register is written.
    unsafe {
        asm!(
            "{number} &= 255",
            number = inout(reg) number,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    number as u32
}

/// Reads the word at an offset from the address, by one instruction with this offset.
///
/// # Safety
/// The word must be readable.
#[inline(always)]
pub(crate) unsafe fn load<const OFFSET: i32>(at: usize) -> u32 {
    let word: u32;
    // SAFETY: the caller's promise. Nothing but the register is written.
    unsafe {
        asm!(
            "{word} = *(u32 *)({at} + {offset})",
            word = out(wreg) word,
            at = in(reg) at,
            offset = const OFFSET,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    word
}

/// Writes words from the address on. The caller has compared it with the end of what may be
/// written.
///
/// # Safety
/// They must lie within the packet, and the packet must be writable: see
/// [`crate::kernel::Kernel::in_place`].
#[inline(always)]
pub(crate) unsafe fn write_words_at<const N: usize>(at: usize, words: [u32; N]) {
    const { assert!(N <= MOST) };
    for (index, word) in words.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { at_word!(index, store(at, word)) };
    }
}

#[inline(always)]
unsafe fn store<const OFFSET: i32>(at: usize, word: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "*(u32 *)({at} + {offset}) = {word}",
            word = in(wreg) word,
            at = in(reg) at,
            offset = const OFFSET,
            options(nostack, preserves_flags),
        );
    }
}
