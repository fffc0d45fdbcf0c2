//! TCX fast path of high-traffic pods: a TCX program that runs before the pod's clsact filter.
//!
//! It is attached without a BPF link, so it lives exactly as long as the pod's veth and needs no
//! pin, like a filter. Our program is recognised by its name. Attaching and detaching wait for an
//! RCU grace period under the RTNL lock; replacing does not.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};

use abi::maps::programs::FROM_BUSY_POD;
use aya::programs::{ProgramInfo, SchedClassifier, TcAttachType};
use model::IfName;

use crate::error::{io_error, is_gone};
use crate::syscall::{self, Attachment};

/// Attaches the program with this descriptor and id. A program of ours that is already attached is
/// replaced atomically, so that every packet meets one of the two.
pub(crate) fn attach(link: &IfName, index: u32, program: (RawFd, u32)) -> io::Result<()> {
    let (descriptor, id) = program;
    let attachment = Attachment::tcx_ingress(index, descriptor);
    match attached(link)? {
        None => syscall::attach(attachment),
        Some(old) if old.id() == id => Ok(()),
        Some(old) => {
            let old = old.fd().map_err(|error| io_error(&error))?;
            syscall::attach(attachment.replacing(old.as_fd().as_raw_fd()))
        }
    }
    .inspect(|()| crash::point())
}

/// Detaches our program. A program that is not attached is success.
pub(crate) fn detach(link: &IfName, index: u32) -> io::Result<()> {
    let Some(program) = attached(link)? else {
        return Ok(());
    };
    let program = program.fd().map_err(|error| io_error(&error))?;
    syscall::detach(Attachment::tcx_ingress(index, program.as_fd().as_raw_fd()))
        .inspect(|()| crash::point())
}

/// Returns the id of our attached program.
pub(crate) fn attached_id(link: &IfName) -> io::Result<Option<u32>> {
    Ok(attached(link)?.map(|program| program.id()))
}

/// Returns our attached program; `None` on a link that is gone. A kernel without TCX is an error.
fn attached(link: &IfName) -> io::Result<Option<ProgramInfo>> {
    match SchedClassifier::query_tcx(link.as_str(), TcAttachType::Ingress) {
        Ok((_, programs)) => Ok(programs.into_iter().find(is_ours)),
        Err(error) => match io_error(&error) {
            error if is_gone(&error) => Ok(None),
            error => Err(error),
        },
    }
}

fn is_ours(program: &ProgramInfo) -> bool {
    program.name_as_str() == Some(FROM_BUSY_POD)
}
