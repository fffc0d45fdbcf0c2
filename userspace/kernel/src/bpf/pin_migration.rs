//! Migrates pins of older ABI versions, and refuses those of newer ones.
//!
//! Links are moved first, with the programs that they have until each is updated in place: no
//! packet passes without a program. Maps whose layout is unchanged are moved with their contents
//! (a change that keeps type, sizes and capacity must rename the map). The others are created anew
//! and filled from records, or, as the flow table, copied (see [`OlderFlows`]). The rest of the old
//! directory is removed last, so that another agent can continue an interrupted migration.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use abi::{ABI_VERSION, maps};

use crate::bpf::older_flows::OlderFlows;
use crate::bpf::pinned_maps::has_current_shape;
use crate::error::{Attempt as _, OpenError};

/// Fails with [`OpenError::Newer`] where a newer agent has pins below `bpffs`.
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

/// Migrates the pins of older agents below `bpffs` into the directories of our version, which must
/// exist. Returns the flow table of the newest one, where its flows are to be copied.
pub(crate) fn migrate_older(bpffs: &Path) -> Result<Option<OlderFlows>, OpenError> {
    let mut flows = None;
    let older = versions(bpffs)?.into_iter().rev();
    for older in older.filter(|version| *version < ABI_VERSION) {
        let call = || {
            format!(
                "migrate the pins of {}",
                bpffs.join(directory(older)).display()
            )
        };
        let found = migrate(bpffs, older).attempt(call)?;
        tracing::info!(older, "migrated the pins of an older ABI version");
        match (found, &flows) {
            (Some(found), None) => flows = Some(found),
            (Some(found), Some(_)) => found.remove().attempt(call)?,
            (None, _) => {}
        }
    }
    Ok(flows)
}

/// Returns the name of a version's directory.
pub(crate) fn directory(version: u32) -> String {
    format!("v{version}")
}

/// Returns the ABI versions that have a directory, in ascending order.
fn versions(bpffs: &Path) -> Result<BTreeSet<u32>, OpenError> {
    let call = || format!("read {}", bpffs.display());
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(bpffs).attempt(call)? {
        let name = entry.attempt(call)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix('v'));
        found.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    Ok(found)
}

/// Migrates the pins of one version. Its directory stays where it has a flow table to be copied.
fn migrate(bpffs: &Path, older: u32) -> io::Result<Option<OlderFlows>> {
    let (from, to) = (
        bpffs.join(directory(older)),
        bpffs.join(directory(ABI_VERSION)),
    );
    move_missing(&from.join("links"), &to.join("links"), |_| true)?;
    let maps = from.join("maps");
    move_missing(&maps, &to.join("maps"), |name| {
        changed_in(name) <= older || has_current_shape(&maps.join(name), name)
    })?;
    if changed_in(maps::FLOWS.name) > older
        && let Some(flows) = OlderFlows::open(&from)?
    {
        return Ok(Some(flows));
    }
    fs::remove_dir_all(from)?;
    crash::point_at("remove-old-pins");
    Ok(None)
}

/// Moves the pins that are wanted and do not exist in `to`.
fn move_missing(from: &Path, to: &Path, is_wanted: impl Fn(&str) -> bool) -> io::Result<()> {
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

/// Returns the ABI version in which a map's layout last changed.
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
    fn pins_of_an_older_version_are_moved_and_existing_pins_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let bpffs = folder.path();
        let own = |path: &str| format!("v{ABI_VERSION}/{path}");
        pin(bpffs, "v0/links/7-in", "old");
        pin(bpffs, "v0/links/8-in", "old");
        pin(bpffs, "v0/maps/HOSTPORTS", "old");
        pin(bpffs, &own("links/8-in"), "ours");
        pin(bpffs, &own("maps/PODS"), "ours");
        refuse_newer(bpffs).unwrap();
        migrate_older(bpffs).unwrap();
        let read = |path: &str| fs::read_to_string(bpffs.join(path)).unwrap();
        assert_eq!(read(&own("links/7-in")), "old");
        assert_eq!(read(&own("links/8-in")), "ours");
        assert_eq!(read(&own("maps/HOSTPORTS")), "old");
        assert_eq!(read(&own("maps/PODS")), "ours");
        assert!(!bpffs.join("v0").exists());
        migrate_older(bpffs).unwrap();
    }

    #[test]
    fn pins_of_a_newer_version_are_refused_and_kept() {
        let bpffs = tempfile::tempdir().unwrap();
        let newer = directory(ABI_VERSION + 1);
        pin(bpffs.path(), &format!("{newer}/maps/FLOWS"), "newer");
        let error = refuse_newer(bpffs.path()).unwrap_err().to_string();
        assert!(error.contains("newer agent"), "{error}");
        assert!(bpffs.path().join(newer).join("maps/FLOWS").exists());
    }
}
