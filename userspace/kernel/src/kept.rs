//! Programs that the kernel has verified already.
//!
//! To verify them takes longer than all else of an agent's start. So they are pinned, in a directory named after what they
//! are made of, and an agent that starts again takes them from there. Nothing runs because of these pins: links and
//! filters say what does.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::maps::MapInfo;
use aya::programs::SchedClassifier;
use nix::errno::Errno;
use sha2::{Digest as _, Sha256};

use crate::error::io_error;
use crate::pins::{MAPS, Pins, make};
use crate::programs::Written;

/// Bytes of a digest in the name of a directory.
const BYTES: usize = 16;

/// Bytes of a table's name that the kernel keeps (`BPF_OBJ_NAME_LEN`, without the zero).
const LONGEST_NAME: usize = 15;

/// By name.
pub(crate) type Programs = BTreeMap<&'static str, SchedClassifier>;

/// Where programs are kept that are made of the same.
pub(crate) struct Kept<'a> {
    pins: &'a Pins,
    directory: PathBuf,
}

impl<'a> Kept<'a> {
    /// Of an object, and of what the loader writes into it.
    pub(crate) fn of(pins: &'a Pins, object: &[u8], written: &Written) -> Self {
        Self {
            directory: pins.programs().join(digest(object, written)),
            pins,
        }
    }

    /// The programs of these names, if all are there and know our tables.
    pub(crate) fn take(&self, names: &[&'static str]) -> Option<Programs> {
        let taken: io::Result<Programs> = names
            .iter()
            .map(|name| Ok((*name, self.open(name)?)))
            .collect();
        taken
            .inspect_err(|error| tracing::debug!(%error, "programs are verified anew"))
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

    /// Refuses a table of ours that is not the one that is pinned. Others belong to programs alone.
    fn check(&self, id: u32) -> io::Result<()> {
        let table = MapInfo::from_id(id).map_err(|error| io_error(&error))?;
        let known = MAPS.iter().find(|it| table.name() == shortened(it.name));
        let Some(known) = known else {
            return Ok(());
        };
        let pinned =
            MapInfo::from_pin(self.pins.map(known.name)).map_err(|error| io_error(&error))?;
        if pinned.id() == id {
            Ok(())
        } else {
            Err(Errno::ESTALE.into())
        }
    }

    /// Keeps the programs of these names, which are loaded, and no others.
    pub(crate) fn replace(&self, object: &mut Ebpf, names: &[&'static str]) -> io::Result<()> {
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

fn digest(object: &[u8], written: &Written) -> String {
    let written = written.map(|(_, value)| value.to_ne_bytes());
    let digest = Sha256::new()
        .chain_update(written.as_flattened())
        .chain_update(object)
        .finalize();
    digest
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .take(BYTES)
        .collect()
}

/// What the kernel keeps of a table's name.
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
    fn programs_that_are_told_something_else_are_others() {
        let none = Written::default();
        let same = digest(b"object", &none);
        assert_eq!(digest(b"object", &none), same);
        assert_ne!(digest(b"other", &none), same);
        for told in 0..none.len() {
            let mut written = none;
            written[told].1 = 1;
            assert_ne!(digest(b"object", &written), same, "{told}");
        }
    }
}
