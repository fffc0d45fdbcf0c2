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
use crate::pins::Pins;
use crate::raw::ProgramLink;

/// What a pin's name has behind the index of the link.
const PIN: &str = "-guard";

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
        if let Some(link) = ProgramLink::open(&pin)? {
            let descriptor = program.fd().map_err(|error| io_error(&error))?;
            if link.linked()?.target == u64::from(index) {
                return link.update(descriptor.as_fd()).inspect(|()| crash::point());
            }
            // The link was of a device that is gone, whose index another one has now.
            std::fs::remove_file(&pin)?;
            crash::point();
        }
        let link = attach(program, index)?;
        crash::point();
        link.pin(&pin).map_err(|error| io_error(&error))?;
        crash::point();
        Ok(())
    }

    /// Withdraws a guard; that there is none is success.
    pub(crate) fn withdraw(&self, index: u32) -> io::Result<()> {
        match std::fs::remove_file(self.pin(index)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result.inspect(|()| crash::point()),
        }
    }

    /// The guards that stand at these links.
    pub(crate) fn observe(
        &self,
        links: &BTreeMap<IfName, Link>,
    ) -> io::Result<BTreeMap<IfName, Posted>> {
        let pinned = self.pinned()?;
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

    /// Indexes of the links that have a pin, which few have.
    fn pinned(&self) -> io::Result<BTreeSet<u32>> {
        let mut indexes = BTreeSet::new();
        for entry in std::fs::read_dir(&self.links)? {
            let name = entry?.file_name();
            let index = name.to_str().and_then(|name| name.strip_suffix(PIN));
            indexes.extend(index.and_then(|index| index.parse::<u32>().ok()));
        }
        Ok(indexes)
    }

    fn loaded<'a>(&mut self, object: &'a mut Ebpf) -> io::Result<&'a mut Xdp> {
        let program = object.program_mut(XDP_GUARD).ok_or(Errno::ENOENT)?;
        let program: &mut Xdp = program.try_into().map_err(|error| io_error(&error))?;
        if self.program.is_none() {
            let info = program.load().and_then(|()| program.info());
            self.program = Some(info.map_err(|error| io_error(&error))?.id());
        }
        Ok(program)
    }

    fn pin(&self, index: u32) -> PathBuf {
        self.links.join(format!("{index}{PIN}"))
    }
}

fn attach(program: &mut Xdp, index: u32) -> io::Result<FdLink> {
    let attached = program.attach_to_if_index(index, XdpMode::Driver);
    let link = attached.and_then(|id| program.take_link(id));
    let link = link.map_err(|error| io_error(&error))?;
    FdLink::try_from(link).map_err(|error| io_error(&error))
}
