//! XDP prefilter: attaches the XDP program of uplinks by pinned links, in driver mode.
//!
//! A pinned link survives the agent; the next agent replaces the program in it. The program is
//! loaded when the first prefilter is attached, because most nodes have none. A foreign XDP program
//! in the same place is left alone: the kernel refuses ours.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use abi::maps::programs::XDP_GUARD;
use aya::Ebpf;
use aya::programs::links::FdLink;
use aya::programs::xdp::XdpMode;
use aya::programs::{ProgramType, Xdp};
use aya::sys::BpfHelper;
use model::IfName;
use nix::errno::Errno;
use steps::{AttachedPrefilter, NodeLink};

use crate::bpf::features;
use crate::bpf::pinned_link;
use crate::bpf::pins::Pins;
use crate::bpf::program_load::retry_interrupted;
use crate::error::io_error;
use crate::syscall::ProgramLink;

/// The prefilter's program and the directory of its pins. The id is known once the program is
/// loaded.
pub(crate) struct XdpPrefilters {
    links: PathBuf,
    program: Option<u32>,
}

impl XdpPrefilters {
    pub(crate) fn new(pins: &Pins) -> Self {
        Self {
            links: pins.links(),
            program: None,
        }
    }

    /// Attaches the prefilter to the link with this index, or replaces the program of the pinned
    /// link.
    pub(crate) fn attach(&mut self, object: &mut Ebpf, index: u32) -> io::Result<()> {
        let pin = self.pin(index);
        let program = self.loaded(object)?;
        let descriptor = program.fd().map_err(|error| io_error(&error))?;
        if pinned_link::replace(&pin, u64::from(index), descriptor.as_fd())? {
            return Ok(());
        }
        pinned_link::keep(attach_program(program, index)?, &pin)
    }

    /// Detaches the prefilter. A prefilter that is not attached is success.
    pub(crate) fn detach(&self, index: u32) -> io::Result<()> {
        pinned_link::remove(&self.pin(index))
    }

    /// Returns the prefilters of `links`. Only links whose index is in `pinned` are read.
    pub(crate) fn observe(
        &self,
        links: &BTreeMap<IfName, NodeLink>,
        pinned: &BTreeSet<u32>,
    ) -> io::Result<BTreeMap<IfName, AttachedPrefilter>> {
        let mut attached = BTreeMap::new();
        for (name, link) in links.iter().filter(|(_, it)| pinned.contains(&it.index)) {
            let Some(pinned) = ProgramLink::open(&self.pin(link.index))? else {
                continue;
            };
            let linked = pinned.linked()?;
            if linked.target == u64::from(link.index) {
                let is_current = Some(linked.program) == self.program;
                attached.insert(name.clone(), AttachedPrefilter { is_current });
            }
        }
        Ok(attached)
    }

    fn loaded<'a>(&mut self, object: &'a mut Ebpf) -> io::Result<&'a mut Xdp> {
        let program: &mut Xdp = object
            .program_mut(XDP_GUARD)
            .ok_or(Errno::ENOENT)?
            .try_into()
            .map_err(|error| io_error(&error))?;
        if self.program.is_none() {
            let load = BpfHelper::BPF_FUNC_xdp_load_bytes;
            features::helper(ProgramType::Xdp, load, "bpf_xdp_load_bytes")?;
            let info = retry_interrupted(|| program.load()).and_then(|()| program.info());
            self.program = Some(info.map_err(|error| io_error(&error))?.id());
        }
        Ok(program)
    }

    fn pin(&self, index: u32) -> PathBuf {
        self.links.join(format!("{index}-guard"))
    }
}

fn attach_program(program: &mut Xdp, index: u32) -> io::Result<FdLink> {
    let attached = program.attach_to_if_index(index, XdpMode::Driver);
    let link = attached
        .and_then(|id| program.take_link(id))
        .map_err(|error| io_error(&error))?;
    FdLink::try_from(link).map_err(|error| io_error(&error))
}
