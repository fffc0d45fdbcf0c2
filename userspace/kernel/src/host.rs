//! The real kernel: sockets, maps and programs, opened once.

use std::collections::BTreeMap;
use std::path::PathBuf;

use model::{DatapathLogLevel, Mac};
use steps::{Hook, SocketHook};

use crate::Feature;
use crate::bpf::bpf_object::BpfObject;
use crate::bpf::cgroup::{NodeCgroup, Sockets};
use crate::bpf::datapath_log::DatapathLog;
use crate::bpf::features::{self, Probed};
use crate::bpf::pins::Pins;
use crate::bpf::programs::{Capacities, Programs};
use crate::bpf::tables::Tables;
use crate::bpf::xdp_prefilter::XdpPrefilters;
use crate::error::{Attempt as _, OpenError};
use crate::firewall::forwarding::{FilterTables, PathReader};
use crate::firewall::hostport_table::Netfilter;
use crate::netlink::ifindex::Names;
use crate::netlink::links;
use crate::netlink::socket::Netlink;
use crate::node_checks::neighbour_overflows::NeighbourOverflows;
use crate::ports::reservations::PortReservationSockets;
use crate::process::memory;

/// Options of [`Host::open`].
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Directory of the pins; a BPF file system is mounted there if there is none.
    pub bpffs: PathBuf,
    /// Path of the BPF object.
    pub object: PathBuf,
    /// Directory of the cgroup (version 2) of the node's processes, usually [`crate::cgroup_root`].
    /// Without one, these processes do not reach hostports.
    pub cgroup: Option<NodeCgroup>,
    /// Entries of a new flow table. A pinned table of a previous agent keeps its size, and its
    /// flows.
    pub flow_entries: u32,
    /// Flow cache entries of each CPU, a power of two, where no agent has pinned counters for
    /// others.
    pub cache_entries: u32,
    /// Level of the datapath log.
    pub datapath_log: DatapathLogLevel,
}

/// The real kernel, in the network and mount namespaces of the thread that opened it. It must be
/// used by that thread only. Links, addresses, programs and tables stay when it is dropped; the
/// sockets that reserve ports do not.
pub struct Host {
    pub(crate) netlink: Netlink,
    object: BpfObject,
    pub(crate) programs: Programs,
    /// The datapath log of `programs`.
    pub(crate) datapath_log: DatapathLog,
    pub(crate) prefilters: XdpPrefilters,
    pub(crate) sockets: Sockets,
    pub(crate) tables: Tables,
    pub(crate) reservations: PortReservationSockets,
    pub(crate) netfilter: Netfilter,
    pub(crate) neighbours: NeighbourOverflows,
    /// Capacity of the flow table, in entries.
    pub(crate) flow_entries: u32,
    pub(crate) probed: Probed,
    pub(crate) filters: FilterTables,
    pub(crate) path_rules: PathReader,
    /// Ethernet addresses that were set, by interface index.
    pub(crate) set_macs: BTreeMap<u32, Mac>,
    /// Holds the lock of the pins.
    pub(crate) pins: Pins,
}

impl Host {
    /// Locks the pins, loads the programs, and adopts the tables of a previous agent.
    pub fn open(options: &HostOptions) -> Result<Self, OpenError> {
        let HostOptions {
            bpffs,
            object,
            cgroup,
            flow_entries,
            cache_entries,
            datapath_log,
        } = options;
        features::required()?;
        let bytes = BpfObject::read(object)?;
        let mut netlink = Netlink::open().attempt(|| "open a netlink socket".to_owned())?;
        let mut pins = Pins::open(bpffs)?;
        crash::point_at("make-pins");
        pins.verify()?;
        // Probes come before the programs are loaded: the loader writes their results into the
        // object.
        let probed = Probed::probe();
        let flow_entries = pins.flow_entries()?.unwrap_or(*flow_entries);
        let cpus = possible_cpus().attempt(|| "count the CPUs".to_owned())?;
        let pinned = pins.capacity(abi::maps::PENDING.name)?;
        let capacities = Capacities {
            flows: flow_entries,
            cache_of_cpu: pinned.map_or(*cache_entries, |counters| counters / cpus),
            cpus,
        };
        let object = BpfObject::new(object, &bytes, capacities);
        let (mut programs, datapath_log) =
            load_or_without_log(&object, &bytes, (&pins, &probed), *datapath_log)?;
        let sockets = Sockets::load(programs.object(), &pins, cgroup.as_ref())?;
        let names = Names::open().attempt(|| "open a socket for interface names".to_owned())?;
        let mut tables = Tables::take(programs.object(), names)?;
        (pins.copy_older_flows(&mut tables))
            .attempt(|| "copy the flows of an older version".to_owned())?;
        crash::point_at("adopt-tables");
        let reservations =
            PortReservationSockets::new().attempt(|| "raise the limit of open files".to_owned())?;
        // Under the lock of the pins: no other agent attaches programs meanwhile.
        remove_stale_pins(&mut netlink, &programs);
        drop(bytes);
        memory::release_free_memory();
        Ok(Self {
            netlink,
            object,
            programs,
            datapath_log,
            prefilters: XdpPrefilters::new(&pins),
            sockets,
            tables,
            reservations,
            netfilter: Netfilter::new(),
            neighbours: NeighbourOverflows::default(),
            flow_entries,
            probed,
            filters: FilterTables::default(),
            path_rules: PathReader::default(),
            set_macs: BTreeMap::new(),
            pins,
        })
    }

    /// Loads the programs with another level of the datapath log. They are not attached: programs
    /// of the old level run on where they are, and count as outdated.
    pub(crate) fn load_with_log(&mut self, level: DatapathLogLevel) -> Result<(), OpenError> {
        let kernel = (&self.pins, &self.probed);
        (self.object).load_again(&mut self.programs, kernel, level)?;
        self.datapath_log = log_of(&mut self.programs, level)?;
        memory::release_free_memory();
        Ok(())
    }

    /// Returns the cgroup programs that this kernel or its cgroup cannot have, and why.
    pub fn unavailable(&self) -> &BTreeMap<SocketHook, String> {
        self.sockets.unavailable()
    }

    /// Returns the optional kernel features, and what is used where one is missing.
    pub fn features(&self) -> Vec<Feature> {
        self.probed.list(self.unavailable())
    }
}

/// Loads the programs with this level of the datapath log; without one if the kernel rejects them,
/// since an agent that does not start would be worse than one without a log.
fn load_or_without_log(
    object: &BpfObject,
    bytes: &[u8],
    kernel: (&Pins, &Probed),
    level: DatapathLogLevel,
) -> Result<(Programs, DatapathLog), OpenError> {
    let (mut programs, level) = match object.load(bytes, kernel, level) {
        Err(error @ OpenError::Load { .. }) if level != DatapathLogLevel::Off => {
            tracing::warn!(%level, %error, "cannot load the programs with the datapath log: it is off");
            let off = DatapathLogLevel::Off;
            (object.load(bytes, kernel, off)?, off)
        }
        loaded => (loaded?, level),
    };
    let log = log_of(&mut programs, level)?;
    Ok((programs, log))
}

fn log_of(programs: &mut Programs, level: DatapathLogLevel) -> Result<DatapathLog, OpenError> {
    let program = programs
        .id(Hook::UplinkIn)
        .attempt(|| "read the ids of our programs".to_owned())?;
    Ok(DatapathLog { level, program })
}

/// Removes the pins of uplinks that are gone, including those of an agent that was killed before it
/// wrote their table entry. A pin that cannot be removed does no harm: attaching replaces it.
fn remove_stale_pins(netlink: &mut Netlink, programs: &Programs) {
    let removed = || {
        let all = links::all(netlink)?;
        for index in programs.pinned()? {
            if !all.iter().any(|(_, link)| link.index == index) {
                programs.detach_all(index)?;
            }
        }
        std::io::Result::Ok(())
    };
    let mut removed = removed;
    if let Err(error) = removed() {
        tracing::warn!(%error, "cannot remove the pins of deleted uplinks: they stay until their index is used again");
    }
}

/// Returns the machine's memory in bytes (`MemTotal` of `/proc/meminfo`).
pub fn memory() -> std::io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = total
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .ok_or_else(|| std::io::Error::other("/proc/meminfo has no MemTotal"))?;
    Ok(kilobytes.saturating_mul(1024))
}

/// Returns the number of CPUs that may come online while the kernel runs.
pub fn possible_cpus() -> std::io::Result<u32> {
    let cpus = aya::util::nr_cpus().map_err(|(_, error)| error)?;
    u32::try_from(cpus).map_err(std::io::Error::other)
}

/// Returns the kernel's boot id, which changes with each reboot.
pub fn boot_id() -> std::io::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim_end().to_owned())
}
