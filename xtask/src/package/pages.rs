//! Manual pages and completions, written by the programs themselves: they know their options.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::stage;
use crate::{binaries, command, project, source};

/// Where bash, zsh and fish look for completions of packages: the directory, and the pattern of the
/// generated file.
const COMPLETIONS: [(&str, &str); 3] = [
    ("usr/share/bash-completion/completions", ".bash"),
    ("usr/share/zsh/vendor-completions", "_"),
    ("usr/share/fish/vendor_completions.d", ".fish"),
];

/// zsh's directory of completions where distributions have no other one.
const ZSH_SITE: &str = "usr/share/zsh/site-functions";

/// The programs with pages.
const PROGRAMS: [&str; 3] = ["viaductd", "viaductctl", "viaduct-kube"];

/// Writes the pages into `folder`, by programs that are built for this.
pub(super) fn write(folder: &Path) -> Result<()> {
    let commit = source::commit().unwrap_or_default();
    let features = "agent/pages,ctl/pages,viaduct-kube/pages";
    binaries::programs(&PROGRAMS, features, &[(source::COMMIT, &commit)])?;
    for name in PROGRAMS {
        let mut program = Command::new(project::target().join("debug").join(name));
        command::run(program.env("VIADUCT_PAGES", folder))?;
    }
    Ok(())
}

/// Puts the pages of `folder` in place below `root`.
pub(super) fn place(folder: &Path, root: &Path, format: stage::Format) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let file = entry?;
        let name = file.file_name().to_string_lossy().into_owned();
        stage::put(
            &root.join(target(&name, format)),
            &fs::read(file.path())?,
            0o644,
        )?;
    }
    Ok(())
}

/// Returns the place of a file: `viaductctl-list.1`, `viaductctl.bash`, `_viaductctl`.
fn target(name: &str, format: stage::Format) -> PathBuf {
    let [(bash, bash_end), (zsh, zsh_start), (fish, fish_end)] = COMPLETIONS;
    if let Some(program) = name.strip_suffix(bash_end) {
        return Path::new(bash).join(program);
    }
    if name.starts_with(zsh_start) {
        let folder = match format {
            stage::Format::Deb => zsh,
            stage::Format::Rpm => ZSH_SITE,
        };
        return Path::new(folder).join(name);
    }
    if name.ends_with(fish_end) {
        return Path::new(fish).join(name);
    }
    let section = name.rsplit('.').next().unwrap_or_default();
    Path::new("usr/share/man")
        .join(format!("man{section}"))
        .join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_completions_are_put_where_man_and_shells_look_for_them() {
        for (name, place) in [
            ("viaductd.8", "usr/share/man/man8/viaductd.8"),
            ("viaductctl-list.1", "usr/share/man/man1/viaductctl-list.1"),
            (
                "viaductctl.bash",
                "usr/share/bash-completion/completions/viaductctl",
            ),
            (
                "_viaductctl",
                "usr/share/zsh/vendor-completions/_viaductctl",
            ),
            (
                "viaductctl.fish",
                "usr/share/fish/vendor_completions.d/viaductctl.fish",
            ),
        ] {
            assert_eq!(target(name, stage::Format::Deb), Path::new(place));
        }
        let zsh = Path::new("usr/share/zsh/site-functions/_viaductctl");
        assert_eq!(target("_viaductctl", stage::Format::Rpm), zsh);
    }
}
