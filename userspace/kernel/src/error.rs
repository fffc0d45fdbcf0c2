//! Errors of the kernel, with a description of the call that failed.

use std::fmt::Display;
use std::io;

use crate::PortInUse;

/// An observation failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {call}")]
pub struct ObserveError {
    /// What was attempted, as a phrase that follows "cannot".
    pub call: String,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

/// A step failed, and its partial changes were undone.
#[derive(Debug, thiserror::Error)]
#[error("cannot {call}")]
pub struct StepError {
    /// What was attempted, as a phrase that follows "cannot" and names the object.
    pub call: String,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

impl StepError {
    /// Whether the object does not exist (`ENOENT`, `ENODEV`, `ENXIO`, `ESRCH`, `EADDRNOTAVAIL`).
    pub fn is_gone(&self) -> bool {
        is_gone(&self.source)
    }

    /// Whether the object exists already (`EEXIST`).
    pub fn is_taken(&self) -> bool {
        is(&self.source, nix::errno::Errno::EEXIST)
    }

    /// Returns the port that another process uses, if that is the cause.
    pub fn port_in_use(&self) -> Option<&PortInUse> {
        self.source.get_ref()?.downcast_ref()
    }
}

/// The real kernel cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A system call failed.
    #[error("cannot {call}")]
    Call {
        /// What was attempted, as a phrase that follows "cannot".
        call: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Another agent holds the lock of this directory.
    #[error("another agent holds the lock of {0}: stop it first")]
    Locked(std::path::PathBuf),
    /// A pinned map does not have the type, sizes and capacity that this version expects.
    #[error(
        "pinned map {name} does not match: it is {found}, expected {expected}: remove {path} or run the agent version that created it"
    )]
    Map {
        /// Name of the map, such as `FLOWS`.
        name: &'static str,
        /// Type, sizes and capacity of the pinned map.
        found: String,
        /// Type, sizes and capacity that this version expects.
        expected: String,
        /// Path of the pin.
        path: String,
    },
    /// A newer agent has pinned its maps.
    #[error(
        "{} was pinned by a newer agent (ABI {found}, this agent has ABI {known}): start that agent, or remove \
         everything with its `viaductd --uninstall`",
        path.display()
    )]
    Newer {
        /// ABI version of the newer agent.
        found: u32,
        /// ABI version of this agent.
        known: u32,
        /// Directory of the newer agent's pins.
        path: std::path::PathBuf,
    },
    /// The BPF object has no map or program of this name.
    #[error("the BPF object has no {what} {name:?}")]
    Missing {
        /// `map` or `program`.
        what: &'static str,
        /// Name of the map or program.
        name: &'static str,
    },
    /// The kernel is too old: the programs cannot do without this helper.
    #[error("this kernel has no {helper}: Viaduct needs Linux 5.15 or later")]
    Kernel {
        /// Name of the helper.
        helper: &'static str,
    },
    /// The kernel refused the BPF object.
    #[error("cannot load {what} into the kernel")]
    Load {
        /// Program or map that could not be loaded.
        what: String,
        /// Error of aya or of the verifier.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A failed call, before it is turned into the error of a step, an observation or the opening.
#[derive(Debug)]
pub(crate) struct Failed {
    call: String,
    source: io::Error,
}

impl Failed {
    pub(crate) fn new(call: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self {
            call: call.into(),
            source: source.into(),
        }
    }

    /// Returns the first of the failures among `all` changes of `what`, with their number; `Ok` if
    /// there is none.
    pub(crate) fn first_of<C: Display>(
        what: &str,
        all: usize,
        failures: Vec<(C, io::Error)>,
    ) -> Result<(), Self> {
        let count = failures.len();
        match failures.into_iter().next() {
            None => Ok(()),
            Some((first, error)) => {
                let call = format!("change {count} of {all} {what}, the first of them {first}");
                Err(Self::new(call, error))
            }
        }
    }
}

impl From<Failed> for StepError {
    fn from(Failed { call, source }: Failed) -> Self {
        Self { call, source }
    }
}

impl From<Failed> for ObserveError {
    fn from(Failed { call, source }: Failed) -> Self {
        Self { call, source }
    }
}

impl From<Failed> for OpenError {
    fn from(Failed { call, source }: Failed) -> Self {
        Self::Call { call, source }
    }
}

/// Adds a description of the call to its error.
pub(crate) trait Attempt<T> {
    /// Converts an error; `call` returns a phrase that follows "cannot".
    fn attempt(self, call: impl FnOnce() -> String) -> Result<T, Failed>;
}

impl<T, E: Into<io::Error>> Attempt<T> for Result<T, E> {
    fn attempt(self, call: impl FnOnce() -> String) -> Result<T, Failed> {
        self.map_err(|error| Failed::new(call(), error))
    }
}

/// Whether `error` is `errno`.
pub(crate) fn is(error: &io::Error, errno: nix::errno::Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}

/// Whether `error` means that the object does not exist.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    use nix::errno::Errno;
    [
        Errno::ENOENT,
        Errno::ENODEV,
        Errno::ENXIO,
        Errno::ESRCH,
        Errno::EADDRNOTAVAIL,
    ]
    .into_iter()
    .any(|errno| is(error, errno))
}

/// Returns the kernel's error from an error of aya: the first errno in the chain of causes, if a
/// system call failed at all.
pub(crate) fn io_error(error: &(dyn std::error::Error + 'static)) -> io::Error {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(code) = errno(error) {
            return io::Error::from_raw_os_error(code);
        }
        cause = error.source();
    }
    io::Error::other(error.to_string())
}

fn errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    use aya::maps::MapError;
    use aya::programs::ProgramError;
    use aya::programs::tc::TcError;
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return error.raw_os_error();
    }
    // These errors are transparent: they have the message of their cause, but not the cause itself.
    match error.downcast_ref::<MapError>() {
        Some(MapError::IoError(error)) => return error.raw_os_error(),
        Some(MapError::KeyNotFound | MapError::ElementNotFound) => {
            return Some(nix::errno::Errno::ENOENT as i32);
        }
        _ => {}
    }
    match error.downcast_ref::<ProgramError>() {
        Some(ProgramError::IOError(error) | ProgramError::TcError(TcError::IoError(error))) => {
            error.raw_os_error()
        }
        _ => None,
    }
}
