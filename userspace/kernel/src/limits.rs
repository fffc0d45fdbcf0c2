//! Limits of pods in the datapath's tables. A limit that changes finds its bucket as full as it was: a pod that
//! is at its limit is at the new one at once. Knows nothing of how a limit is chosen.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use abi::{Bucket, Direction, Limit, Shaped, TICKS};
use model::Peers;
use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};
use planner::{Entries, Entry, EntryKey, Shape};

use crate::entries::mismatch;
use crate::error::io_error;
use crate::tables::{Tables, Wire, present, written};
use crate::{batch, peers};

const ANY: u64 = 0;
/// In the order of the rows of a slot.
pub(crate) const DIRECTIONS: [Direction; 2] = [Direction::Egress, Direction::Ingress];

/// Writes the limits of a slot.
pub(crate) fn put(tables: &mut Tables, slot: u32, entry: &Entry) -> io::Result<()> {
    let Entry::Limit {
        ingress,
        egress,
        peers,
        generation,
    } = entry
    else {
        return Err(mismatch());
    };
    let had_peers = peers::flags_of(tables, slot)? != 0;
    // Before the limits, which ask for them from then on.
    peers::add(tables, slot, peers, *generation)?;
    for (direction, shape) in DIRECTIONS.into_iter().zip([egress, ingress]) {
        let limit = match shape {
            Some(shape) => Limit {
                flags: peers::flags(peers),
                ..Limit::new(shape.rate, shape.burst, *generation)
            },
            // Remembers whose it is: the other direction may be limited.
            None => Limit {
                generation: *generation,
                ..Limit::default()
            },
        };
        write(tables, row(slot, direction), limit)?;
    }
    // What is left of another pod in the slot would be a longer match.
    if had_peers || **peers != Peers::All {
        peers::remove_others(tables, slot, peers)?;
    }
    Ok(())
}

/// Limits nothing any more.
pub(crate) fn remove(tables: &mut Tables, slot: u32) -> io::Result<()> {
    if row(slot, Direction::Ingress) >= tables.limits.len() {
        return Ok(());
    }
    let had_peers = peers::flags_of(tables, slot)? != 0;
    for direction in DIRECTIONS {
        write(tables, row(slot, direction), Limit::default())?;
    }
    if had_peers {
        peers::remove_others(tables, slot, &Peers::All)?;
    }
    Ok(())
}

/// The limits of all slots that have any.
pub(crate) fn all(tables: &Tables) -> io::Result<Entries> {
    let mut rows = batch::list(&tables.limits)?;
    rows.retain(|(_, limit)| limit.0.generation != 0);
    let rows: BTreeMap<u32, Limit> = rows
        .into_iter()
        .map(|(row, limit)| (row, limit.0))
        .collect();
    let slots: BTreeSet<u32> = rows.keys().map(|row| row / 2).collect();
    let flags = rows.values().fold(0, |flags, limit| flags | limit.flags);
    let listed = peers::asked_for(tables, flags)?;
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

/// The limits of a slot, when there are any.
pub(crate) fn find(tables: &Tables, slot: u32) -> io::Result<Option<Entry>> {
    let read = |direction| present(tables.limits.get(&row(slot, direction), ANY));
    let (egress, ingress) = (read(Direction::Egress)?, read(Direction::Ingress)?);
    let (Some(Wire(egress)), Some(Wire(ingress))) = (egress, ingress) else {
        return Ok(None);
    };
    let listed = peers::asked_for(tables, egress.flags | ingress.flags)?;
    Ok(entry(slot, &egress, &ingress, &listed))
}

fn entry(slot: u32, egress: &Limit, ingress: &Limit, listed: &peers::Listed) -> Option<Entry> {
    let generation = egress.generation.max(ingress.generation);
    (generation != 0).then(|| Entry::Limit {
        ingress: shape(ingress),
        egress: shape(egress),
        peers: Box::new(peers::of(
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
        // Another pod's counters.
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| error)?;
        let zeros = aya::maps::PerCpuValues::try_from(vec![Wire(Shaped::default()); cpus])?;
        written(tables.shaped.set(row, zeros, ANY))?;
    }
    let bucket = match before.price {
        // Nothing was limited, or another pod was: the bucket is full.
        0 => Bucket::default(),
        _ if before.generation != limit.generation => Bucket::default(),
        _ => {
            let bucket = tables.buckets.get(&row, ANY);
            carried(
                &bucket.map_err(|error| io_error(&error))?.0,
                &before,
                &limit,
            )?
        }
    };
    written(tables.limits.set(row, Wire(limit), ANY))?;
    written(tables.buckets.set(row, Wire(bucket), ANY))
}

/// A bucket that is as full by the new limit as it was by the old one.
fn carried(bucket: &Bucket, before: &Limit, after: &Limit) -> io::Result<Bucket> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    let now = u64::try_from(now.num_nanoseconds())
        .unwrap_or(0)
        .saturating_mul(TICKS);
    let debt = bucket.paid_at.saturating_sub(now);
    Ok(Bucket {
        paid_at: now.saturating_add(part(debt, before.allowance, after.allowance)),
        ..Bucket::default()
    })
}

/// The same part of `after` as `debt` is of `before`, all of it at the most.
fn part(debt: u64, before: u64, after: u64) -> u64 {
    let part = u128::from(debt.min(before)) * u128::from(after) / u128::from(before.max(1));
    u64::try_from(part).unwrap_or(after)
}

pub(crate) const fn row(slot: u32, direction: Direction) -> u32 {
    slot * 2 + direction as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_as_full_after_a_change_as_before() {
        assert_eq!(part(0, 100, 400), 0);
        assert_eq!(part(50, 100, 400), 200);
        // Whoever was in debt beyond the burst starts at its end.
        assert_eq!(part(1_000, 100, 400), 400);
        assert_eq!(part(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(part(5, 0, 400), 0);
    }
}
