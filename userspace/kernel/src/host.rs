//! The real kernel: everything that it takes to observe and to execute, opened once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use abi::Counters;
use planner::{Observed, Scope, SocketHook, Step};

use crate::error::{Attempt as _, OpenError};
use crate::features::Probed;
use crate::guards::Guards;
use crate::holders::Holders;
use crate::kept::Kept;
use crate::names::Names;
use crate::netlink::Netlink;
use crate::pins::Pins;
use crate::programs::{Programs, load, written};
use crate::sockets::Sockets;
use crate::tables::Tables;
use crate::{
    Feature, Kernel, Measured, ObserveError, StepError, counters, execute, heap, links, observe,
    raw,
};

/// What [`Host::open`] needs to know.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Directory for our pins; a BPF file system is mounted there if there is none.
    pub bpffs: PathBuf,
    /// File of the BPF object.
    pub object: PathBuf,
    /// Directory of the cgroup (version 2) that the node's processes are below, usually [`crate::cgroup_root`]. Without
    /// one they do not reach hostports.
    pub cgroup: Option<PathBuf>,
    /// How many entries the flow table is to have. One that an agent before us has left keeps its size, and its flows.
    pub flow_entries: u32,
}

/// The real kernel, as seen from the network and mount namespaces of the thread that opened it, which has to be the
/// thread that uses it. What it made stays when it is dropped: links, addresses, programs and tables; but not the sockets
/// that hold ports.
pub struct Host {
    pub(crate) netlink: Netlink,
    pub(crate) programs: Programs,
    pub(crate) guards: Guards,
    pub(crate) sockets: Sockets,
    pub(crate) tables: Tables,
    pub(crate) holders: Holders,
    /// How many entries the flow table has room for.
    pub(crate) flow_entries: u32,
    pub(crate) probed: Probed,
    /// Held for as long as the pins are used.
    _pins: Pins,
}

impl Host {
    /// Locks the pins, loads the programs, and adopts the tables that an agent before us has left.
    pub fn open(options: &HostOptions) -> Result<Self, OpenError> {
        let HostOptions {
            bpffs,
            object,
            cgroup,
            flow_entries,
        } = options;
        let object = std::fs::read(object)
            .attempt(|| format!("read the BPF object {}", object.display()))?;
        let mut netlink = Netlink::open().attempt(|| "open a netlink socket".to_owned())?;
        let pins = Pins::open(bpffs)?;
        crash::point_at("make-pins");
        pins.verify()?;
        let probed = Probed::ask();
        let flow_entries = pins.flow_entries()?.unwrap_or(*flow_entries);
        let written = written(&probed);
        let loaded = load(&object, &pins, &written, flow_entries)?;
        crash::point_at("pin-tables");
        pins.verify()?;
        let already = Kept::of(&pins, &object, &written);
        let mut programs = Programs::load(loaded, &pins, &already)?;
        let sockets = Sockets::load(programs.object(), &pins, cgroup.as_deref())?;
        let cookie = raw::netns_cookie().attempt(|| "tell the network namespace".to_owned())?;
        let names = Names::open().attempt(|| "open a socket for names".to_owned())?;
        let tables = Tables::take(programs.object(), cookie, names)?;
        crash::point_at("adopt-tables");
        let holders = Holders::new().attempt(|| "make room for sockets".to_owned())?;
        forget_gone_links(&mut netlink, &programs);
        drop(object);
        heap::give_back();
        Ok(Self {
            netlink,
            programs,
            guards: Guards::new(&pins),
            sockets,
            tables,
            holders,
            flow_entries,
            probed,
            _pins: pins,
        })
    }

    /// Programs that sockets of the node are not asked by, because this kernel or its cgroups cannot have them, and why.
    pub fn unavailable(&self) -> &BTreeMap<SocketHook, String> {
        self.sockets.unavailable()
    }

    /// What this kernel can do of what not every kernel can, and what is used where it cannot.
    pub fn features(&self) -> Vec<Feature> {
        self.probed.list(self.unavailable())
    }
}

impl Kernel for Host {
    fn observe(&mut self, scope: &Scope) -> Result<Observed, ObserveError> {
        Ok(observe::observe(self, scope)?)
    }

    fn execute(&mut self, step: &Step) -> Result<(), StepError> {
        tracing::trace!(?step, "execute");
        let _at = crash::step(step);
        Ok(execute::execute(self, step)?)
    }

    fn measure(&mut self) -> Result<Measured, ObserveError> {
        let measured = counters::measure(&self.tables);
        Ok(measured.attempt(|| "read the counters".to_owned())?)
    }

    fn sent(&mut self, slots: &BTreeSet<u32>) -> Result<BTreeMap<u32, Counters>, ObserveError> {
        if !self.probed.has_tcx() {
            return Ok(BTreeMap::new());
        }
        let sent = counters::sent(&self.tables, slots);
        Ok(sent.attempt(|| "read the counters".to_owned())?)
    }
}

/// Removes the pins of uplinks that are gone, of those as well that an agent was killed before it gave an entry. One that
/// cannot be removed does no harm: attaching replaces it.
fn forget_gone_links(netlink: &mut Netlink, programs: &Programs) {
    let forgotten = || {
        let all = links::all(netlink)?;
        for index in programs.pinned()? {
            if !all.iter().any(|(_, link)| link.index == index) {
                programs.detach_all(index)?;
            }
        }
        std::io::Result::Ok(())
    };
    let mut forgotten = forgotten;
    if let Err(error) = forgotten() {
        tracing::warn!(%error, "pins of uplinks that are gone stay behind");
    }
}

/// The machine's memory in bytes.
pub fn memory() -> std::io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = total
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .ok_or_else(|| std::io::Error::other("/proc/meminfo has no MemTotal"))?;
    Ok(kilobytes.saturating_mul(1024))
}

/// The kernel's boot id: another one after each reboot.
pub fn boot_id() -> std::io::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim_end().to_owned())
}
