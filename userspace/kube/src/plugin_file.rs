//! `install-plugin`: puts the CNI plugin into a directory of the node, as an init container does.
//!
//! Files are replaced by rename: a plugin that is being executed keeps its old contents, and a
//! runtime never executes half a file.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path};

use anyhow::{Context as _, Result, bail};

use crate::options::InstallPlugin;

/// Mode of plugins.
const MODE: u32 = 0o755;

/// Installs the plugin under its own name, and under names that are missing.
pub(crate) fn install(options: &InstallPlugin) -> Result<()> {
    let InstallPlugin { from, to, missing } = options;
    let name = from.file_name().context("--from: no file")?;
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    let own = to.join(name);
    copy(from, &own)?;
    for other in missing {
        ensure_is_name(other)?;
        let path = to.join(other);
        // Also a link that leads nowhere is a file of other software.
        if path.symlink_metadata().is_err() {
            copy(from, &path)?;
        }
    }
    Ok(())
}

fn ensure_is_name(text: &str) -> Result<()> {
    let mut components = Path::new(text).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(_)), None) => Ok(()),
        _ => bail!("--missing: {text:?} is no file name"),
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let draft = to.with_extension(format!("viaduct-new-{}", std::process::id()));
    let copied = write(from, &draft).and_then(|()| fs::rename(&draft, to));
    if copied.is_err() {
        // The error is the one above.
        let _result = fs::remove_file(&draft);
    }
    copied.with_context(|| format!("cannot install {} as {}", from.display(), to.display()))
}

fn write(from: &Path, draft: &Path) -> io::Result<()> {
    fs::copy(from, draft)?;
    fs::set_permissions(draft, Permissions::from_mode(MODE))?;
    File::open(draft)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(folder: &Path) -> Vec<(String, String)> {
        let mut found: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                (name, fs::read_to_string(path).unwrap())
            })
            .collect();
        found.sort();
        found
    }

    #[test]
    fn the_plugin_replaces_an_older_one_and_no_file_of_other_software() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("viaduct"), folder.path().join("bin"));
        fs::write(&from, "new").unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(to.join("viaduct"), "old").unwrap();
        fs::write(to.join("loopback"), "theirs").unwrap();
        let missing = ["loopback", "bandwidth"].map(str::to_owned).to_vec();
        let options = InstallPlugin { from, to, missing };
        install(&options).unwrap();
        let expected = [
            ("bandwidth", "new"),
            ("loopback", "theirs"),
            ("viaduct", "new"),
        ]
        .map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(contents(&options.to), expected);
        let mode = fs::metadata(options.to.join("viaduct"))
            .unwrap()
            .permissions();
        assert_eq!(mode.mode() & 0o777, MODE);
    }

    #[test]
    fn a_missing_source_and_a_path_in_place_of_a_name_are_errors_that_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("bin");
        let from = folder.path().join("viaduct");
        let options = |missing: &[&str]| InstallPlugin {
            from: from.clone(),
            to: to.clone(),
            missing: missing.iter().map(ToString::to_string).collect(),
        };
        assert!(install(&options(&[])).is_err());
        assert!(contents(&to).is_empty());
        fs::write(&from, "x").unwrap();
        for name in ["../x", "/x", "..", ""] {
            let error = install(&options(&[name])).unwrap_err();
            assert!(error.to_string().contains("is no file name"), "{error}");
        }
    }
}
