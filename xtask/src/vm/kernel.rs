//! The kernel of a guest: a Debian package, or a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::progress::Steps;
use crate::{command, project, setup};

const LIMIT: Duration = Duration::from_mins(5);

/// Modules that are loaded before the host's files are mounted.
const FIRST: [&str; 4] = ["virtio_pci", "virtiofs", "overlay", "virtio_net"];

/// A kernel and its modules.
pub(crate) struct Kernel {
    /// The name on the command line.
    pub(crate) name: String,
    /// Path of the image.
    pub(crate) image: PathBuf,
    /// `…/lib/modules/RELEASE`, if it has modules.
    pub(crate) modules: Option<PathBuf>,
    /// The files that a guest sees: those of this machine, or of a distribution of its own.
    pub(crate) files: PathBuf,
}

impl Kernel {
    /// Finds or downloads a kernel. `word` is the path of an image, or a series such as `6.1`: the
    /// newest cloud kernel of that series in Debian, or one of an older release that is in use.
    pub(crate) fn get(word: &str, steps: &Steps) -> Result<Self> {
        let path = Path::new(word);
        if path.is_file() {
            return Ok(Self::of_image(word, path.canonicalize()?));
        }
        let numeric = |c: char| c.is_ascii_digit() || c == '.';
        if !word.chars().all(numeric) || !word.contains('.') {
            bail!("{word} is neither the image of a kernel nor a series of kernels such as 6.1");
        }
        let folder = project::target().join("vm").join(word);
        if !folder.join("boot").is_dir() {
            unpack(word, &folder, steps)?;
        }
        let image = only_entry(&folder.join("boot"), "vmlinuz-")?;
        Ok(Self::of_image(word, image))
    }

    /// Returns the release, such as `6.1.0-56-cloud-amd64`, or the name of an image without one.
    pub(crate) fn release(&self) -> String {
        let file = self.image.file_name().unwrap_or_default().to_string_lossy();
        let release = file.strip_prefix("vmlinuz-").unwrap_or(&file);
        release.to_owned()
    }

    /// Finds the modules where Debian's package puts them, relative to the image.
    fn of_image(name: &str, image: PathBuf) -> Self {
        let file = image.file_name().unwrap_or_default().to_string_lossy();
        let release = file.strip_prefix("vmlinuz-").unwrap_or_default();
        let root = image.parent().and_then(Path::parent);
        let modules = root
            .map(|root| root.join("lib/modules").join(release))
            .filter(|it| !release.is_empty() && it.is_dir());
        Self {
            name: name.to_owned(),
            modules,
            image,
            files: PathBuf::from("/"),
        }
    }

    /// Returns the files of [`FIRST`] and their dependencies, in load order.
    pub(crate) fn first_modules(&self) -> Result<Vec<PathBuf>> {
        let Some(modules) = &self.modules else {
            return Ok(Vec::new());
        };
        let list = modules.join("modules.dep");
        let list =
            fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
        Ok(in_order(&list, &FIRST)
            .into_iter()
            .map(|file| modules.join(file))
            .collect())
    }
}

/// Returns `names` and their dependencies, dependencies first. Built-in modules are left out.
fn in_order(dependencies: &str, names: &[&str]) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    for name in names {
        let file = format!("/{name}.ko");
        let Some((module, needs)) = dependencies
            .lines()
            .filter_map(|line| line.split_once(':'))
            .into_iter()
            .find(|(module, _)| module.ends_with(&file))
        else {
            continue;
        };
        let chain = needs.split_whitespace().rev().chain([module]);
        for module in chain {
            if !order.iter().any(|known| known == module) {
                order.push(module.to_owned());
            }
        }
    }
    order
}

/// Downloads and unpacks the packages of a kernel. Nothing is installed.
fn unpack(series: &str, folder: &Path, steps: &Steps) -> Result<()> {
    if let Some(unpacked) = setup::kernel(steps, series)? {
        index(&unpacked, steps)?;
        fs::create_dir_all(project::target().join("vm"))?;
        return Ok(fs::rename(unpacked, folder)?);
    }
    let package = newest(series)?;
    let partial = folder.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial)?;
    let mut download = Command::new("apt-get");
    download.args(["download", &package]).current_dir(&partial);
    steps.run(&format!("download {package}"), &mut download, LIMIT)?;
    let archive = only_entry(&partial, "linux-image-")?;
    let mut extract = Command::new("dpkg-deb");
    extract.arg("--extract").arg(&archive).arg(&partial);
    steps.run(&format!("unpack {package}"), &mut extract, LIMIT)?;
    fs::remove_file(archive)?;
    index(&partial, steps)?;
    fs::rename(&partial, folder)?;
    Ok(())
}

/// Decompresses the modules and lists them: a guest's initial RAM disk has neither xz nor kmod.
fn index(root: &Path, steps: &Steps) -> Result<()> {
    let modules = root.join("lib/modules");
    let mut expand = Command::new("find");
    expand
        .arg(&modules)
        .args(["-name", "*.ko.xz", "-exec", "xz", "--decompress", "{}", "+"]);
    steps.run("expand modules", &mut expand, LIMIT)?;
    let release = only_entry(&modules, "")?;
    let mut list = Command::new("busybox");
    list.args(["depmod", "-b"]).arg(root);
    list.arg(release.file_name().unwrap_or_default());
    steps.run("list modules", &mut list, LIMIT)
}

/// Returns the name of the newest cloud kernel package of a series.
fn newest(series: &str) -> Result<String> {
    let mut search = Command::new("apt-cache");
    search.args(["search", "--names-only", "^linux-image-.*-cloud-"]);
    let found = command::output(&mut search)?;
    let newest = found
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| is_of(name, series))
        .max_by_key(|name| setup::numbers(name));
    newest
        .map(str::to_owned)
        .with_context(|| format!("apt has no cloud kernel {series}"))
}

/// Whether a package has a kernel of the series: `linux-image-6.1.0-53-cloud-amd64` is of 6.1, no
/// package of 6.12 is. The metapackage, whose name ends with the series, is not.
fn is_of(package: &str, series: &str) -> bool {
    let rest = package.strip_prefix("linux-image-");
    let rest = rest.and_then(|rest| rest.strip_prefix(series));
    rest.is_some_and(|rest| rest.starts_with('.'))
        && !package.ends_with("-dbg")
        && !package.ends_with("-unsigned")
}

fn only_entry(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut names = entries.flatten().map(|entry| entry.path());
    names
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        })
        .with_context(|| format!("there is no {prefix}… in {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_need() {
        let list =
            "a/virtiofs.ko: b/fuse.ko c/ring.ko\nb/fuse.ko:\nc/ring.ko:\nd/pci.ko: c/ring.ko\n";
        assert_eq!(
            in_order(list, &["pci", "virtiofs", "absent"]),
            ["c/ring.ko", "d/pci.ko", "b/fuse.ko", "a/virtiofs.ko"]
        );
    }

    #[test]
    fn a_series_is_not_another_one_that_begins_like_it() {
        assert!(is_of("linux-image-6.1.0-53-cloud-amd64", "6.1"));
        assert!(is_of("linux-image-6.12.107+deb12-cloud-amd64", "6.12"));
        for other in [
            "linux-image-6.12.107+deb12-cloud-amd64",
            "linux-image-6.1.0-53-cloud-amd64-dbg",
            "linux-image-6.1.0-53-cloud-amd64-unsigned",
            "linux-image-6.1-cloud-amd64",
        ] {
            assert!(!is_of(other, "6.1"), "{other}");
        }
    }
}
