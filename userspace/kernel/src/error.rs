//! Errors of the kernel, with the call that failed.

use std::io;

/// Looking at the kernel failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {call}")]
pub struct ObserveError {
    /// What was attempted, as a phrase behind "cannot".
    pub call: String,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
}

/// A step failed; nothing of it remains.
#[derive(Debug, thiserror::Error)]
#[error("cannot {call}")]
pub struct StepError {
    /// What was attempted, as a phrase behind "cannot", naming the object.
    pub call: String,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
}

impl StepError {
    /// Whether the object is already gone (`ENOENT`, `ENODEV`, `ENXIO`, `ESRCH`, `EADDRNOTAVAIL`).
    pub fn is_gone(&self) -> bool {
        use nix::errno::Errno;
        let gone = [
            Errno::ENOENT,
            Errno::ENODEV,
            Errno::ENXIO,
            Errno::ESRCH,
            Errno::EADDRNOTAVAIL,
        ];
        self.source
            .raw_os_error()
            .is_some_and(|code| gone.contains(&Errno::from_raw(code)))
    }

    /// Whether the object is there already (`EEXIST`).
    pub fn is_taken(&self) -> bool {
        self.source.raw_os_error() == Some(nix::errno::Errno::EEXIST as i32)
    }
}
