//! Program cache: pins of verified programs, reused by an agent that starts again.
//!
//! Verification takes longer than the rest of an agent's start. So the programs are pinned, in a
//! directory named after the digest of what they are made of. Nothing runs because of these pins:
//! only links and filters attach programs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use abi::maps;
use aya::Ebpf;
use aya::maps::MapInfo;
use aya::programs::SchedClassifier;
use nix::errno::Errno;
use sha2::{Digest as _, Sha256};

use crate::bpf::pins::{Pins, make};
use crate::bpf::programs::LoaderConstants;
use crate::error::io_error;

/// Bytes of the SHA-256 digest in the name of a directory.
const BYTES: usize = 16;

/// Longest map name that the kernel keeps, in bytes (`BPF_OBJ_NAME_LEN`, without the zero).
const LONGEST_NAME: usize = 15;

/// Programs by name.
pub(crate) type CachedPrograms = BTreeMap<&'static str, SchedClassifier>;

/// Cache of the programs of one object with one set of loader constants.
pub(crate) struct ProgramCache<'a> {
    pins: &'a Pins,
    directory: PathBuf,
}

impl<'a> ProgramCache<'a> {
    /// Makes the cache of an object and the constants that the loader writes into it.
    pub(crate) fn new(pins: &'a Pins, object: &[u8], constants: &LoaderConstants) -> Self {
        Self {
            directory: pins.programs().join(digest(object, constants)),
            pins,
        }
    }

    /// Returns the programs of these names, if all are cached and use our pinned maps.
    pub(crate) fn take(&self, names: &[&'static str]) -> Option<CachedPrograms> {
        let taken: io::Result<CachedPrograms> = names
            .iter()
            .map(|name| Ok((*name, self.open(name)?)))
            .collect();
        taken
            .inspect_err(
                |error| tracing::debug!(%error, "no usable program cache: verifying the programs"),
            )
            .ok()
    }

    fn open(&self, name: &str) -> io::Result<SchedClassifier> {
        let opened = SchedClassifier::from_pin(self.directory.join(name));
        let program = opened.map_err(|error| io_error(&error))?;
        let info = program.info().and_then(|info| info.map_ids());
        let tables = info.map_err(|error| io_error(&error))?;
        for table in tables.ok_or(Errno::EOPNOTSUPP)? {
            self.check(table)?;
        }
        Ok(program)
    }

    /// Fails with `ESTALE` for a map that has the name of a pinned map of ours and is another one.
    /// Maps with other names belong to the programs alone.
    fn check(&self, id: u32) -> io::Result<()> {
        let table = MapInfo::from_id(id).map_err(|error| io_error(&error))?;
        let expected = maps::ALL
            .iter()
            .find(|map| table.name() == shortened(map.name));
        let Some(expected) = expected else {
            return Ok(());
        };
        let pinned =
            MapInfo::from_pin(self.pins.map(expected.name)).map_err(|error| io_error(&error))?;
        if pinned.id() == id {
            Ok(())
        } else {
            Err(Errno::ESTALE.into())
        }
    }

    /// Pins the loaded programs of these names, and removes all others from the cache.
    pub(crate) fn replace(&self, object: &mut Ebpf, names: &[&'static str]) -> io::Result<()> {
        // Cleared first: a crash leaves an incomplete set, which `take` rejects.
        clear(&self.pins.programs())?;
        make(&self.directory)?;
        for name in names {
            let program = object.program_mut(name).ok_or(Errno::ENOENT)?;
            let pinned = program.pin(self.directory.join(name));
            pinned.map_err(|error| io_error(&error))?;
            crash::point_at("keep-program");
        }
        Ok(())
    }
}

fn digest(object: &[u8], constants: &LoaderConstants) -> String {
    let LoaderConstants { numbers, log } = constants;
    let numbers = numbers.map(|(_, value)| value.to_ne_bytes());
    let digest = Sha256::new()
        .chain_update(numbers.as_flattened())
        .chain_update([log.number()])
        .chain_update(object)
        .finalize();
    digest
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .take(BYTES)
        .collect()
}

/// Returns the part of a map's name that the kernel keeps.
fn shortened(name: &str) -> &[u8] {
    let name = name.as_bytes();
    name.get(..LONGEST_NAME).unwrap_or(name)
}

fn clear(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        cleared => cleared.inspect(|()| crash::point_at("forget-programs")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_depends_on_object_and_loader_constants() {
        let none = LoaderConstants::default();
        let same = digest(b"object", &none);
        assert_eq!(digest(b"object", &none), same);
        assert_ne!(digest(b"other", &none), same);
        for changed in 0..none.numbers.len() {
            let mut constants = none.clone();
            constants.numbers[changed].1 = 1;
            assert_ne!(digest(b"object", &constants), same, "{changed}");
        }
        let log = model::DatapathLogLevel::Debug;
        let logging = LoaderConstants { log, ..none };
        assert_ne!(digest(b"object", &logging), same);
    }
}
