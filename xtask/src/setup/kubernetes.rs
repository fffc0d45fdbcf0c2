//! Programs of Kubernetes, built from Debian's source package with Debian's Go, as its
//! `debian/rules` builds others: without modules and without C.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::apt::Apt;
use super::archive::{Archive, Kind, Suite};
use crate::progress::Steps;
use crate::{command, project};

/// The last release of Debian's source package that contains all programs.
const VERSION: &str = "1.20.2";
/// The suite of that package and of the Go that compiles it.
const SUITE: Suite = Suite::debian("bookworm");
const GO: &str = "/usr/lib/go-1.19/bin";
const PACKAGES: [&str; 4] = ["golang-1.19-go", "dpkg-dev", "rsync", "jq"];
/// A library that Kubernetes reads and writes JSON with.
const REFLECTION: &str = "github.com/modern-go/reflect2";
/// The programs of a cluster.
pub(super) const CLUSTER: [&str; 5] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
];
/// Limit of one program on a busy machine; a free one takes two minutes at most.
const BUILD_LIMIT: Duration = Duration::from_mins(40);

/// Builds those of `programs` that are missing, into `target/tools/kubernetes/VERSION`.
pub(super) fn ensure(steps: &Steps, apt: &mut Apt<'_>, programs: &[String]) -> Result<()> {
    let folder = project::tools().join("kubernetes").join(VERSION);
    let missing: Vec<&String> = programs
        .iter()
        .filter(|it| !folder.join(it).exists())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    apt.install("build Kubernetes", &PACKAGES)?;
    let source = source(steps)?;
    renew_reflection(steps, &source)?;
    fs::create_dir_all(&folder)?;
    for program in missing {
        if program == "kube-apiserver" {
            generate_api(steps, &source)?;
        }
        build(steps, &source, program, &folder)?;
    }
    Ok(())
}

/// Returns the folder of the sources, below a GOPATH.
fn source(steps: &Steps) -> Result<PathBuf> {
    let source = work().join("source");
    if !source.join("cmd").exists() {
        let archive =
            Archive::open(steps, Kind::Source, SUITE)?.context("Debian's sources do not come")?;
        if source.exists() {
            fs::remove_dir_all(&source)?;
        }
        fs::create_dir_all(work())?;
        archive.unpack_source("kubernetes", &source)?;
    }
    let package = work().join("go/src/k8s.io");
    fs::create_dir_all(&package)?;
    let link = package.join("kubernetes");
    if !link.exists() {
        symlink(&source, &link)?;
    }
    Ok(link)
}

/// Replaces the vendored reflect2 by Debian's. The old one reads tables that Go has no longer, so
/// the API server would panic at each object in JSON.
fn renew_reflection(steps: &Steps, source: &Path) -> Result<()> {
    let vendored = source.join("vendor").join(REFLECTION);
    if vendored.join("go_above_118.go").exists() {
        return Ok(());
    }
    let archive =
        Archive::open(steps, Kind::Binary, SUITE)?.context("Debian's packages do not come")?;
    let root = archive.unpack("golang-github-modern-go-reflect2-dev")?;
    fs::remove_dir_all(&vendored)?;
    fs::create_dir_all(&vendored)?;
    for file in fs::read_dir(root.join("usr/share/gocode/src").join(REFLECTION))? {
        let file = file?;
        fs::copy(file.path(), vendored.join(file.file_name()))?;
    }
    Ok(())
}

/// Generates the description of the API, which the API server contains.
fn generate_api(steps: &Steps, source: &Path) -> Result<()> {
    let generated = source.join("pkg/generated/openapi/zz_generated.openapi.go");
    if generated.exists() {
        return Ok(());
    }
    let mut make = go_command("make");
    make.arg("gen_openapi").current_dir(source);
    let what = "generate the description of the Kubernetes API";
    steps.run(what, &mut make, BUILD_LIMIT)
}

fn build(steps: &Steps, source: &Path, program: &str, folder: &Path) -> Result<()> {
    let (major, rest) = VERSION.split_once('.').context("a version has numbers")?;
    let minor = rest.split('.').next().unwrap_or_default();
    let package = "k8s.io/kubernetes/vendor/k8s.io/component-base/version";
    let flags = format!(
        "-s -w -X {package}.gitVersion=v{VERSION} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    );
    let draft = folder.join(format!("{program}.new"));
    let mut build = go_command("go");
    build
        // One compiler at a time: other builds share the machine.
        .args(["build", "-p", "1", "-ldflags", &flags, "-o"])
        .arg(&draft)
        .arg(format!("k8s.io/kubernetes/cmd/{program}"))
        .current_dir(source);
    let what = format!("build {program} {VERSION}");
    steps.run(&what, &mut build, BUILD_LIMIT)?;
    let shown = command::output(Command::new(&draft).arg("--version"))?;
    anyhow::ensure!(shown.contains(VERSION), "{program} calls itself {shown}");
    Ok(fs::rename(draft, folder.join(program))?)
}

/// Returns a command that uses Debian's Go and a cache of its own, at low priority.
fn go_command(program: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("nice");
    command
        .args(["-n", "10", program])
        .env("PATH", format!("{GO}:{path}"))
        .env("GOPATH", work().join("go"))
        .env("GOCACHE", work().join("cache"))
        .env("HOME", work())
        .env("GO111MODULE", "off")
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "");
    command
}

/// Returns the folder of sources and object files.
fn work() -> PathBuf {
    project::tools().join("kubernetes-build")
}
