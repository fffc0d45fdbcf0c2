//! Bandwidth limits in the datapath's tables.
//!
//! When a limit changes, its token bucket keeps its fill level: a pod that has used up its old
//! limit is held to the new one at once. How a limit is chosen is not known here.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use abi::{Bucket, Direction, Limit, Shaped, TICKS};
use model::ShapedSubnets;
use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};
use steps::{Entries, Entry, EntryKey, Shape};

use crate::bpf::entries::mismatch;
use crate::bpf::tables::{Tables, Wire, present, written, zeros};
use crate::bpf::{batch, shaped_subnets};
use crate::error::io_error;

/// `BPF_ANY`: add the entry or overwrite it.
const ANY: u64 = 0;
/// Directions in the order of a slot's rows.
pub(crate) const DIRECTIONS: [Direction; 2] = [Direction::Egress, Direction::Ingress];

/// Writes the limits of a slot, and its shaped subnets.
pub(crate) fn put(tables: &mut Tables, slot: u32, entry: &Entry) -> io::Result<()> {
    let Entry::Limit {
        ingress,
        egress,
        shaped_subnets,
        generation,
    } = entry
    else {
        return Err(mismatch());
    };
    let had_subnets = shaped_subnets::flags_of(tables, slot)? != 0;
    // Subnets are added before the limits whose flags make the datapath look them up.
    shaped_subnets::add(tables, slot, shaped_subnets, *generation)?;
    for (direction, shape) in DIRECTIONS.into_iter().zip([egress, ingress]) {
        let limit = match shape {
            Some(shape) => Limit {
                flags: shaped_subnets::flags(shaped_subnets),
                ..Limit::new(shape.rate, shape.burst, *generation)
            },
            // The generation is written even without a limit: the other direction may have one.
            None => Limit {
                generation: *generation,
                ..Limit::default()
            },
        };
        write(tables, row(slot, direction), limit)?;
    }
    // Removed last. A subnet that a previous pod left in the slot could be a longer match.
    if had_subnets || **shaped_subnets != ShapedSubnets::All {
        shaped_subnets::remove_others(tables, slot, shaped_subnets)?;
    }
    Ok(())
}

/// Removes the limits of a slot, and its shaped subnets.
pub(crate) fn remove(tables: &mut Tables, slot: u32) -> io::Result<()> {
    if row(slot, Direction::Ingress) >= tables.limits.len() {
        return Ok(());
    }
    let had_subnets = shaped_subnets::flags_of(tables, slot)? != 0;
    for direction in DIRECTIONS {
        write(tables, row(slot, direction), Limit::default())?;
    }
    if had_subnets {
        shaped_subnets::remove_others(tables, slot, &ShapedSubnets::All)?;
    }
    Ok(())
}

/// Returns the limits of all slots that have any.
pub(crate) fn all(tables: &Tables) -> io::Result<Entries> {
    let mut rows = batch::list(&tables.limits)?;
    rows.retain(|(_, limit)| limit.0.generation != 0);
    let rows: BTreeMap<u32, Limit> = rows
        .into_iter()
        .map(|(row, limit)| (row, limit.0))
        .collect();
    let slots: BTreeSet<u32> = rows.keys().map(|row| row / 2).collect();
    let flags = rows.values().fold(0, |flags, limit| flags | limit.flags);
    let listed = shaped_subnets::list_if_used(tables, flags)?;
    let of = |slot, direction| rows.get(&row(slot, direction)).copied().unwrap_or_default();
    let entry = |slot| {
        let (egress, ingress) = (of(slot, Direction::Egress), of(slot, Direction::Ingress));
        Some((
            EntryKey::Limit(slot),
            entry(slot, &egress, &ingress, &listed)?,
        ))
    };
    Ok(slots.into_iter().filter_map(entry).collect())
}

/// Returns the limits of a slot, if there are any.
pub(crate) fn find(tables: &Tables, slot: u32) -> io::Result<Option<Entry>> {
    let read = |direction| present(tables.limits.get(&row(slot, direction), ANY));
    let (egress, ingress) = (read(Direction::Egress)?, read(Direction::Ingress)?);
    let (Some(Wire(egress)), Some(Wire(ingress))) = (egress, ingress) else {
        return Ok(None);
    };
    let listed = shaped_subnets::list_if_used(tables, egress.flags | ingress.flags)?;
    Ok(entry(slot, &egress, &ingress, &listed))
}

fn entry(
    slot: u32,
    egress: &Limit,
    ingress: &Limit,
    listed: &shaped_subnets::PrefixesBySlot,
) -> Option<Entry> {
    let generation = egress.generation.max(ingress.generation);
    (generation != 0).then(|| Entry::Limit {
        ingress: shape(ingress),
        egress: shape(egress),
        shaped_subnets: Box::new(shaped_subnets::find(
            listed,
            slot,
            generation,
            egress.flags | ingress.flags,
        )),
        generation,
    })
}

fn shape(limit: &Limit) -> Option<Shape> {
    (limit.price != 0).then_some(Shape {
        rate: limit.rate,
        burst: limit.burst,
    })
}

fn write(tables: &mut Tables, row: u32, limit: Limit) -> io::Result<()> {
    let before = tables
        .limits
        .get(&row, ANY)
        .map_err(|error| io_error(&error))?
        .0;
    if before == limit {
        return Ok(());
    }
    if before.generation != limit.generation {
        // The counters belong to another pod.
        written(tables.shaped.set(row, zeros::<Shaped>()?, ANY))?;
    }
    let bucket = match before.price {
        // There was no limit, or another pod's: the bucket is full.
        0 => Bucket::default(),
        _ if before.generation != limit.generation => Bucket::default(),
        _ => {
            let bucket = tables.buckets.get(&row, ANY);
            rescaled(
                &bucket.map_err(|error| io_error(&error))?.0,
                &before,
                &limit,
            )?
        }
    };
    written(tables.limits.set(row, Wire(limit), ANY))?;
    written(tables.buckets.set(row, Wire(bucket), ANY))
}

/// Returns a bucket that is as full under the new limit as it was under the old one.
fn rescaled(bucket: &Bucket, before: &Limit, after: &Limit) -> io::Result<Bucket> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    let now = u64::try_from(now.num_nanoseconds())
        .unwrap_or(0)
        .saturating_mul(TICKS);
    let debt = bucket.paid_at.saturating_sub(now);
    Ok(Bucket {
        paid_at: now.saturating_add(scaled(debt, before.allowance, after.allowance)),
        ..Bucket::default()
    })
}

/// Scales `debt` from `before` to `after`; at most `after`.
fn scaled(debt: u64, before: u64, after: u64) -> u64 {
    let scaled = u128::from(debt.min(before)) * u128::from(after) / u128::from(before.max(1));
    u64::try_from(scaled).unwrap_or(after)
}

pub(crate) const fn row(slot: u32, direction: Direction) -> u32 {
    slot * 2 + direction as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_keeps_its_fill_level_when_the_limit_changes() {
        assert_eq!(scaled(0, 100, 400), 0);
        assert_eq!(scaled(50, 100, 400), 200);
        // A debt beyond the burst becomes a debt of the whole burst.
        assert_eq!(scaled(1_000, 100, 400), 400);
        assert_eq!(scaled(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(scaled(5, 0, 400), 0);
    }
}
