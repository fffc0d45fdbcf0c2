//! The rungs of the test ladder: what each builds and runs, and its outcome.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use cargo_metadata::Metadata;

use crate::binaries::{self, TestBinary};
use crate::changed::Reach;
use crate::setup::{self, Scope};
use crate::side_by_side::{self, Conditions};
use crate::{build, command, deny, dist, metadata, package, project, style, tidy};

/// One rung, in the order of cost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rung {
    /// Formatting and tidiness.
    Style,
    /// Licences, sources and advisories of dependencies.
    Dependencies,
    /// Everything that needs neither root nor a BPF toolchain.
    Unit,
    /// The kernel crate against a kernel, and the BPF object against its model.
    Netns,
    /// The real binaries in network namespaces.
    E2e,
    /// The real binaries on nodes of a real Kubernetes. Not part of the ladder: its first run
    /// compiles Kubernetes.
    Cluster,
}

/// Which tests of a rung are run.
pub(crate) struct Selection {
    pub(crate) reach: Reach,
    /// Passed to the test binaries: a part of test names, `--nocapture`, …
    pub(crate) filter: Vec<String>,
}

/// The outcome of one rung.
pub(crate) struct Outcome {
    pub(crate) rung: Rung,
    pub(crate) count: Count,
    pub(crate) time: Duration,
}

impl Rung {
    /// The ladder, from the cheapest up.
    pub(crate) const ALL: [Self; 5] = [
        Self::Style,
        Self::Dependencies,
        Self::Unit,
        Self::Netns,
        Self::E2e,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Style => "style",
            Self::Dependencies => "deny",
            Self::Unit => "unit",
            Self::Netns => "netns",
            Self::E2e => "e2e",
            Self::Cluster => "cluster",
        }
    }

    /// Runs it. A rung that cannot start has failed, and prints the reason.
    pub(crate) fn climb(self, selection: &Selection) -> Outcome {
        eprintln!("\n── {} ──", self.name());
        let started = Instant::now();
        let count = self.tests(selection).unwrap_or_else(|error| {
            eprintln!("{}: {error:#}", self.name());
            Count::default()
        });
        Outcome {
            rung: self,
            count,
            time: started.elapsed(),
        }
    }

    fn tests(self, selection: &Selection) -> Result<Count> {
        match self {
            Self::Style => Ok(style_rules()),
            Self::Dependencies => deny::of_ladder(),
            Self::Unit => unit(selection),
            Self::Netns => netns(selection),
            Self::E2e => e2e(selection),
            Self::Cluster => cluster(selection),
        }
    }
}

/// Mark of a line by which a test reports that it could not run, before its name and the reason
/// (`e2e::skipped`).
pub(crate) const SKIPPED: &str = "skipped: ";

/// Tests, as their binaries count them.
#[derive(Default)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Tests and checks that could not run, each reported with the reason.
    pub(crate) skipped: u64,
    /// Those of them that the next closing line counts as passed.
    uncounted: u64,
    /// Whether all of them passed; false also when they did not build.
    pub(crate) good: bool,
    /// What test binaries printed about their failed tests, each under its title.
    pub(crate) failures: Vec<String>,
}

impl Count {
    /// Nothing has run, and nothing has failed.
    pub(crate) fn of_nothing() -> Self {
        Self {
            good: true,
            ..Self::default()
        }
    }

    /// Adds one check.
    pub(crate) fn add(&mut self, has_passed: bool) {
        *if has_passed {
            &mut self.passed
        } else {
            &mut self.failed
        } += 1;
        self.good &= has_passed;
    }

    /// Adds the tests of another count.
    pub(crate) fn extend(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.good &= other.good;
        self.failures.extend(other.failures.iter().cloned());
    }

    /// Adds the closing line of a test binary.
    pub(crate) fn read(&mut self, line: &str) {
        if line.contains(SKIPPED) {
            self.skipped += 1;
            self.uncounted += 1;
        }
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
                // The binary counts a skipped test as passed.
                Some("passed") => {
                    self.passed += number.saturating_sub(std::mem::take(&mut self.uncounted));
                }
                Some("failed") => self.failed += number,
                _ => {}
            }
        }
    }
}

fn style_rules() -> Count {
    let mut count = Count::of_nothing();
    for rule in [style::formatted, tidy::check] {
        let checked = rule().inspect_err(|error| eprintln!("{error:#}"));
        count.add(checked.is_ok());
    }
    count
}

fn unit(selection: &Selection) -> Result<Count> {
    let mut tests = binaries::unit()?;
    // Other files than those of the default build: their names have another hash.
    tests.extend(binaries::unit_with_traces()?);
    tests.retain(|it| selection.reach.has_package(&it.package));
    let conditions = Conditions {
        as_root: false,
        variables: &[],
        arguments: &selection.filter,
    };
    let mut count = side_by_side::run(tests, &conditions)?;
    if selection.reach == Reach::Everything {
        // Examples in documentation are compiled by rustdoc, and have no binary.
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--quiet", "--workspace", "--doc"]);
        let status = command::follow(&mut cargo, |line| count.read(line))?;
        count.good &= status.success();
    }
    Ok(count)
}

fn netns(selection: &Selection) -> Result<Count> {
    let metadata = metadata::load()?;
    let mut names = binaries::netns_names(&metadata);
    names.retain(|name| {
        let package = if name.starts_with("netns") {
            "kernel"
        } else {
            "e2e"
        };
        selection.reach.has_root_test(package, name, true)
    });
    if names.is_empty() {
        return Ok(Count::of_nothing());
    }
    build::bpf_object(&setup::ensure(Scope::Everything)?)?;
    as_root(binaries::rooted(&metadata, &names)?, selection)
}

fn e2e(selection: &Selection) -> Result<Count> {
    let metadata = metadata::load()?;
    let mut names = binaries::e2e_names(&metadata);
    names.retain(|name| selection.reach.has_root_test("e2e", name, false));
    if names.is_empty() {
        return Ok(Count::of_nothing());
    }
    setup::ensure(Scope::Runtimes)?;
    dist::run(dist::Args {
        next: true,
        ..dist::Args::default()
    })?;
    let part = selection.filter.first();
    let installs_packages =
        needs_packages(&names) && part.is_none_or(|part| part.contains("package"));
    let mut count = if installs_packages {
        package::of_ladder()?
    } else {
        Count::of_nothing()
    };
    count.extend(&as_root(binaries::rooted(&metadata, &names)?, selection)?);
    Ok(count)
}

fn cluster(selection: &Selection) -> Result<Count> {
    let mut names = binaries::cluster_names();
    names.retain(|name| selection.reach.has_root_test("e2e", name, false));
    if names.is_empty() {
        return Ok(Count::of_nothing());
    }
    setup::ensure(Scope::Everything)?;
    setup::ensure_cluster()?;
    dist::run(dist::Args::default())?;
    // The image of the `DaemonSet`.
    let mut count = package::of_ladder()?;
    let tests = binaries::rooted(&metadata::load()?, &names)?;
    count.extend(&as_root(tests, selection)?);
    Ok(count)
}

/// The integration tests that need the packages. Each name of their tests that does has the word.
const PACKAGES: [&str; 3] = ["guides", "oci_image", "packages"];

fn needs_packages(names: &[String]) -> bool {
    names.iter().any(|name| PACKAGES.contains(&&**name))
}

fn as_root(tests: Vec<TestBinary>, selection: &Selection) -> Result<Count> {
    let variables = [
        ("VIADUCT_DIST", project::dist()),
        ("VIADUCT_BPF_OBJECT", project::bpf_object()),
        ("VIADUCT_TOOLS", project::tools()),
    ];
    let conditions = Conditions {
        as_root: true,
        variables: &variables,
        arguments: &selection.filter,
    };
    side_by_side::run(tests, &conditions)
}

/// Builds those of the root rungs' tests that are named, and what they need.
pub(crate) fn root_tests(metadata: &Metadata, names: &[String]) -> Result<Vec<TestBinary>> {
    dist::run(dist::Args {
        next: true,
        ..dist::Args::default()
    })?;
    if needs_packages(names) {
        package::of_ladder()?;
    }
    binaries::rooted(metadata, names)
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

    #[test]
    fn one_failed_check_makes_the_count_bad() {
        let mut count = Count::of_nothing();
        count.add(true);
        assert!(count.good);
        count.add(false);
        count.add(true);
        assert_eq!((count.passed, count.failed, count.good), (2, 1, false));
    }

    #[test]
    fn a_skipped_test_is_not_counted_as_passed() {
        let mut count = Count::default();
        count.read("skipped: a_limit_is_kept: BPF timers");
        count.read("test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s");
        count.read("test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s");
        assert_eq!((count.passed, count.skipped), (5, 1));
    }
}
