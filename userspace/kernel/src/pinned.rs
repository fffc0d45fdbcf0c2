//! Links between a program and where it is attached, pinned so that they survive the agent.
//!
//! The next agent puts its own program into the link that it finds, so that no packet and no socket is missed.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use aya::programs::links::FdLink;
use nix::errno::Errno;

use crate::error::{io_error, is};
use crate::raw::ProgramLink;

/// Puts the program into the link that is pinned. `false` when there is none, or none of this target any more: then the
/// pin is gone as well.
pub(crate) fn replace(pin: &Path, target: u64, program: BorrowedFd<'_>) -> io::Result<bool> {
    let Some(link) = ProgramLink::open(pin)? else {
        return Ok(false);
    };
    if link.linked()?.target == target {
        match link.update(program) {
            // The target is gone, and another one has its place.
            Err(error) if is(&error, Errno::ENOLINK) => {}
            result => return result.inspect(|()| crash::point()).map(|()| true),
        }
    }
    remove(pin)?;
    Ok(false)
}

/// Pins a link that was just made.
pub(crate) fn keep(link: FdLink, pin: &Path) -> io::Result<()> {
    crash::point();
    link.pin(pin).map_err(|error| io_error(&error))?;
    crash::point();
    Ok(())
}

/// Detaches what is pinned, and removes the pin; that there is none is success. A link that is only let go of stays attached
/// until the kernel has time for it, and nothing else has room there meanwhile.
pub(crate) fn remove(pin: &Path) -> io::Result<()> {
    if let Some(link) = ProgramLink::open(pin)? {
        link.detach()?;
        crash::point();
    }
    match std::fs::remove_file(pin) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.inspect(|()| crash::point()),
    }
}
