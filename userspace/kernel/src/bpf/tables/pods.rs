//! The pod table, and the counters of its slots.

use std::io;

use abi::maps;
use abi::{Counters, Direction, Pod, PodDrops};
use aya::Ebpf;
use steps::{Entries, Entry, EntryKey, LinkRef};

use crate::bpf::map::{ANY, Hash, List, PerCpu, Wire, present, removed, take, written, zeros};
use crate::bpf::table::{Table, mismatch};
use crate::bpf::{batch, encoding};
use crate::error::{OpenError, io_error};
use crate::netlink::ifindex::Names;

/// The pod table. A slot that gets another pod starts with counters of zero.
pub(crate) struct Pods {
    rows: List<Pod>,
    pub(crate) counters: PerCpu<Counters>,
    pub(crate) drops: Hash<u32, PodDrops>,
}

impl Table for Pods {
    fn take(object: &mut Ebpf) -> Result<Self, OpenError> {
        Ok(Self {
            rows: take(object, &maps::PODS)?,
            counters: take(object, &maps::COUNTERS)?,
            drops: take(object, &maps::POD_DROPS)?,
        })
    }

    fn put(&mut self, names: &Names, key: &EntryKey, entry: &Entry) -> io::Result<()> {
        let EntryKey::Pod(slot @ 1..) = key else {
            return Err(mismatch());
        };
        let pod = pod(names, entry)?;
        self.start_counters(*slot, &pod)?;
        written(self.rows.set(*slot, Wire(pod), ANY))
    }

    fn remove(&mut self, _: &Names, key: &EntryKey) -> io::Result<()> {
        let EntryKey::Pod(slot) = key else {
            return Err(mismatch());
        };
        if *slot >= self.rows.len() {
            return Ok(());
        }
        written(self.rows.set(*slot, Wire(Pod::default()), ANY))
    }

    fn find(&self, names: &Names, key: &EntryKey) -> io::Result<Option<Entry>> {
        let EntryKey::Pod(slot) = key else {
            return Err(mismatch());
        };
        let row = present(self.rows.get(slot, ANY))?;
        Ok(row.and_then(|row| entry(&row.0, &|index| names.named(index))))
    }

    /// Reads the rows that are or were in use.
    fn list(&self, link: &dyn Fn(u32) -> LinkRef) -> io::Result<Entries> {
        let rows = batch::list(&self.rows)?.into_iter();
        Ok(rows
            .filter(|(slot, _)| *slot != 0)
            .filter_map(|(slot, row)| Some((EntryKey::Pod(slot), entry(&row.0, link)?)))
            .collect())
    }
}

impl Pods {
    /// Sets the counters of a slot to zero, if `pod`, which is about to be written, is another one
    /// than before. A free slot has no drop counters.
    fn start_counters(&mut self, slot: u32, pod: &Pod) -> io::Result<()> {
        let before = (self.rows.get(&slot, ANY)).map_err(|error| io_error(&error))?;
        if before.0.generation == pod.generation && pod.interface != 0 {
            return Ok(());
        }
        for direction in [Direction::Egress, Direction::Ingress] {
            let zeros = zeros::<Counters>()?;
            written(self.counters.set(row(slot, direction), zeros, ANY))?;
        }
        removed(self.drops.remove(&Wire(slot)))
    }
}

/// Returns the index of a slot and direction in the counters and limits.
pub(crate) const fn row(slot: u32, direction: Direction) -> u32 {
    slot * 2 + direction as u32
}

fn pod(names: &Names, entry: &Entry) -> io::Result<Pod> {
    if let Entry::FreePod { generation } = entry {
        return Ok(Pod {
            generation: *generation,
            ..Pod::default()
        });
    }
    let Entry::Pod {
        v4,
        v6,
        mac,
        link,
        bridge,
        generation,
        masquerade,
        trusted,
        bypass,
        isolated,
        ingress,
        access,
        routed,
    } = entry
    else {
        return Err(mismatch());
    };
    Ok(Pod {
        v4: encoding::address_or_any(*v4),
        v6: encoding::address_or_any(*v6),
        mac: encoding::mac(*mac),
        interface: names.index_of(link)?,
        generation: *generation,
        flags: encoding::masquerade_flags(*masquerade)
            | encoding::spoof_check(*trusted)
            | encoding::bypass(*bypass)
            | encoding::isolated(*isolated)
            | encoding::ingress(*ingress)
            | encoding::access(*access)
            | encoding::routed_flags(*routed),
        network: names.index_of(bridge)?,
        ..Pod::default()
    })
}

/// Returns the entry of a row; `None` for a row that was never used.
fn entry(row: &Pod, link: &dyn Fn(u32) -> LinkRef) -> Option<Entry> {
    if row.interface == 0 {
        let generation = row.generation;
        return (generation != 0).then_some(Entry::FreePod { generation });
    }
    Some(Entry::Pod {
        v4: encoding::ip_or_none(row.v4),
        v6: encoding::ip_or_none(row.v6),
        mac: encoding::model_mac(row.mac),
        link: link(row.interface),
        bridge: link(row.network),
        generation: row.generation,
        masquerade: encoding::masqueraded(row.flags),
        trusted: encoding::is_trusted(row.flags),
        bypass: encoding::may_bypass(row.flags),
        isolated: encoding::is_isolated(row.flags),
        ingress: encoding::ingress_policy(row.flags),
        access: encoding::network_access(row.flags),
        routed: encoding::routed(row.flags),
    })
}
