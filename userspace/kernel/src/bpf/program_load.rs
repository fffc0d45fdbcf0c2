//! Repeats the load of a BPF program that was interrupted.

use std::io;

use aya::programs::ProgramError;
use nix::errno::Errno;

/// Attempts to load a program, as many as libbpf's `bpf_prog_load` makes.
const ATTEMPTS: usize = 5;

/// Calls `load`, and calls it again while the verifier was interrupted: it gives up with `EAGAIN`
/// if the thread has a pending signal (`do_check` in kernel/bpf/verifier.c).
pub(crate) fn retry_interrupted(
    load: impl FnMut() -> Result<(), ProgramError>,
) -> Result<(), ProgramError> {
    retry(load, |error| {
        matches!(error, ProgramError::LoadError { io_error, .. }
            if is_interruption(io_error))
    })
}

/// Returns whether a system call was interrupted in the verifier.
pub(crate) fn is_interruption(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EAGAIN as i32)
}

/// Calls `load`, and calls it again while it ends with an interruption.
pub(crate) fn retry<T, E>(
    mut load: impl FnMut() -> Result<T, E>,
    is_interrupted: impl Fn(&E) -> bool,
) -> Result<T, E> {
    for _ in 1..ATTEMPTS {
        match load() {
            Err(error) if is_interrupted(&error) => {}
            loaded => return loaded,
        }
    }
    load()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of loads that end with `errors` in turn, and how many were made.
    fn loads(errors: &[Errno]) -> (Result<(), Errno>, usize) {
        let mut made = 0;
        let result = retry(
            || {
                made += 1;
                errors.get(made - 1).map_or(Ok(()), |error| Err(*error))
            },
            |error| *error == Errno::EAGAIN,
        );
        (result, made)
    }

    #[test]
    fn an_interrupted_program_load_is_repeated_a_bounded_number_of_times() {
        assert_eq!(loads(&[Errno::EAGAIN, Errno::EAGAIN]), (Ok(()), 3));
        assert_eq!(loads(&[Errno::EAGAIN; 9]), (Err(Errno::EAGAIN), ATTEMPTS));
    }

    #[test]
    fn a_program_that_the_verifier_rejects_is_loaded_once() {
        assert_eq!(loads(&[Errno::EINVAL]), (Err(Errno::EINVAL), 1));
    }
}
