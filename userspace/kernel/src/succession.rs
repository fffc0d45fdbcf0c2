//! Pins of other ABI versions: an older set is taken over, a newer one is refused.
//!
//! Links come first, with the programs that they have until each is updated in place: no packet passes without a
//! program. Maps whose layout is the same come with all that is in them; the others are made anew, and from records.
//! What is left of the old set goes last, so that an agent that dies in between is followed by one that goes on.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use abi::{ABI_VERSION, maps};

use crate::error::{Attempt as _, OpenError};

/// Whether nothing that a newer agent has pinned is under `bpffs`.
pub(crate) fn refuse_newer(bpffs: &Path) -> Result<(), OpenError> {
    let newest = versions(bpffs)?.pop_last();
    match newest.filter(|version| *version > ABI_VERSION) {
        None => Ok(()),
        Some(found) => Err(OpenError::Newer {
            found,
            known: ABI_VERSION,
            path: bpffs.join(directory(found)),
        }),
    }
}

/// Takes over what older agents have pinned under `bpffs`, into the directories of our version, which are there.
pub(crate) fn succeed(bpffs: &Path) -> Result<(), OpenError> {
    let older = versions(bpffs)?.into_iter().rev();
    for older in older.filter(|version| *version < ABI_VERSION) {
        let call = || format!("take over {}", bpffs.join(directory(older)).display());
        take_over(bpffs, older).attempt(call)?;
        tracing::info!(older, "took over what an older agent has pinned");
    }
    Ok(())
}

/// Name of a version's directory.
pub(crate) fn directory(version: u32) -> String {
    format!("v{version}")
}

/// In order.
fn versions(bpffs: &Path) -> Result<BTreeSet<u32>, OpenError> {
    let call = || format!("look at {}", bpffs.display());
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(bpffs).attempt(call)? {
        let name = entry.attempt(call)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix('v'));
        found.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    Ok(found)
}

fn take_over(bpffs: &Path, older: u32) -> io::Result<()> {
    let (from, to) = (
        bpffs.join(directory(older)),
        bpffs.join(directory(ABI_VERSION)),
    );
    adopt(&from.join("links"), &to.join("links"), |_| true)?;
    adopt(&from.join("maps"), &to.join("maps"), |name| {
        changed_in(name) <= older
    })?;
    fs::remove_dir_all(from)?;
    crash::point_at("remove-old-pins");
    Ok(())
}

/// Moves what is wanted and not there yet.
fn adopt(from: &Path, to: &Path, is_wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?.collect::<io::Result<Vec<_>>>()?,
    };
    for entry in entries {
        let name = entry.file_name();
        let to = to.join(&name);
        if name.to_str().is_some_and(&is_wanted) && !to.try_exists()? {
            fs::rename(entry.path(), to)?;
            crash::point_at("adopt-pin");
        }
    }
    Ok(())
}

/// The version since which a map's layout is what it is.
fn changed_in(name: &str) -> u32 {
    let changed = maps::CHANGED.iter().find(|(map, _)| *map == name);
    changed.map_or(0, |(_, version)| *version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(bpffs: &Path, path: &str, text: &str) {
        let path = bpffs.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn an_older_set_is_taken_over_and_what_is_there_already_is_kept() {
        let bpffs = tempfile::tempdir().unwrap();
        let bpffs = bpffs.path();
        pin(bpffs, "v0/links/7-in", "old");
        pin(bpffs, "v0/links/8-in", "old");
        pin(bpffs, "v0/maps/FLOWS", "old");
        pin(bpffs, "v1/links/8-in", "ours");
        pin(bpffs, "v1/maps/PODS", "ours");
        refuse_newer(bpffs).unwrap();
        succeed(bpffs).unwrap();
        let read = |path: &str| fs::read_to_string(bpffs.join(path)).unwrap();
        assert_eq!(read("v1/links/7-in"), "old");
        assert_eq!(read("v1/links/8-in"), "ours");
        assert_eq!(read("v1/maps/FLOWS"), "old");
        assert_eq!(read("v1/maps/PODS"), "ours");
        assert!(!bpffs.join("v0").exists());
        succeed(bpffs).unwrap();
    }

    #[test]
    fn a_newer_set_is_refused_and_left_as_it_is() {
        let bpffs = tempfile::tempdir().unwrap();
        let newer = directory(ABI_VERSION + 1);
        pin(bpffs.path(), &format!("{newer}/maps/FLOWS"), "newer");
        let error = refuse_newer(bpffs.path()).unwrap_err().to_string();
        assert!(error.contains("newer agent"), "{error}");
        assert!(bpffs.path().join(newer).join("maps/FLOWS").exists());
    }
}
