//! Bandwidth limits in the datapath's tables.
//!
//! When a limit changes, its token bucket keeps its fill level: a pod that has used up its old
//! limit is held to the new one at once. How a limit is chosen is not known here.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use abi::maps;
use abi::{Bucket, Direction, Limit, Shaped, TICKS};
use aya::Ebpf;
use model::ShapedSubnets;
use nix::sys::time::TimeValLike as _;
use nix::time::{ClockId, clock_gettime};
use steps::{Entries, Entry, EntryKey, LinkRef, Shape};

use crate::bpf::batch;
use crate::bpf::map::{ANY, List, PerCpu, Wire, present, take, written, zeros};
use crate::bpf::table::{Table, mismatch};
use crate::bpf::tables::pods::row;
use crate::bpf::tables::shaped_subnets::{self, SubnetTrie};
use crate::error::{OpenError, io_error};
use crate::netlink::ifindex::Names;

/// Directions in the order of a slot's rows.
const DIRECTIONS: [Direction; 2] = [Direction::Egress, Direction::Ingress];

/// The limits of pods.
pub(crate) struct Limits {
    rows: List<Limit>,
    buckets: List<Bucket>,
    pub(crate) shaped: PerCpu<Shaped>,
    subnets: SubnetTrie,
}

impl Table for Limits {
    fn take(object: &mut Ebpf) -> Result<Self, OpenError> {
        Ok(Self {
            rows: take(object, &maps::LIMITS)?,
            buckets: take(object, &maps::BUCKETS)?,
            shaped: take(object, &maps::SHAPED)?,
            subnets: take(object, &maps::PEERS)?,
        })
    }

    /// Writes the limits of a slot, and its shaped subnets.
    fn put(&mut self, _: &Names, key: &EntryKey, entry: &Entry) -> io::Result<()> {
        let (
            EntryKey::Limit(slot @ 1..),
            Entry::Limit {
                ingress,
                egress,
                shaped_subnets,
                generation,
            },
        ) = (key, entry)
        else {
            return Err(mismatch());
        };
        let had_subnets = self.flags_of(*slot)? != 0;
        // Subnets are added before the limits whose flags make the datapath look them up.
        shaped_subnets::add(&mut self.subnets, *slot, shaped_subnets, *generation)?;
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
            self.write(row(*slot, direction), limit)?;
        }
        // Removed last. A subnet that a previous pod left in the slot could be a longer match.
        if had_subnets || **shaped_subnets != ShapedSubnets::All {
            shaped_subnets::remove_others(&mut self.subnets, *slot, shaped_subnets)?;
        }
        Ok(())
    }

    /// Removes the limits of a slot, and its shaped subnets.
    fn remove(&mut self, _: &Names, key: &EntryKey) -> io::Result<()> {
        let EntryKey::Limit(slot) = key else {
            return Err(mismatch());
        };
        if row(*slot, Direction::Ingress) >= self.rows.len() {
            return Ok(());
        }
        let had_subnets = self.flags_of(*slot)? != 0;
        for direction in DIRECTIONS {
            self.write(row(*slot, direction), Limit::default())?;
        }
        if had_subnets {
            shaped_subnets::remove_others(&mut self.subnets, *slot, &ShapedSubnets::All)?;
        }
        Ok(())
    }

    /// Returns the limits of a slot, if there are any.
    fn find(&self, _: &Names, key: &EntryKey) -> io::Result<Option<Entry>> {
        let EntryKey::Limit(slot) = key else {
            return Err(mismatch());
        };
        let read = |direction| present(self.rows.get(&row(*slot, direction), ANY));
        let (egress, ingress) = (read(Direction::Egress)?, read(Direction::Ingress)?);
        let (Some(Wire(egress)), Some(Wire(ingress))) = (egress, ingress) else {
            return Ok(None);
        };
        let listed = shaped_subnets::list_if_used(&self.subnets, egress.flags | ingress.flags)?;
        Ok(entry_of(*slot, &egress, &ingress, &listed))
    }

    /// Returns the limits of all slots that have any.
    fn list(&self, _: &dyn Fn(u32) -> LinkRef) -> io::Result<Entries> {
        let mut rows = batch::list(&self.rows)?;
        rows.retain(|(_, limit)| limit.0.generation != 0);
        let rows: BTreeMap<u32, Limit> = rows
            .into_iter()
            .map(|(row, limit)| (row, limit.0))
            .collect();
        let slots: BTreeSet<u32> = rows.keys().map(|row| row / 2).collect();
        let flags = rows.values().fold(0, |flags, limit| flags | limit.flags);
        let listed = shaped_subnets::list_if_used(&self.subnets, flags)?;
        let of = |slot, direction| rows.get(&row(slot, direction)).copied().unwrap_or_default();
        let entry = |slot| {
            let (egress, ingress) = (of(slot, Direction::Egress), of(slot, Direction::Ingress));
            let entry = entry_of(slot, &egress, &ingress, &listed)?;
            Some((EntryKey::Limit(slot), entry))
        };
        Ok(slots.into_iter().filter_map(entry).collect())
    }
}

impl Limits {
    /// Returns the flags of the limits of a slot, of both directions.
    fn flags_of(&self, slot: u32) -> io::Result<u32> {
        let mut flags = 0;
        for direction in DIRECTIONS {
            let limit = self.rows.get(&row(slot, direction), ANY);
            flags |= limit.map_err(|error| io_error(&error))?.0.flags;
        }
        Ok(flags)
    }

    fn write(&mut self, row: u32, limit: Limit) -> io::Result<()> {
        let Wire(before) = self.rows.get(&row, ANY).map_err(|error| io_error(&error))?;
        if before == limit {
            return Ok(());
        }
        if before.generation != limit.generation {
            // The counters belong to another pod.
            written(self.shaped.set(row, zeros::<Shaped>()?, ANY))?;
        }
        let bucket = match before.price {
            // There was no limit, or another pod's: the bucket is full.
            0 => Bucket::default(),
            _ if before.generation != limit.generation => Bucket::default(),
            _ => {
                let bucket = self.buckets.get(&row, ANY);
                rescaled(
                    &bucket.map_err(|error| io_error(&error))?.0,
                    &before,
                    &limit,
                )?
            }
        };
        written(self.rows.set(row, Wire(limit), ANY))?;
        written(self.buckets.set(row, Wire(bucket), ANY))
    }
}

fn entry_of(
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
