//! Reads the datapath's counters, summed over all CPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use abi::{Counters, Direction, DropCount, DropReason, Shaped};

use crate::bpf::map::{ANY, Layout, PerCpu, Wire, present};
use crate::bpf::tables::Tables;
use crate::bpf::tables::pods::row;
use crate::error::io_error;
use crate::{Measured, PodCounters};

/// Largest number of flow entries that is counted exactly; counting them takes 2 ms.
const COUNTED: u32 = 4_096;

/// Reads the counters of the slots in use, the drops and the number of flow entries.
pub(crate) fn measure(tables: &Tables) -> io::Result<Measured> {
    let mut measured = Measured::default();
    for entry in &tables.planned.interfaces.0 {
        let (_, interface) = entry.map_err(|error| io_error(&error))?;
        let slot = interface.0.pod;
        measured.pods.insert(slot, pod(tables, slot)?);
        measured.pod_drops.insert(slot, pod_drops(tables, slot)?);
    }
    measured.pod_drops.insert(0, pod_drops(tables, 0)?);
    for reason in DropReason::ALL {
        let total = sum(&tables.drops, reason as u32, |total: DropCount, one| {
            DropCount {
                packets: total.packets.wrapping_add(one.packets),
                bytes: total.bytes.wrapping_add(one.bytes),
            }
        })?;
        if total != DropCount::default() {
            measured.drops.insert(reason, total);
        }
    }
    measured.flow_entries = flow_entries(tables)?;
    Ok(measured)
}

/// Reads the drops of a slot by reason, without zeros.
fn pod_drops(tables: &Tables, slot: u32) -> io::Result<BTreeMap<DropReason, u64>> {
    let row = present(tables.planned.pods.drops.get(&Wire(slot), ANY))?;
    let drops = row.map(|row| row.0).unwrap_or_default();
    let by_reason = DropReason::ALL.into_iter().filter_map(|reason| {
        let count = drops.reasons.get(reason as usize)?;
        (count.packets != 0).then_some((reason, count.packets))
    });
    Ok(by_reason.collect())
}

/// Returns the number of flow entries: exact below [`COUNTED`], else the result of the last sweep.
fn flow_entries(tables: &Tables) -> io::Result<u32> {
    let counted = (0..COUNTED).zip(tables.flows.keys()).count();
    let counted = u32::try_from(counted).unwrap_or(u32::MAX);
    if counted < COUNTED {
        return Ok(counted);
    }
    let swept = tables.swept.get(&0, 0).map_err(|error| io_error(&error))?;
    Ok(counted.max(u32::try_from(swept.0.kept).unwrap_or(u32::MAX)))
}

/// Reads the egress counters of the pods in these slots.
pub(crate) fn sent(tables: &Tables, slots: &BTreeSet<u32>) -> io::Result<BTreeMap<u32, Counters>> {
    let of = |slot: &u32| Ok((*slot, of_pod(tables, *slot, Direction::Egress)?));
    slots.iter().map(of).collect()
}

fn of_pod(tables: &Tables, slot: u32, direction: Direction) -> io::Result<Counters> {
    sum(&tables.planned.pods.counters, row(slot, direction), add)
}

fn pod(tables: &Tables, slot: u32) -> io::Result<PodCounters> {
    let of = |direction| of_pod(tables, slot, direction);
    let shaped = |direction| {
        sum(
            &tables.planned.limits.shaped,
            row(slot, direction),
            add_shaped,
        )
    };
    Ok(PodCounters {
        egress: of(Direction::Egress)?,
        ingress: of(Direction::Ingress)?,
        shaped_egress: shaped(Direction::Egress)?,
        shaped_ingress: shaped(Direction::Ingress)?,
    })
}

fn add_shaped(total: Shaped, one: Shaped) -> Shaped {
    Shaped {
        passed_packets: total.passed_packets.wrapping_add(one.passed_packets),
        passed_bytes: total.passed_bytes.wrapping_add(one.passed_bytes),
        marked_packets: total.marked_packets.wrapping_add(one.marked_packets),
        marked_bytes: total.marked_bytes.wrapping_add(one.marked_bytes),
        delayed_packets: total.delayed_packets.wrapping_add(one.delayed_packets),
        spared_packets: total.spared_packets.wrapping_add(one.spared_packets),
        dropped_packets: total.dropped_packets.wrapping_add(one.dropped_packets),
        dropped_bytes: total.dropped_bytes.wrapping_add(one.dropped_bytes),
    }
}

fn add(total: Counters, one: Counters) -> Counters {
    Counters {
        packets: total.packets.wrapping_add(one.packets),
        bytes: total.bytes.wrapping_add(one.bytes),
        dropped_packets: total.dropped_packets.wrapping_add(one.dropped_packets),
        dropped_bytes: total.dropped_bytes.wrapping_add(one.dropped_bytes),
        new_flows: total.new_flows.wrapping_add(one.new_flows),
        evicted_flows: total.evicted_flows.wrapping_add(one.evicted_flows),
        reserved: [0; 2],
    }
}

fn sum<T: Layout + Default>(
    table: &PerCpu<T>,
    index: u32,
    add: impl Fn(T, T) -> T,
) -> io::Result<T> {
    let values = table.get(&index, ANY).map_err(|error| io_error(&error))?;
    Ok(values
        .iter()
        .fold(T::default(), |total, one| add(total, one.0)))
}
