//! Programs of other software: those on PATH, and those that `cargo xtask` has put below
//! `target/tools`.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

/// Folders that are searched for programs in addition to PATH, which not every user's has.
const SYSTEM: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Returns the folder of the tools: `VIADUCT_TOOLS`, by default `target/tools` of the checkout.
pub fn tools() -> PathBuf {
    std::env::var_os("VIADUCT_TOOLS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools"),
        PathBuf::from,
    )
}

/// Returns version and folder of the newest release of `name` below [`tools`], which has a folder
/// for each version. Returns `None` if there is no release that contains the file `proof`.
pub fn newest(name: &str, proof: &str) -> Option<(String, PathBuf)> {
    let folders = std::fs::read_dir(tools().join(name)).ok()?;
    folders
        .filter_map(|entry| entry.ok().map(|it| it.path()))
        .filter(|folder| folder.join(proof).exists())
        .filter_map(|folder| Some((folder.file_name()?.to_str()?.to_owned(), folder)))
        .max_by(|(one, _), (other, _)| by_number(one, other))
}

/// Returns whether a program is installed.
pub fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM.map(PathBuf::from))
        .any(|folder| folder.join(name).is_file())
}

/// Compares versions by their numbers: 1.10.0 is newer than 1.9.1.
fn by_number(one: &str, other: &str) -> Ordering {
    let numbers = |version: &str| -> Vec<u64> {
        version
            .split(|c: char| !c.is_ascii_digit())
            .filter_map(|number| number.parse().ok())
            .collect()
    };
    numbers(one).cmp(&numbers(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(by_number("1.10.0", "1.9.1"), Ordering::Greater);
        assert_eq!(by_number("1.9", "1.9.1"), Ordering::Less);
        assert_eq!(by_number("28.5.2", "28.5.2"), Ordering::Equal);
    }
}
