//! Finds network configurations in a directory, in the order of file names as every runtime does.
//!
//! A subdirectory with the name of a network may have further plugins of it, so that other software
//! can extend a network without editing its file.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use cni::{Error, FileKind, NetworkList};
use model::NetworkName;

/// Returns the network of this name in a directory. Files that cannot be parsed are skipped; if the
/// network is not found, the details of the error list them.
pub fn find_network(folder: &Path, name: &str) -> Result<NetworkList, Error> {
    let mut invalid = Vec::new();
    let files =
        files(folder).map_err(|error| Error::io(format!("{}: {error}", folder.display())))?;
    for (path, kind) in files {
        let text = ipam::small_files::read(&path).map_err(|error| Error::io(error.to_string()));
        let list = text.and_then(|text| {
            NetworkList::parse_with_fragments(kind, &text, |name| fragments(folder, name))
        });
        match list {
            Ok(list) if list.name == name => return Ok(list),
            Ok(_) => {}
            Err(error) => invalid.push(format!("{}: {error}", path.display())),
        }
    }
    let error = Error::invalid_config(format!("no network {name:?} in {}", folder.display()));
    Err(error.with_details(invalid.join("; ")))
}

/// Returns the plugins in the subdirectory of a network, in the order of file names; only `.conf`
/// files count (behaviour S17).
fn fragments(folder: &Path, network: &str) -> Result<Vec<String>, Error> {
    let name: NetworkName = network
        .parse()
        .map_err(|error| Error::invalid_config(format!("{error}")))?;
    let folder = folder.join(name.as_str());
    let io_error =
        |path: &Path, error: io::Error| Error::io(format!("{}: {error}", path.display()));
    files(&folder)
        .map_err(|error| io_error(&folder, error))?
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| path.extension().is_some_and(|end| end == "conf"))
        .map(|path| ipam::small_files::read(&path).map_err(|error| io_error(&path, error)))
        .collect()
}

fn files(folder: &Path) -> io::Result<Vec<(PathBuf, FileKind)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_name().to_str().and_then(FileKind::of_name);
        files.extend(kind.map(|kind| (entry.path(), kind)));
    }
    files.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(files)
}
