//! Files of the node, below a root directory.

use std::fs;
use std::path::{Path, PathBuf};

/// The node's files; the root is `/`, and another directory in tests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files<'a> {
    root: &'a Path,
}

/// A mount of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// Mount point.
    pub(super) point: String,
    /// Type of the file system.
    pub(super) kind: String,
}

impl<'a> Files<'a> {
    pub(super) fn below(root: &'a Path) -> Self {
        Self { root }
    }

    /// Returns the path of a file, which is given without the leading slash.
    pub(super) fn path(self, file: &str) -> PathBuf {
        self.root.join(file.trim_start_matches('/'))
    }

    /// Returns the text of a file without surrounding white space; `None` if it cannot be read.
    pub(super) fn read(self, file: &str) -> Option<String> {
        let text = fs::read_to_string(self.path(file)).ok()?;
        Some(text.trim().to_owned())
    }

    /// As [`Files::read`], for a path that the operator has chosen: a FIFO would not end.
    pub(super) fn read_regular(self, file: &str) -> Option<String> {
        let is_regular = self.path(file).is_file();
        is_regular.then(|| self.read(file)).flatten()
    }

    /// Returns the number that a file contains.
    pub(super) fn number(self, file: &str) -> Option<u64> {
        self.read(file)?.parse().ok()
    }

    /// Returns whether the path exists; a symbolic link does, wherever it leads.
    pub(super) fn exists(self, file: &str) -> bool {
        self.path(file).symlink_metadata().is_ok()
    }

    /// Returns the names of a directory's entries in alphabetical order; none if it cannot be read.
    pub(super) fn names(self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Returns the mounts that this process sees (`proc_pid_mountinfo(5)`).
    pub(super) fn mounts(self) -> Vec<Mount> {
        let text = self.read("proc/self/mountinfo").unwrap_or_default();
        let parse = |line: &str| {
            let (mount, file_system) = line.split_once(" - ")?;
            Some(Mount {
                point: mount.split(' ').nth(4)?.to_owned(),
                kind: file_system.split(' ').next()?.to_owned(),
            })
        };
        text.lines().filter_map(parse).collect()
    }
}
