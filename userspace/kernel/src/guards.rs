//! Guards: the XDP program in front of uplinks, attached by pinned links.
//!
//! A pinned link survives the agent; the next agent puts its own program into it. The program is given to the kernel when
//! the first guard is posted: most nodes have none. A program of others in the same place is left alone, and the kernel
//! refuses ours.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use abi::maps::programs::XDP_GUARD;
use aya::Ebpf;
use aya::programs::Xdp;
use aya::programs::links::FdLink;
use aya::programs::xdp::XdpMode;
use model::IfName;
use nix::errno::Errno;
use planner::{Link, Posted};

use crate::error::io_error;
use crate::pinned;
use crate::pins::Pins;
use crate::raw::ProgramLink;

/// Where guards' links are pinned, and the program's id once the kernel has it.
pub(crate) struct Guards {
    links: PathBuf,
    program: Option<u32>,
}

impl Guards {
    pub(crate) fn new(pins: &Pins) -> Self {
        Self {
            links: pins.links(),
            program: None,
        }
    }

    /// Posts a guard, or puts the program into the link that is pinned.
    pub(crate) fn post(&mut self, object: &mut Ebpf, index: u32) -> io::Result<()> {
        let pin = self.pin(index);
        let program = self.loaded(object)?;
        let descriptor = program.fd().map_err(|error| io_error(&error))?;
        if pinned::replace(&pin, u64::from(index), descriptor.as_fd())? {
            return Ok(());
        }
        pinned::keep(attach(program, index)?, &pin)
    }

    /// Withdraws a guard; that there is none is success.
    pub(crate) fn withdraw(&self, index: u32) -> io::Result<()> {
        pinned::remove(&self.pin(index))
    }

    /// The guards that stand at these links; only those of them are asked whose index has a pin.
    pub(crate) fn observe(
        &self,
        links: &BTreeMap<IfName, Link>,
        pinned: &BTreeSet<u32>,
    ) -> io::Result<BTreeMap<IfName, Posted>> {
        let mut posted = BTreeMap::new();
        for (name, link) in links.iter().filter(|(_, it)| pinned.contains(&it.index)) {
            let Some(pinned) = ProgramLink::open(&self.pin(link.index))? else {
                continue;
            };
            let linked = pinned.linked()?;
            if linked.target == u64::from(link.index) {
                let is_current = Some(linked.program) == self.program;
                posted.insert(name.clone(), Posted { is_current });
            }
        }
        Ok(posted)
    }

    fn loaded<'a>(&mut self, object: &'a mut Ebpf) -> io::Result<&'a mut Xdp> {
        let program: &mut Xdp = object
            .program_mut(XDP_GUARD)
            .ok_or(Errno::ENOENT)?
            .try_into()
            .map_err(|error| io_error(&error))?;
        if self.program.is_none() {
            let info = program.load().and_then(|()| program.info());
            self.program = Some(info.map_err(|error| io_error(&error))?.id());
        }
        Ok(program)
    }

    fn pin(&self, index: u32) -> PathBuf {
        self.links.join(format!("{index}-guard"))
    }
}

fn attach(program: &mut Xdp, index: u32) -> io::Result<FdLink> {
    let attached = program.attach_to_if_index(index, XdpMode::Driver);
    let link = attached
        .and_then(|id| program.take_link(id))
        .map_err(|error| io_error(&error))?;
    FdLink::try_from(link).map_err(|error| io_error(&error))
}
