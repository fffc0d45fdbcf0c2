//! The rungs of the test ladder: what each runs, and what came of it.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use cargo_metadata::{Message, Metadata};

use crate::setup::{self, Scope};
use crate::{build, command, dist, metadata, privilege, project, style, tidy};

/// Tests of package e2e that need no binaries: they talk to the BPF machinery, or to the engine.
const BPF_TESTS: [&str; 3] = ["differential", "lives", "packets"];

/// One rung, in the order of cost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rung {
    /// Formatting and tidiness.
    Style,
    /// Everything that needs neither root nor a BPF toolchain.
    Unit,
    /// The kernel crate against a kernel, and the BPF object against its model.
    Netns,
    /// The real binaries in network namespaces.
    E2e,
}

/// What came of one rung.
pub(crate) struct Outcome {
    pub(crate) rung: Rung,
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// False also when the tests did not build.
    pub(crate) good: bool,
    pub(crate) time: Duration,
}

impl Rung {
    /// From the cheapest up.
    pub(crate) const ALL: [Self; 4] = [Self::Style, Self::Unit, Self::Netns, Self::E2e];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Style => "style",
            Self::Unit => "unit",
            Self::Netns => "netns",
            Self::E2e => "e2e",
        }
    }

    /// Runs it; what cannot even start has failed, and says why.
    pub(crate) fn climb(self, filter: &[String]) -> Outcome {
        eprintln!("\n── {} ──", self.name());
        let started = Instant::now();
        let count = self.tests(filter).unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", self.name());
            Count::default()
        });
        Outcome {
            rung: self,
            passed: count.passed,
            failed: count.failed,
            good: count.good,
            time: started.elapsed(),
        }
    }

    fn tests(self, filter: &[String]) -> Result<Count> {
        match self {
            Self::Style => Ok(style_rules()),
            Self::Unit => count(
                Command::new("cargo").args(["test", "--workspace", "--no-fail-fast"]),
                filter,
            ),
            Self::Netns => netns(filter),
            Self::E2e => e2e(filter),
        }
    }
}

/// Tests, as their binaries count them.
#[derive(Default)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    good: bool,
}

impl Count {
    /// Adds what a closing line of a test binary says.
    pub(crate) fn read(&mut self, line: &str) {
        let Some(result) = line.strip_prefix("test result: ") else {
            return;
        };
        for part in result.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let number = words
                .next()
                .and_then(|word| word.parse::<u64>().ok())
                .unwrap_or_default();
            match words.next() {
                Some("passed") => self.passed += number,
                Some("failed") => self.failed += number,
                _ => {}
            }
        }
    }
}

fn style_rules() -> Count {
    let mut count = Count::default();
    for rule in [style::formatted, tidy::run] {
        match rule() {
            Ok(()) => count.passed += 1,
            Err(error) => {
                eprintln!("{error:#}");
                count.failed += 1;
            }
        }
    }
    count.good = count.failed == 0;
    count
}

/// The tests of the netns rung.
fn netns_names(metadata: &Metadata) -> Vec<String> {
    let mut names = metadata::integration_tests(metadata, "kernel");
    names.retain(|name| name.starts_with("netns"));
    let bpf = metadata::integration_tests(metadata, "e2e").into_iter();
    names.extend(bpf.filter(|name| BPF_TESTS.contains(&name.as_str())));
    names
}

/// The tests of the e2e rung.
fn e2e_names(metadata: &Metadata) -> Vec<String> {
    let mut names = metadata::integration_tests(metadata, "e2e");
    names.retain(|name| !BPF_TESTS.contains(&name.as_str()));
    names
}

/// A test binary that needs root, and the folder in which cargo would run it.
pub(crate) struct RootTest {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) folder: PathBuf,
}

/// Builds what both root rungs run, and lists it in their order.
pub(crate) fn root_tests() -> Result<Vec<RootTest>> {
    dist::run(dist::Args { next: true })?;
    let metadata = metadata::load()?;
    let mut names = netns_names(&metadata);
    names.extend(e2e_names(&metadata));
    let mut cargo = rooted(&metadata, &names)?;
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let built = command::output(&mut cargo)?;
    let mut tests: Vec<RootTest> = Message::parse_stream(built.as_bytes())
        .filter_map(|message| match message {
            Ok(Message::CompilerArtifact(it)) if it.target.is_test() => Some(RootTest {
                name: it.target.name,
                program: it.executable?.into(),
                folder: it.manifest_path.parent()?.into(),
            }),
            _ => None,
        })
        .collect();
    let place = |it: &RootTest| names.iter().position(|name| *name == it.name);
    tests.retain(|it| place(it).is_some());
    tests.sort_by_key(place);
    Ok(tests)
}

fn netns(filter: &[String]) -> Result<Count> {
    build::bpf_object(&setup::ensure(Scope::Everything)?)?;
    let metadata = metadata::load()?;
    let mut cargo = rooted(&metadata, &netns_names(&metadata))?;
    cargo.env("VIADUCT_DATAPATH_OBJECT", project::bpf_object());
    count(&mut cargo, filter)
}

fn e2e(filter: &[String]) -> Result<Count> {
    setup::ensure(Scope::Runtimes)?;
    dist::run(dist::Args { next: true })?;
    let metadata = metadata::load()?;
    count(&mut rooted(&metadata, &e2e_names(&metadata))?, filter)
}

/// The integration tests of those names, run as root. The whole workspace is selected, so that what the
/// unit tests have compiled is used again.
fn rooted(metadata: &Metadata, names: &[String]) -> Result<Command> {
    anyhow::ensure!(!names.is_empty(), "there are no such tests");
    let mut cargo = Command::new("cargo");
    cargo
        .args(["test", "--workspace", "--no-fail-fast"])
        .args(["--features", &metadata::root_features(metadata)]);
    for name in names {
        cargo.args(["--test", name]);
    }
    cargo.env("VIADUCT_DIST", project::dist());
    privilege::run_built_as_root(&mut cargo)?;
    Ok(cargo)
}

fn count(cargo: &mut Command, filter: &[String]) -> Result<Count> {
    if !filter.is_empty() {
        cargo.arg("--").args(filter);
    }
    let mut count = Count::default();
    let status = command::follow(cargo, |line| count.read(line))?;
    count.good = status.success();
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_added_up() {
        let mut count = Count::default();
        count.read("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.01s");
        count.read("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s");
        count.read("test planner::attach ... ok");
        assert_eq!((count.passed, count.failed), (15, 2));
    }
}
