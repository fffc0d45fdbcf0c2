//! Pinned BPF links: they keep programs attached when the agent ends.
//!
//! The next agent replaces the program in the pinned link, so that no packet and no socket is
//! missed.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use aya::programs::links::FdLink;
use nix::errno::Errno;

use crate::error::{io_error, is};
use crate::syscall::ProgramLink;

/// Replaces the program of the pinned link. Returns `false` when there is no link for this target;
/// then a stale pin has been removed.
pub(crate) fn replace(pin: &Path, target: u64, program: BorrowedFd<'_>) -> io::Result<bool> {
    let Some(link) = ProgramLink::open(pin)? else {
        return Ok(false);
    };
    if link.linked()?.target == target {
        match link.update(program) {
            // The target is gone, and another one has its index.
            Err(error) if is(&error, Errno::ENOLINK) => {}
            result => return result.inspect(|()| crash::point()).map(|()| true),
        }
    }
    remove(pin)?;
    Ok(false)
}

/// Pins a new link.
pub(crate) fn keep(link: FdLink, pin: &Path) -> io::Result<()> {
    crash::point();
    link.pin(pin).map_err(|error| io_error(&error))?;
    crash::point();
    Ok(())
}

/// Detaches the pinned link and removes the pin. A missing pin is success.
///
/// The link is detached explicitly: a link that is only closed stays attached until a kernel thread
/// releases it, and blocks the place meanwhile.
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
