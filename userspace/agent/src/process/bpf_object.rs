//! Location of the object file with the eBPF programs.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

const VARIABLE: &str = "VIADUCT_DATAPATH_OBJECT";

/// Returns the object file: as configured, else of the environment variable, else of the
/// installation.
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
        "eBPF object file not found: {}: set --datapath-object or {VARIABLE}",
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
    fn datapath_object_is_found_relative_to_the_executable() {
        let places = usual_places(Some(Path::new("/opt/viaduct/bin/viaductd")));
        assert_eq!(places[0], Path::new("/opt/viaduct/lib/viaduct/datapath.o"));
        assert_eq!(places[1], Path::new("/usr/lib/viaduct/datapath.o"));
    }

    #[test]
    fn a_missing_configured_datapath_object_is_an_error() {
        let error = find(Some("/nowhere/datapath.o".into())).unwrap_err();
        assert!(error.to_string().contains("/nowhere/datapath.o"));
    }
}
