//! Words of a packet, which lie at any address: the compiler would read and write them byte by byte, the kernel's
//! machines need not.

use core::arch::asm;

/// Most words that are read at once.
const MOST: usize = 12;

/// `N` words from the address on, which the caller has compared with the end of what may be read.
///
/// # Safety
/// They must lie within the packet.
#[inline(always)]
pub(crate) unsafe fn words_at<const N: usize>(at: usize) -> [u32; N] {
    const { assert!(N <= MOST) };
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *word = unsafe { word_at(at, index) };
    }
    words
}

/// One of the words. The index is a constant wherever this is inlined: an instruction's offset has to be one.
#[inline(always)]
unsafe fn word_at(at: usize, index: usize) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        match index {
            0 => load::<0>(at),
            1 => load::<4>(at),
            2 => load::<8>(at),
            3 => load::<12>(at),
            4 => load::<16>(at),
            5 => load::<20>(at),
            6 => load::<24>(at),
            7 => load::<28>(at),
            8 => load::<32>(at),
            9 => load::<36>(at),
            10 => load::<40>(at),
            _ => load::<44>(at),
        }
    }
}

#[inline(always)]
unsafe fn load<const OFFSET: i32>(at: usize) -> u32 {
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

/// Writes words at the address and behind it, which the caller has compared with the end of what may be written.
///
/// # Safety
/// They must lie within the packet, and the packet must be nobody else's: see [`crate::kernel::Kernel::in_place`].
#[inline(always)]
pub(crate) unsafe fn write_words_at<const N: usize>(at: usize, words: [u32; N]) {
    const { assert!(N <= MOST) };
    for (index, word) in words.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { write_word_at(at, index, word) };
    }
}

#[inline(always)]
unsafe fn write_word_at(at: usize, index: usize, word: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        match index {
            0 => store::<0>(at, word),
            1 => store::<4>(at, word),
            2 => store::<8>(at, word),
            3 => store::<12>(at, word),
            4 => store::<16>(at, word),
            5 => store::<20>(at, word),
            6 => store::<24>(at, word),
            7 => store::<28>(at, word),
            8 => store::<32>(at, word),
            9 => store::<36>(at, word),
            10 => store::<40>(at, word),
            _ => store::<44>(at, word),
        }
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
