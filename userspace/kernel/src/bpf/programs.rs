//! Loads the BPF object and attaches its programs to uplinks by pinned TCX links.
//!
//! A pinned link survives the agent; the next agent updates it in place, so that no packet passes
//! without a program.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};

use abi::maps::programs;
use aya::programs::links::FdLink;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{
    LinkOrder, Program, SchedClassifier, TcAttachType, TestRun as _, TestRunOptions,
};
use aya::{Ebpf, EbpfLoader};
use model::{DatapathLogLevel, IfName};
use nix::errno::Errno;
use steps::Hook;

use crate::bpf::datapath_log;
use crate::bpf::features::Probed;
use crate::bpf::pinned_link;
use crate::bpf::pins::Pins;
use crate::bpf::program_cache::{CachedPrograms, ProgramCache};
use crate::bpf::program_load::retry_interrupted;
use crate::bpf::program_names::name;
use crate::error::{Attempt as _, OpenError, io_error};
use crate::syscall::ProgramLink;

/// Classifier programs that the BPF object must contain.
const PROGRAMS: [&str; 6] = [
    programs::FROM_POD,
    programs::FROM_BUSY_POD,
    programs::TO_POD,
    programs::UPLINK_IN,
    programs::UPLINK_OUT,
    programs::SWEEP,
];

/// Length of `struct __sk_buff` up to the end of `hwtstamp`, and the offset of `ifindex` in it.
const CONTEXT: usize = 192;
const CONTEXT_LINK: usize = 40;

/// Constant of the object: the flag for `bpf_l4_csum_replace` on IPv6 packets.
const CHECKSUM_FLAG: &str = "CSUM_F_IPV6";
/// Constant of the object: whether [`Hook::UplinkOut`]'s program runs before foreign programs,
/// which it does as a TCX link.
const UPLINK_HANDOFF: &str = "UPLINK_HANDOFF";
/// Constant of the object: the flow cache entries of each CPU.
const CACHE_CAPACITY: &str = "CACHE_CAPACITY";
/// Constant of the object: nanoseconds of a jiffy.
const JIFFY: &str = "JIFFY";
/// Constant of the object: whether `bpf_redirect_peer` scrubs packets.
const REDIRECT_PEER_SCRUBS: &str = "REDIRECT_PEER_SCRUBS";

/// Constants of the object, with the values that the loader writes into them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoaderConstants {
    pub(crate) numbers: [(&'static str, u64); 7],
    /// Level of the datapath log.
    pub(crate) log: DatapathLogLevel,
}

/// Returns the constants for a kernel with these features, these capacities, and this level of the
/// datapath log.
pub(crate) fn constants(
    probed: &Probed,
    capacities: Capacities,
    log: DatapathLogLevel,
) -> LoaderConstants {
    let [set_retval, set_tstamp] = probed.helpers();
    let numbers = [
        (CACHE_CAPACITY, capacities.cache_of_cpu.into()),
        (CHECKSUM_FLAG, probed.checksum_flag()),
        (JIFFY, probed.jiffy()),
        (UPLINK_HANDOFF, probed.has_tcx().into()),
        (REDIRECT_PEER_SCRUBS, probed.peers_scrub().into()),
        set_retval,
        set_tstamp,
    ];
    LoaderConstants { numbers, log }
}

/// Capacities of tables that depend on the machine, in entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacities {
    /// Of the flow table.
    pub(crate) flows: u32,
    /// Of the flow cache of each CPU: a power of two.
    pub(crate) cache_of_cpu: u32,
    /// Number of CPUs that may come online.
    pub(crate) cpus: u32,
}

/// Loads the object's maps, and reuses pinned ones. New ones get these capacities.
pub(crate) fn load(
    object: &[u8],
    pins: &Pins,
    constants: &LoaderConstants,
    capacities: Capacities,
) -> Result<Ebpf, OpenError> {
    let level = constants.log.number();
    let mut loader = EbpfLoader::new();
    for (name, value) in &constants.numbers {
        loader.override_global(name, value, true);
    }
    loader.override_global(aya_log::LEVEL, &level, true);
    let cached = capacities.cache_of_cpu.saturating_mul(capacities.cpus);
    loader
        .map_max_entries(abi::maps::FLOWS.name, capacities.flows)
        .map_max_entries(abi::maps::TURNS.name, capacities.flows)
        .map_max_entries(abi::maps::PENDING.name, cached)
        .map_max_entries(CPUS, capacities.cpus)
        .map_max_entries(FLOW_CACHE, cached)
        .map_max_entries(CACHE_BUCKETS, cached / abi::maps::CACHE_WAYS)
        .map_max_entries(
            datapath_log::RING,
            datapath_log::ring_capacity(constants.log),
        );
    loader.btf(None).default_map_pin_directory(pins.maps());
    for map in abi::maps::ALL {
        loader.map_pin_path(map.name, pins.map(map.name));
    }
    loader.load(object).map_err(|error| OpenError::Load {
        what: "the BPF object's maps".to_owned(),
        source: error.into(),
    })
}

/// Names of the flow cache's maps. Only classifier programs use them, and they take most of the
/// memory.
const FLOW_CACHE: &str = "FLOW_CACHE";
const CACHE_BUCKETS: &str = "CACHE_BUCKETS";
/// Name of the map with an element for each CPU.
const CPUS: &str = "CPUS";

/// The loaded classifier programs, and the directory of their pinned links.
pub(crate) struct Programs {
    object: Ebpf,
    /// Programs from the program cache; empty where the programs are in the object.
    cached: CachedPrograms,
    links: PathBuf,
}

impl Programs {
    /// Takes the programs from the program cache, or verifies those of `object`. The maps of
    /// `object` must be loaded and must still be in it: the programs refer to them.
    pub(crate) fn load(
        mut object: Ebpf,
        pins: &Pins,
        cache: &ProgramCache<'_>,
    ) -> Result<Self, OpenError> {
        let cached = if let Some(cached) = cache.take(&PROGRAMS) {
            drop(object.take_map(FLOW_CACHE));
            drop(object.take_map(CACHE_BUCKETS));
            cached
        } else {
            verify(&mut object)?;
            if let Err(error) = cache.replace(&mut object, &PROGRAMS) {
                tracing::warn!(%error, "cannot pin the programs in the program cache: the next start verifies them again");
            }
            CachedPrograms::new()
        };
        Ok(Self {
            object,
            cached,
            links: pins.links(),
        })
    }

    /// Replaces the programs with those of `object`, from the program cache or verified now. The
    /// maps of `object` must be loaded and must still be in it. Programs of the old set run on
    /// where they are attached, until those of the new set are attached in their place.
    pub(crate) fn replace(
        &mut self,
        mut object: Ebpf,
        cache: &ProgramCache<'_>,
    ) -> Result<(), OpenError> {
        self.cached = if let Some(cached) = cache.take(&PROGRAMS) {
            cached
        } else {
            verify(&mut object)?;
            (cache.replace(&mut object, &PROGRAMS))
                .attempt(|| "pin the programs in the program cache".to_owned())?;
            let missing = OpenError::Missing {
                what: "program cache with program",
                name: programs::FROM_POD,
            };
            cache.take(&PROGRAMS).ok_or(missing)?
        };
        // The first object still has the cgroup programs and the XDP prefilter. Its programs and
        // maps of the old set would only keep their memory.
        for name in PROGRAMS {
            if let Some(Program::SchedClassifier(program)) = self.object.program_mut(name) {
                // One that was not loaded, because the cache had it.
                let _not_loaded = program.unload();
            }
        }
        for map in [FLOW_CACHE, CACHE_BUCKETS, datapath_log::RING] {
            drop(self.object.take_map(map));
        }
        Ok(())
    }

    /// Returns the object, for taking its maps out.
    pub(crate) fn object(&mut self) -> &mut Ebpf {
        &mut self.object
    }

    fn program(&mut self, name: &str) -> io::Result<&mut SchedClassifier> {
        if let Some(program) = self.cached.get_mut(name) {
            return Ok(program);
        }
        let program = self.object.program_mut(name).ok_or(Errno::ENOENT)?;
        program.try_into().map_err(|error| io_error(&error))
    }

    /// Returns the file descriptor of a hook's program.
    pub(crate) fn descriptor(&mut self, hook: Hook) -> io::Result<RawFd> {
        let program = self.program(name(hook))?;
        let descriptor = program.fd().map_err(|error| io_error(&error))?;
        Ok(descriptor.as_fd().as_raw_fd())
    }

    /// Returns the id of a hook's program.
    pub(crate) fn id(&mut self, hook: Hook) -> io::Result<u32> {
        let info = self.program(name(hook))?.info();
        Ok(info.map_err(|error| io_error(&error))?.id())
    }

    /// Returns the ids of all hooks' programs.
    pub(crate) fn ids(&mut self) -> io::Result<BTreeMap<Hook, u32>> {
        Hook::ALL
            .into_iter()
            .map(|hook| Ok((hook, self.id(hook)?)))
            .collect()
    }

    /// Runs the sweep program, which removes expired flows.
    pub(crate) fn sweep(&mut self) -> io::Result<()> {
        // `BPF_PROG_TEST_RUN` requires a frame with an Ethernet header; the program does not read
        // it.
        let frame = [0; 64];
        let mut options = TestRunOptions::new();
        options.data_in = Some(&frame);
        let program = self.program(programs::SWEEP)?;
        let run = program.test_run(options);
        run.map(|_| ()).map_err(|error| io_error(&error))
    }

    /// Runs a hook's program on a frame as if it passed the hook of the link with this index. The
    /// frame goes nowhere.
    pub(crate) fn run(&mut self, hook: Hook, index: u32, frame: &[u8]) -> io::Result<()> {
        let mut context = [0; CONTEXT];
        context[CONTEXT_LINK..][..size_of::<u32>()].copy_from_slice(&index.to_ne_bytes());
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        options.ctx_in = Some(&context);
        let run = self.program(name(hook))?.test_run(options);
        run.map(|_| ()).map_err(|error| io_error(&error))
    }

    /// Attaches a hook's program to an uplink by a pinned TCX link, or updates the pinned link.
    /// Returns whether the link is new.
    pub(crate) fn attach(&mut self, link: &IfName, index: u32, hook: Hook) -> io::Result<bool> {
        let pin = self.pin(index, hook);
        let program = self.program(name(hook))?;
        let descriptor = program.fd().map_err(|error| io_error(&error))?;
        if pinned_link::replace(&pin, index.into(), descriptor.as_fd())? {
            return Ok(false);
        }
        let order = TcAttachOptions::TcxOrder(order(hook));
        let attached = program
            .attach_with_options(link.as_str(), side(hook), order)
            .and_then(|id| program.take_link(id))
            .map_err(|error| io_error(&error))?;
        let attached = FdLink::try_from(attached).map_err(|error| io_error(&error))?;
        pinned_link::keep(attached, &pin)?;
        Ok(true)
    }

    /// Detaches a hook's program from an uplink. A program that is not attached is success.
    pub(crate) fn detach(&self, index: u32, hook: Hook) -> io::Result<()> {
        pinned_link::remove(&self.pin(index, hook))
    }

    /// Detaches all programs of a link and removes their pins, including the XDP prefilter's.
    pub(crate) fn detach_all(&self, index: u32) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.links)? {
            let entry = entry?;
            if index_of(&entry.file_name()) == Some(index) {
                pinned_link::remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Returns the programs that pinned TCX links attach to a link, with their ids.
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

    /// Returns the indexes of the links that have pins.
    pub(crate) fn pinned(&self) -> io::Result<BTreeSet<u32>> {
        let mut indexes = BTreeSet::new();
        for entry in std::fs::read_dir(&self.links)? {
            indexes.extend(index_of(&entry?.file_name()));
        }
        Ok(indexes)
    }

    /// Returns the directory of the pinned links.
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

/// Loads the programs into the kernel, which verifies them.
fn verify(object: &mut Ebpf) -> Result<(), OpenError> {
    for name in PROGRAMS {
        let missing = OpenError::Missing {
            what: "program",
            name,
        };
        let program = object.program_mut(name).ok_or(missing)?;
        let loaded = <&mut SchedClassifier>::try_from(program)
            .and_then(|program| retry_interrupted(|| program.load()));
        loaded.map_err(|error| OpenError::Load {
            what: format!("BPF program {name}"),
            source: error.into(),
        })?;
    }
    Ok(())
}

/// Returns the position among foreign TCX programs: after them on ingress, before them on egress,
/// so that they see packets as they are on the wire (decision 69).
fn order(hook: Hook) -> LinkOrder {
    match hook {
        Hook::UplinkOut => LinkOrder::first(),
        Hook::FromPod | Hook::FromBusyPod | Hook::ToPod | Hook::UplinkIn => LinkOrder::default(),
    }
}

/// Returns the interface index in the name of a pin.
fn index_of(pin: &OsStr) -> Option<u32> {
    let (index, _) = pin.to_str()?.split_once('-')?;
    index.parse().ok()
}

/// As [`index_of`], for pins of [`Hook::UplinkIn`]'s program only.
pub(crate) fn ingress_index(pin: &OsStr) -> Option<u32> {
    let is_ingress = pin.to_str()?.ends_with("-in");
    index_of(pin).filter(|_| is_ingress)
}

fn side(hook: Hook) -> TcAttachType {
    match hook {
        Hook::FromPod | Hook::FromBusyPod | Hook::UplinkIn => TcAttachType::Ingress,
        Hook::ToPod | Hook::UplinkOut => TcAttachType::Egress,
    }
}
