//! Packages of other suites of Debian, and of Ubuntu, unpacked below `target/tools` instead of
//! installed: newer releases than the machine's, older kernels, and sources. apt runs with a
//! configuration of its own, so that the machine's sources stay as they are.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::progress::Steps;
use crate::{command, privilege, project};

const UPDATE_LIMIT: Duration = Duration::from_mins(2);
const DOWNLOAD_LIMIT: Duration = Duration::from_mins(5);
const UNPACK_LIMIT: Duration = Duration::from_mins(5);

/// Script that unpacks every package of the folder `$2` into `$1`.
const UNPACK_ALL: &str =
    r#"for package in "$2"/*.deb; do dpkg-deb --extract "$package" "$1" || exit 1; done"#;

/// Where packages put the keys of archives.
const KEYRINGS: &str = "/usr/share/keyrings";

/// What a suite is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Binary packages.
    Binary,
    /// Source packages.
    Source,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Binary => "deb",
            Self::Source => "deb-src",
        }
    }
}

/// A suite of a distribution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suite {
    distribution: Distribution,
    name: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distribution {
    Debian,
    Ubuntu,
}

impl Suite {
    /// A suite of Debian, from the mirror that the machine uses.
    pub(crate) const fn debian(name: &'static str) -> Self {
        Self {
            distribution: Distribution::Debian,
            name,
        }
    }

    /// A suite of Ubuntu.
    pub(crate) const fn ubuntu(name: &'static str) -> Self {
        Self {
            distribution: Distribution::Ubuntu,
            ..Self::debian(name)
        }
    }

    /// Returns the name, such as `bookworm`.
    pub(crate) fn name(self) -> &'static str {
        self.name
    }

    /// Returns what follows the kind in a line of apt's sources: keys, address, name, components.
    /// `None` where there is no apt, no mirror, or no keys.
    pub(super) fn source(self, steps: &Steps) -> Result<Option<String>> {
        let keys = self.keys(steps)?;
        let Some(mirror) = self.mirror().filter(|_| keys.exists()) else {
            return Ok(None);
        };
        let components = match self.distribution {
            Distribution::Debian => "main",
            Distribution::Ubuntu => "main universe",
        };
        let (keys, name) = (keys.display(), self.name);
        Ok(Some(format!(
            "[signed-by={keys}] {mirror} {name} {components}"
        )))
    }

    /// Returns the archive's address, if the machine has one.
    fn mirror(self) -> Option<String> {
        match self.distribution {
            Distribution::Debian => mirror(),
            Distribution::Ubuntu => Some("http://archive.ubuntu.com/ubuntu".to_owned()),
        }
    }

    /// Returns the file with the archive's keys. Debian has a package with those of Ubuntu.
    fn keys(self, steps: &Steps) -> Result<PathBuf> {
        let keys = match self.distribution {
            Distribution::Debian => {
                return Ok(Path::new(KEYRINGS).join("debian-archive-keyring.gpg"));
            }
            Distribution::Ubuntu => Path::new(KEYRINGS).join("ubuntu-archive-keyring.gpg"),
        };
        let debian = Archive::open(steps, Kind::Binary, Self::debian("trixie"))?
            .context("Debian's archive does not answer")?;
        let unpacked = debian.unpack("ubuntu-keyring")?;
        Ok(unpacked.join(keys.strip_prefix("/")?))
    }
}

/// One suite, with an index of its own.
pub(super) struct Archive<'a> {
    steps: &'a Steps,
    suite: Suite,
    folder: PathBuf,
}

impl<'a> Archive<'a> {
    /// Reads the index of a suite. Returns `None` where there is no apt, no mirror, no keys, or no
    /// answer.
    pub(super) fn open(steps: &'a Steps, kind: Kind, suite: Suite) -> Result<Option<Self>> {
        let Some(source) = suite.source(steps)? else {
            return Ok(None);
        };
        let name = format!("{}-{}", kind.word(), suite.name);
        let archive = Self {
            steps,
            suite,
            folder: project::tools().join("apt").join(&name),
        };
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(archive.folder.join(folder))?;
        }
        let line = format!("{} {source}\n", kind.word());
        fs::write(archive.folder.join("sources.list"), line)?;
        let mut update = archive.apt("apt-get");
        let works = steps.works(
            &format!("read the index of {name}"),
            update.arg("update"),
            UPDATE_LIMIT,
        )?;
        Ok(works.then_some(archive))
    }

    /// Returns the upstream version of a package: `1.9.1` of `1.9.1+ds1-1`.
    pub(super) fn version(&self, package: &str) -> Result<String> {
        let mut show = self.apt("apt-cache");
        let shown = command::output(show.args(["show", "--no-all-versions", package]))?;
        let version = shown
            .lines()
            .find_map(|line| line.strip_prefix("Version: "))
            .with_context(|| format!("{} has no {package}", self.suite.name))?;
        Ok(upstream(version).to_owned())
    }

    /// Returns the names of packages that begin with `prefix`.
    pub(super) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = self.apt("apt-cache");
        let listed = command::output(names.args(["pkgnames", prefix]))?;
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// Unpacks a binary package, and returns the folder with its files.
    pub(super) fn unpack(&self, package: &str) -> Result<PathBuf> {
        self.unpack_all(&[package.to_owned()])
    }

    /// Unpacks binary packages into one folder, and returns it.
    pub(super) fn unpack_all(&self, packages: &[String]) -> Result<PathBuf> {
        let files = self.fresh_folder(&packages[0])?;
        let mut download = self.apt("apt-get");
        download.arg("download").args(packages).current_dir(&files);
        let shown = packages.join(", ");
        let what = format!("download {shown} of {}", self.suite.name);
        self.steps.run(&what, &mut download, DOWNLOAD_LIMIT)?;
        let root = files.join("root");
        let mut unpack = Command::new("sh");
        unpack.arg("-c").arg(UNPACK_ALL).arg("sh");
        unpack.arg(&root).arg(&files);
        let what = format!("unpack {shown}");
        self.steps.run(&what, &mut unpack, UNPACK_LIMIT)?;
        Ok(root)
    }

    /// Unpacks binary packages with all that they depend on, and returns the folder with the files,
    /// which can be the root of a process. No script of theirs has run.
    pub(super) fn unpack_root(&self, packages: &[&str]) -> Result<PathBuf> {
        let files = self.fresh_folder(packages[0])?;
        let (root, archives) = (files.join("root"), files.join("archives"));
        fs::create_dir_all(archives.join("partial"))?;
        for folder in ["bin", "sbin", "lib", "lib64"] {
            fs::create_dir_all(root.join("usr").join(folder))?;
            symlink(format!("usr/{folder}"), root.join(folder))?;
        }
        let mut download = self.apt("apt-get");
        let cache = format!("Dir::Cache::Archives={}", archives.display());
        download.args(["install", "--yes", "--download-only", "-o", &cache]);
        download.arg("--no-install-recommends").args(packages);
        let what = format!(
            "download {} of {} and its libraries",
            packages[0], self.suite.name
        );
        self.steps.run(&what, &mut download, DOWNLOAD_LIMIT)?;
        let mut unpack = Command::new("sh");
        unpack.arg("-c").arg(UNPACK_ALL).arg("sh");
        unpack.arg(&root).arg(&archives);
        let what = format!("unpack {} and its libraries", packages[0]);
        self.steps.run(&what, &mut unpack, UNPACK_LIMIT)?;
        Ok(root)
    }

    /// Unpacks a source package with Debian's patches into `folder`.
    pub(super) fn unpack_source(&self, package: &str, folder: &Path) -> Result<()> {
        let files = self.fresh_folder(package)?;
        let mut download = self.apt("apt-get");
        self.steps.run(
            &format!("download the source of {package}"),
            download
                .args(["source", "--download-only", package])
                .current_dir(&files),
            DOWNLOAD_LIMIT,
        )?;
        let description = single(&files, "dsc")?;
        let mut unpack = Command::new("dpkg-source");
        // apt has verified its digest by the signed index.
        unpack.args(["--no-check", "--no-copy", "--extract"]);
        unpack.arg(description).arg(folder);
        let what = format!("unpack the source of {package}");
        self.steps.run(&what, &mut unpack, UNPACK_LIMIT)
    }

    fn fresh_folder(&self, package: &str) -> Result<PathBuf> {
        let files = self.folder.join(package);
        if files.exists() {
            fs::remove_dir_all(&files)?;
        }
        fs::create_dir_all(&files)?;
        Ok(files)
    }

    /// Returns an apt program that reads this suite only.
    fn apt(&self, program: &str) -> Command {
        let mut apt = Command::new(program);
        let path = |name: &str| self.folder.join(name).display().to_string();
        for option in [
            format!("Dir::Etc::sourcelist={}", path("sources.list")),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", path("lists")),
            format!("Dir::Cache={}", path("cache")),
            // The package of that suite, also where an installed one is newer.
            "Dir::State::status=/dev/null".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
        ] {
            apt.args(["-o", &option]);
        }
        apt
    }
}

/// Returns the mirror of the machine's own suite, if the machine is a Debian.
fn mirror() -> Option<String> {
    privilege::find("apt-get")?;
    let format = "$(REPO_URI)";
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", format, "Created-By: Packages"]);
    targets.args(["Origin: Debian", "Label: Debian"]);
    let listed = command::output(&mut targets).ok()?;
    listed.lines().next().map(str::to_owned)
}

/// Returns the only file with this extension in a folder.
fn single(folder: &Path, extension: &str) -> Result<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)?
        .filter_map(|entry| entry.ok().map(|it| it.path()))
        .filter(|path| path.extension().is_some_and(|it| it == extension))
        .collect();
    ensure!(
        found.len() == 1,
        "one .{extension} in {}, not {found:?}",
        folder.display()
    );
    Ok(found.remove(0))
}

/// Returns the version without epoch, repackaging and revision.
fn upstream(version: &str) -> &str {
    let real = ["really", ":"]
        .into_iter()
        .find_map(|mark| version.rsplit_once(mark))
        .map_or(version, |(_, real)| real);
    real.split(['+', '-', '~']).next().unwrap_or(real)
}

/// Sort key of package names by version: `6.1.0-9` is older than `6.1.0-10`.
pub(crate) fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_upstream_version_of_a_package_has_no_epoch_and_no_revision() {
        assert_eq!(upstream("1.9.1+ds1-1"), "1.9.1");
        assert_eq!(upstream("2:28.5.2+dfsg4-5"), "28.5.2");
        assert_eq!(upstream("1.20.5+really1.20.2-1.1+deb12u1"), "1.20.2");
    }

    #[test]
    fn ten_is_newer_than_nine() {
        assert!(
            numbers("linux-image-6.1.0-10-cloud-amd64")
                > numbers("linux-image-6.1.0-9-cloud-amd64")
        );
    }
}
