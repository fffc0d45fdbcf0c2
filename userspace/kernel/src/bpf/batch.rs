//! Reads whole maps with few system calls.
//!
//! Two calls for each entry would delay ADDs on nodes that publish ten thousand ports.

#![expect(unsafe_code, reason = "aya reads tables entry by entry")]

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use aya::Pod;
use aya::maps::IterableMap;
use nix::errno::Errno;
use nix::libc;

use crate::error::is;
use crate::syscall::bpf;

/// `BPF_MAP_LOOKUP_BATCH`, since Linux 5.6.
const LOOKUP_BATCH: libc::c_int = 24;

/// Entries of the first call. The kernel returns `ENOSPC` where a hash bucket has more.
const CHUNK: usize = 4096;

/// The kernel's position in the map: a bucket of a hash map, the last key of another map. None of
/// our keys is longer.
type Position = [u64; 8];

/// Arguments of `BPF_MAP_LOOKUP_BATCH`.
#[repr(C)]
struct LookupBatch {
    from: u64,
    to: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: i32,
    element_flags: u64,
    flags: u64,
}

/// Returns all entries of a map. aya has checked the sizes of the key and the value types when it
/// opened the map. Entries that are added or removed meanwhile may be missing.
pub(crate) fn list<K: Pod, V: Pod>(table: &impl IterableMap<K, V>) -> io::Result<Vec<(K, V)>> {
    let map = table.map().fd().as_fd();
    let mut entries = Vec::new();
    let mut room = CHUNK;
    let mut before: Option<Position> = None;
    loop {
        let mut after = Position::default();
        match lookup(map, before.as_ref(), &mut after, room) {
            Ok(Chunk { found, is_last }) => {
                entries.extend(found);
                if is_last {
                    return Ok(entries);
                }
                before = Some(after);
            }
            Err(error) if is(&error, Errno::ENOSPC) => room = room.saturating_mul(2),
            Err(error) => return Err(error),
        }
    }
}

/// Entries that one call returned.
struct Chunk<K, V> {
    found: Vec<(K, V)>,
    is_last: bool,
}

fn lookup<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    before: Option<&Position>,
    after: &mut Position,
    room: usize,
) -> io::Result<Chunk<K, V>> {
    let mut keys = Vec::<K>::with_capacity(room);
    let mut values = Vec::<V>::with_capacity(room);
    let mut arguments = LookupBatch {
        from: before.map_or(0, |position| position.as_ptr() as u64),
        to: after.as_mut_ptr() as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: u32::try_from(room).map_err(io::Error::other)?,
        map: map.as_raw_fd(),
        element_flags: 0,
        flags: 0,
    };
    // SAFETY: the kernel reads and writes positions of at most the size of `Position`, and writes
    // at most `count` keys and values, which is the capacity of both lists.
    let is_last = match unsafe { bpf(LOOKUP_BATCH, &mut arguments) } {
        Ok(_) => false,
        Err(error) if is(&error, Errno::ENOENT) => true,
        Err(error) => return Err(error),
    };
    let count = usize::try_from(arguments.count).map_err(io::Error::other)?;
    if count > room {
        return Err(io::Error::other(
            "BPF_MAP_LOOKUP_BATCH returned more entries than there is room for",
        ));
    }
    // SAFETY: the kernel has initialised `count` keys and values, with the sizes of `K` and `V`,
    // and any bytes are a valid value (`Pod`). `count` is at most the capacity that was passed.
    unsafe {
        keys.set_len(count);
        values.set_len(count);
    }
    let found = keys.into_iter().zip(values).collect();
    Ok(Chunk { found, is_last })
}
