//! Reads an installation for a diagnosis: configurations, plugins, and the release of a plugin.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cni::{ConfigurationFile, FileKind, Installation};

/// Time after which a plugin that prints nothing is killed.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a plugin's text that are read.
const MAX_TEXT: u64 = 4096;

/// Checks the configurations of a directory; `path` are the directories of plugins.
pub fn installation(configurations: &Path, path: &[PathBuf]) -> io::Result<Installation> {
    let is_wanted = |name: &str| FileKind::of_name(name).is_some();
    let files = ipam::small_files::read_directory(configurations, is_wanted)?
        .into_iter()
        .map(|(name, text)| ConfigurationFile { name, text })
        .collect();
    Ok(Installation::check(files, |kind| {
        find_plugin(kind, path).is_some()
    }))
}

/// Returns the program of a plugin in the first directory that has it.
pub fn find_plugin(kind: &str, path: &[PathBuf]) -> Option<PathBuf> {
    let mut programs = path.iter().map(|directory| directory.join(kind));
    programs.find(|program| program.is_file())
}

/// Executes a plugin without a command, and returns the text that it prints about itself.
pub fn plugin_about(program: &Path) -> io::Result<String> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a plugin is a program; to execute it is what this crate is for"
    )]
    let mut process = Process::new(program);
    let mut child = process
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let end = Instant::now() + TIMEOUT;
    while child.try_wait()?.is_none() {
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let mut text = String::new();
    if let Some(errors) = child.stderr.take() {
        errors.take(MAX_TEXT).read_to_string(&mut text)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_plugin_is_found_by_its_directories_and_prints_about_itself() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("viaduct");
        std::fs::write(&program, "#!/bin/sh\necho CNI viaduct plugin v9 >&2\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = [PathBuf::from("/nonexistent"), folder.path().to_owned()];
        assert_eq!(find_plugin("viaduct", &path), Some(program.clone()));
        assert_eq!(find_plugin("portmap", &path), None);
        // Another thread's child may hold the file open for writing for a moment.
        let about = loop {
            match plugin_about(&program) {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {}
                about => break about.unwrap(),
            }
        };
        assert_eq!(about, "CNI viaduct plugin v9\n");
    }
}
