//! Where the eBPF programs are.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

const VARIABLE: &str = "VIADUCT_DATAPATH_OBJECT";

/// The file of the programs: as configured, else as the environment says, else where an installation has it.
pub(crate) fn find(configured: Option<PathBuf>) -> Result<PathBuf> {
    let chosen = configured.or_else(|| env::var_os(VARIABLE).map(PathBuf::from));
    let places = match chosen {
        Some(path) => vec![path],
        None => usual_places(env::current_exe().ok().as_deref()),
    };
    if let Some(found) = places.iter().find(|path| path.is_file()) {
        return Ok(found.clone());
    }
    let names: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    bail!(
        "no eBPF programs at {}: set --datapath-object or {VARIABLE}",
        names.join(" or ")
    )
}

fn usual_places(executable: Option<&Path>) -> Vec<PathBuf> {
    let beside = executable
        .and_then(Path::parent)
        .and_then(Path::parent)
        .map(|prefix| prefix.join("lib/viaduct/datapath.o"));
    let installed = PathBuf::from("/usr/lib/viaduct/datapath.o");
    beside.into_iter().chain([installed]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_is_found_by_the_place_of_the_executable() {
        let places = usual_places(Some(Path::new("/opt/viaduct/bin/viaductd")));
        assert_eq!(places[0], Path::new("/opt/viaduct/lib/viaduct/datapath.o"));
        assert_eq!(places[1], Path::new("/usr/lib/viaduct/datapath.o"));
    }

    #[test]
    fn a_file_that_was_named_and_is_missing_is_not_replaced_by_another() {
        let error = find(Some("/nowhere/datapath.o".into())).unwrap_err();
        assert!(error.to_string().contains("/nowhere/datapath.o"));
    }
}
