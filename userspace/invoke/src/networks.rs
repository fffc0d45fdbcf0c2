//! Configurations in a folder: by the order of the files' names, as every runtime reads them. Plugins may be dropped beside
//! a list, into the folder of its name: that is how others add to a network whose file is not theirs.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use cni::{Error, FileKind, NetworkList};
use model::NetworkName;

/// The network of that name in a folder. Files that cannot be read as configurations are other people's mistakes, and
/// told only when the network is not found.
pub fn find_network(folder: &Path, name: &str) -> Result<NetworkList, Error> {
    let mut wrong = Vec::new();
    let files =
        files(folder).map_err(|error| Error::io(format!("{}: {error}", folder.display())))?;
    for (path, kind) in files {
        let text = small_files::read(&path).map_err(|error| Error::io(error.to_string()));
        let list = text.and_then(|text| {
            NetworkList::parse_beside(kind, &text, |name| fragments(folder, name))
        });
        match list {
            Ok(list) if list.name == name => return Ok(list),
            Ok(_) => {}
            Err(error) => wrong.push(format!("{}: {error}", path.display())),
        }
    }
    let error = Error::invalid_config(format!("no network {name:?} in {}", folder.display()));
    Err(error.with_details(wrong.join("; ")))
}

/// The plugins beside a list, in the order of the files' names; only `.conf` counts there (behaviour S17).
fn fragments(folder: &Path, network: &str) -> Result<Vec<String>, Error> {
    let name: NetworkName = network
        .parse()
        .map_err(|error| Error::invalid_config(format!("{error}")))?;
    let folder = folder.join(name.as_str());
    let told = |path: &Path, error: io::Error| Error::io(format!("{}: {error}", path.display()));
    files(&folder)
        .map_err(|error| told(&folder, error))?
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| path.extension().is_some_and(|end| end == "conf"))
        .map(|path| small_files::read(&path).map_err(|error| told(&path, error)))
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
