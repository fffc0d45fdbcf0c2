//! The BPF object in the kernel: loading it, and attaching its programs to uplinks by pinned TCX links.
//!
//! A pinned link survives the agent; the next agent updates it in place, so that no packet passes without a program.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};

use abi::maps::programs;
use aya::programs::links::FdLink;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use aya::programs::{TestRun as _, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use model::IfName;
use nix::errno::Errno;
use planner::Hook;

use crate::error::{OpenError, io_error};
use crate::features::Probed;
use crate::kept::{self, Kept};
use crate::pinned;
use crate::pins::{MAPS, Pins};
use crate::raw::ProgramLink;

/// All programs that an object must have.
const PROGRAMS: [&str; 6] = [
    programs::FROM_POD,
    programs::FROM_BUSY_POD,
    programs::TO_POD,
    programs::UPLINK_IN,
    programs::UPLINK_OUT,
    programs::SWEEP,
];

/// Name of a hook's program in the object.
pub(crate) fn name(hook: Hook) -> &'static str {
    match hook {
        Hook::FromPod => programs::FROM_POD,
        Hook::FromBusyPod => programs::FROM_BUSY_POD,
        Hook::ToPod => programs::TO_POD,
        Hook::UplinkIn => programs::UPLINK_IN,
        Hook::UplinkOut => programs::UPLINK_OUT,
    }
}

/// The constant of the object that says what the checksum helper is told of IPv6.
const CHECKSUM_FLAG: &str = "CSUM_F_IPV6";
/// The one that says whether [`Hook::UplinkOut`]'s program comes before those of others: as a TCX link it does.
const HANDS_OVER: &str = "HANDS_OVER";
/// The one that says whether the kernel makes what is handed to a pod the pod's own.
const PEERS_SCRUB: &str = "PEERS_SCRUB";

/// Constants of the object with what is written into them.
pub(crate) type Written = [(&'static str, u64); 3];

/// What is written for a kernel that can do what was probed.
pub(crate) fn written(probed: &Probed) -> Written {
    [
        (CHECKSUM_FLAG, probed.checksum_flag()),
        (HANDS_OVER, probed.has_tcx().into()),
        (PEERS_SCRUB, probed.peers_scrub().into()),
    ]
}

/// Loads the object's maps, reusing the pinned ones; the flow table with room for this many entries.
pub(crate) fn load(
    object: &[u8],
    pins: &Pins,
    written: &Written,
    flow_entries: u32,
) -> Result<Ebpf, OpenError> {
    let mut loader = EbpfLoader::new();
    for (name, value) in written {
        loader.override_global(name, value, true);
    }
    loader
        .map_max_entries(abi::maps::FLOWS, flow_entries)
        .map_max_entries(abi::maps::TURNS, flow_entries);
    loader.btf(None).default_map_pin_directory(pins.maps());
    for map in &MAPS {
        loader.map_pin_path(map.name, pins.map(map.name));
    }
    loader.load(object).map_err(|error| OpenError::Load {
        what: "the BPF object's maps".to_owned(),
        source: error.into(),
    })
}

/// The map of the object that only programs of traffic control use, and that takes most room.
const SHORTCUTS: &str = "SHORTCUTS";

/// The loaded programs.
pub(crate) struct Programs {
    object: Ebpf,
    /// Those that were verified before; else they are in the object.
    kept: kept::Programs,
    links: PathBuf,
}

impl Programs {
    /// Takes the programs that are kept, or loads those of an object whose maps are loaded (and not taken out of it yet:
    /// the programs need them).
    pub(crate) fn load(
        mut object: Ebpf,
        pins: &Pins,
        already: &Kept<'_>,
    ) -> Result<Self, OpenError> {
        let kept = if let Some(kept) = already.take(&PROGRAMS) {
            drop(object.take_map(SHORTCUTS));
            kept
        } else {
            verify(&mut object)?;
            if let Err(error) = already.replace(&mut object, &PROGRAMS) {
                tracing::warn!(%error, "the next start will have to verify the programs again");
            }
            kept::Programs::new()
        };
        Ok(Self {
            object,
            kept,
            links: pins.links(),
        })
    }

    /// The object, for taking its maps out.
    pub(crate) fn object(&mut self) -> &mut Ebpf {
        &mut self.object
    }

    fn program(&mut self, name: &str) -> io::Result<&mut SchedClassifier> {
        if let Some(program) = self.kept.get_mut(name) {
            return Ok(program);
        }
        let program = self.object.program_mut(name).ok_or(Errno::ENOENT)?;
        program.try_into().map_err(|error| io_error(&error))
    }

    /// The descriptor of a hook's program.
    pub(crate) fn descriptor(&mut self, hook: Hook) -> io::Result<RawFd> {
        let program = self.program(name(hook))?;
        let descriptor = program.fd().map_err(|error| io_error(&error))?;
        Ok(descriptor.as_fd().as_raw_fd())
    }

    /// The id of a hook's program.
    pub(crate) fn id(&mut self, hook: Hook) -> io::Result<u32> {
        let info = self.program(name(hook))?.info();
        Ok(info.map_err(|error| io_error(&error))?.id())
    }

    /// The ids of all hooks' programs.
    pub(crate) fn ids(&mut self) -> io::Result<BTreeMap<Hook, u32>> {
        Hook::ALL
            .into_iter()
            .map(|hook| Ok((hook, self.id(hook)?)))
            .collect()
    }

    /// Runs the program that forgets flows.
    pub(crate) fn sweep(&mut self) -> io::Result<()> {
        // The kernel wants a frame with an Ethernet header at least; the program does not look at it.
        let frame = [0; 64];
        let mut options = TestRunOptions::new();
        options.data_in = Some(&frame);
        let program = self.program(programs::SWEEP)?;
        let run = program.test_run(options);
        run.map(|_| ()).map_err(|error| io_error(&error))
    }

    /// Attaches a hook's program to an uplink by a pinned TCX link, or updates the link that is pinned. Tells whether
    /// the link is new.
    pub(crate) fn attach(&mut self, link: &IfName, index: u32, hook: Hook) -> io::Result<bool> {
        let pin = self.pin(index, hook);
        let program = self.program(name(hook))?;
        let descriptor = program.fd().map_err(|error| io_error(&error))?;
        if pinned::replace(&pin, index.into(), descriptor.as_fd())? {
            return Ok(false);
        }
        let order = TcAttachOptions::TcxOrder(order(hook));
        let attached = program
            .attach_with_options(link.as_str(), side(hook), order)
            .and_then(|id| program.take_link(id))
            .map_err(|error| io_error(&error))?;
        let attached = FdLink::try_from(attached).map_err(|error| io_error(&error))?;
        pinned::keep(attached, &pin)?;
        Ok(true)
    }

    /// Detaches a hook's program from an uplink; that it is not attached is success.
    pub(crate) fn detach(&self, index: u32, hook: Hook) -> io::Result<()> {
        pinned::remove(&self.pin(index, hook))
    }

    /// Removes all pins of a link, those of its guard as well.
    pub(crate) fn detach_all(&self, index: u32) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.links)? {
            let entry = entry?;
            if index_of(&entry.file_name()) == Some(index) {
                pinned::remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Which programs are attached to a link by pinned TCX links, and their ids.
    pub(crate) fn attached(&self, link: &IfName, index: u32) -> io::Result<BTreeMap<Hook, u32>> {
        let mut hooks = BTreeMap::new();
        for hook in [Hook::UplinkIn, Hook::UplinkOut] {
            let Some(pinned) = ProgramLink::open(&self.pin(index, hook))? else {
                continue;
            };
            let program = pinned.linked()?.program;
            let query = SchedClassifier::query_tcx(link.as_str(), side(hook));
            // A kernel without TCX, or a link that has just gone, has none.
            let attached = query.map(|(_, programs)| programs).unwrap_or_default();
            if attached.iter().any(|info| info.id() == program) {
                hooks.insert(hook, program);
            }
        }
        Ok(hooks)
    }

    /// Indexes of the links that have pins.
    pub(crate) fn pinned(&self) -> io::Result<BTreeSet<u32>> {
        let mut indexes = BTreeSet::new();
        for entry in std::fs::read_dir(&self.links)? {
            indexes.extend(index_of(&entry?.file_name()));
        }
        Ok(indexes)
    }

    /// Directory of the pinned links.
    pub(crate) fn links(&self) -> &Path {
        &self.links
    }

    fn pin(&self, index: u32, hook: Hook) -> PathBuf {
        let side = match hook {
            Hook::FromPod | Hook::FromBusyPod | Hook::UplinkIn => "in",
            Hook::ToPod | Hook::UplinkOut => "out",
        };
        self.links.join(format!("{index}-{side}"))
    }
}

/// Has the kernel verify the programs.
fn verify(object: &mut Ebpf) -> Result<(), OpenError> {
    for name in PROGRAMS {
        let missing = OpenError::Missing {
            what: "program",
            name,
        };
        let program = object.program_mut(name).ok_or(missing)?;
        let loaded = <&mut SchedClassifier>::try_from(program).and_then(SchedClassifier::load);
        loaded.map_err(|error| OpenError::Load {
            what: format!("BPF program {name}"),
            source: error.into(),
        })?;
    }
    Ok(())
}

/// Where among programs of others. What comes in, all of them see as it came; what leaves, all see as it leaves
/// (decision 69).
fn order(hook: Hook) -> LinkOrder {
    match hook {
        Hook::UplinkOut => LinkOrder::first(),
        Hook::FromPod | Hook::FromBusyPod | Hook::ToPod | Hook::UplinkIn => LinkOrder::default(),
    }
}

/// The index of the link that a pin is of.
fn index_of(pin: &OsStr) -> Option<u32> {
    let (index, _) = pin.to_str()?.split_once('-')?;
    index.parse().ok()
}

/// As [`index_of`], of a pin of [`Hook::UplinkIn`]'s program.
pub(crate) fn way_in(pin: &OsStr) -> Option<u32> {
    let is_way_in = pin.to_str()?.ends_with("-in");
    index_of(pin).filter(|_| is_way_in)
}

fn side(hook: Hook) -> TcAttachType {
    match hook {
        Hook::FromPod | Hook::FromBusyPod | Hook::UplinkIn => TcAttachType::Ingress,
        Hook::ToPod | Hook::UplinkOut => TcAttachType::Egress,
    }
}
