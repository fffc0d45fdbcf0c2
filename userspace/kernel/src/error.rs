//! Errors of the kernel, with the call that failed.

use std::io;

use crate::PortInUse;

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
        is_gone(&self.source)
    }

    /// Whether the object is there already (`EEXIST`).
    pub fn is_taken(&self) -> bool {
        is(&self.source, nix::errno::Errno::EEXIST)
    }

    /// The port that somebody else has, when that is why.
    pub fn port_in_use(&self) -> Option<&PortInUse> {
        self.source.get_ref()?.downcast_ref()
    }
}

/// The real kernel cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A call failed.
    #[error("cannot {call}")]
    Call {
        /// What was attempted, as a phrase behind "cannot".
        call: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Another agent holds the lock.
    #[error("another agent uses {0}")]
    Locked(std::path::PathBuf),
    /// A pinned map is not what this version expects.
    #[error(
        "pinned map {name} is {found}, not {expected}: remove {path} or run the agent that made it"
    )]
    Map {
        /// Name of the map.
        name: &'static str,
        /// What it is.
        found: String,
        /// What it has to be.
        expected: String,
        /// Where it is pinned.
        path: String,
    },
    /// A newer agent has pinned its maps.
    #[error(
        "{} was pinned by a newer agent (ABI {found}, this one knows {known}): start that one, or remove \
         everything with its `viaductd --uninstall`",
        path.display()
    )]
    Newer {
        /// Its ABI version.
        found: u32,
        /// Ours.
        known: u32,
        /// Where they are.
        path: std::path::PathBuf,
    },
    /// The BPF object lacks a map or a program.
    #[error("the BPF object has no {what} {name:?}")]
    Missing {
        /// Map or program.
        what: &'static str,
        /// Its name.
        name: &'static str,
    },
    /// The kernel refused the BPF object.
    #[error("cannot load {what} into the kernel")]
    Load {
        /// What was loaded.
        what: String,
        /// What aya or the verifier said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A call that failed, before it is known whether a step, an observation or the opening asked for it.
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

/// Says what was attempted when a call fails.
pub(crate) trait Attempt<T> {
    /// `call` is a phrase behind "cannot".
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

/// Whether `error` says that the object is not there.
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

/// The kernel's error in one of aya's: somewhere down the chain of causes there is an errno, if a call failed at all.
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
    // These pass their cause's message on as their own, and with it hide the cause.
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
