//! Which tests a change can reach: the packages that were changed, and all that depend on them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use cargo_metadata::Metadata;

use crate::{command, project};

/// The packages whose programs end-to-end tests install and run.
const INSTALLED: [&str; 4] = ["agent", "ctl", "datapath", "plugin"];
/// Files that every package is built by.
const BUILT_BY: [&str; 4] = ["Cargo.toml", "Cargo.lock", ".cargo", ".ci"];
/// The package of the end-to-end tests, and its folder.
const E2E: (&str, &str) = ("e2e", "tests");

/// A member of the workspace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Member {
    /// Relative to the root.
    pub(crate) folder: String,
    /// Other members that it depends on, for tests as well.
    pub(crate) dependencies: BTreeSet<String>,
}

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Every test.
    Everything,
    /// Some tests.
    Some {
        /// Packages whose unit tests, and tests that need root, are run.
        packages: BTreeSet<String>,
        /// End-to-end tests that were changed themselves.
        tests: BTreeSet<String>,
        /// All end-to-end tests: something that they install was changed.
        end_to_end: bool,
    },
}

impl Reach {
    /// Whether the unit tests of a package are run.
    pub(crate) fn has_package(&self, name: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Some { packages, .. } => packages.contains(name),
        }
    }

    /// Whether a test of package `package` that needs root is run.
    pub(crate) fn has_root_test(&self, package: &str, test: &str, is_bpf: bool) -> bool {
        match self {
            Self::Everything => true,
            Self::Some {
                packages,
                tests,
                end_to_end,
            } => {
                tests.contains(test)
                    || *end_to_end
                    || (packages.contains(package) && (package != E2E.0 || is_bpf))
            }
        }
    }
}

/// What the working tree's difference from `base` reaches, untracked files included.
pub(crate) fn since(base: &str, metadata: &Metadata) -> Result<Reach> {
    let mut paths = command::output(Command::new("git").args(["diff", "--name-only", base]))?;
    let others = ["ls-files", "--others", "--exclude-standard"];
    paths += &command::output(Command::new("git").args(others))?;
    let paths: BTreeSet<&str> = paths.lines().collect();
    Ok(reach(&paths, &members(metadata)))
}

fn members(metadata: &Metadata) -> BTreeMap<String, Member> {
    let packages = metadata.workspace_packages();
    let names: BTreeSet<&str> = packages.iter().map(|it| it.name.as_str()).collect();
    packages
        .iter()
        .map(|package| {
            let folder = package
                .manifest_path
                .parent()
                .map_or_else(String::new, |it| project::short(Path::new(it.as_str())));
            let dependencies = package
                .dependencies
                .iter()
                .filter(|it| names.contains(it.name.as_str()))
                .map(|it| it.name.clone())
                .collect();
            (
                package.name.to_string(),
                Member {
                    folder,
                    dependencies,
                },
            )
        })
        .collect()
}

/// What changes of `paths` reach.
fn reach(paths: &BTreeSet<&str>, members: &BTreeMap<String, Member>) -> Reach {
    let mut changed = BTreeSet::new();
    let mut tests = BTreeSet::new();
    let mut end_to_end = false;
    for path in paths {
        if BUILT_BY
            .iter()
            .any(|it| *path == *it || path.starts_with(&format!("{it}/")))
        {
            return Reach::Everything;
        }
        if Path::new(path).extension().is_some_and(|it| it == "md") {
            continue;
        }
        if let Some(rest) = path.strip_prefix("tests/tests/") {
            let name = rest.split(['/', '.']).next().unwrap_or_default();
            tests.insert(name.to_owned());
            continue;
        }
        end_to_end |= path.starts_with("xtask/assets/")
            || (path.starts_with("tests/src/") && !path.starts_with("tests/src/bin/"));
        changed.extend(
            members
                .iter()
                .filter(|(_, member)| path.starts_with(&format!("{}/", member.folder)))
                .map(|(name, _)| name.clone()),
        );
    }
    let packages = dependants(changed, members);
    end_to_end |= INSTALLED.iter().any(|it| packages.contains(*it));
    Reach::Some {
        packages,
        tests,
        end_to_end,
    }
}

/// Adds all that depend on what was changed. The BPF object is loaded by the kernel crate's tests,
/// which no dependency says.
fn dependants(
    mut reached: BTreeSet<String>,
    members: &BTreeMap<String, Member>,
) -> BTreeSet<String> {
    loop {
        let mut more: BTreeSet<String> = members
            .iter()
            .filter(|(name, _)| !reached.contains(*name))
            .filter(|(_, member)| !member.dependencies.is_disjoint(&reached))
            .map(|(name, _)| name.clone())
            .collect();
        if reached.contains("datapath") && !reached.contains("kernel") {
            more.insert("kernel".to_owned());
        }
        if more.is_empty() {
            return reached;
        }
        reached.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace() -> BTreeMap<String, Member> {
        let member = |folder: &str, dependencies: &[&str]| Member {
            folder: folder.to_owned(),
            dependencies: dependencies.iter().map(|&it| it.to_owned()).collect(),
        };
        BTreeMap::from([
            ("abi".to_owned(), member("ebpf-programs/abi", &[])),
            (
                "datapath".to_owned(),
                member("ebpf-programs/datapath", &["abi"]),
            ),
            ("cni".to_owned(), member("userspace/cni", &[])),
            ("ctl".to_owned(), member("userspace/ctl", &["cni"])),
            ("kernel".to_owned(), member("userspace/kernel", &["abi"])),
            ("crash".to_owned(), member("userspace/crash", &[])),
            ("e2e".to_owned(), member("tests", &["abi", "kernel"])),
            ("xtask".to_owned(), member("xtask", &["abi"])),
        ])
    }

    fn reached(paths: &[&str]) -> Reach {
        reach(&paths.iter().copied().collect(), &workspace())
    }

    fn some(packages: &[&str], tests: &[&str], end_to_end: bool) -> Reach {
        Reach::Some {
            packages: packages.iter().map(|&it| it.to_owned()).collect(),
            tests: tests.iter().map(|&it| it.to_owned()).collect(),
            end_to_end,
        }
    }

    #[test]
    fn documents_reach_no_test() {
        assert_eq!(
            reached(&["README.md", "docs/cni.md"]),
            some(&[], &[], false)
        );
    }

    #[test]
    fn a_change_reaches_all_that_depend_on_it() {
        assert_eq!(
            reached(&["userspace/cni/src/lib.rs"]),
            some(&["cni", "ctl"], &[], true)
        );
        assert_eq!(
            reached(&["userspace/crash/src/lib.rs"]),
            some(&["crash"], &[], false)
        );
    }

    #[test]
    fn the_bpf_object_reaches_the_kernel_crates_tests() {
        assert_eq!(
            reached(&["ebpf-programs/datapath/src/main.rs"]),
            some(&["datapath", "e2e", "kernel"], &[], true)
        );
    }

    #[test]
    fn a_changed_end_to_end_test_reaches_itself_alone() {
        let reach = reached(&["tests/tests/nat_ports.rs", "tests/tests/crash/pods.rs"]);
        assert_eq!(reach, some(&[], &["crash", "nat_ports"], false));
        assert!(reach.has_root_test("e2e", "crash", false));
        assert!(!reach.has_root_test("e2e", "cni", false));
    }

    #[test]
    fn the_harness_reaches_every_end_to_end_test_and_the_benchmarks_only_their_own() {
        assert_eq!(reached(&["tests/src/wait.rs"]), some(&["e2e"], &[], true));
        let bench = reached(&["tests/src/bin/bench/main.rs"]);
        assert_eq!(bench, some(&["e2e"], &[], false));
        assert!(bench.has_package("e2e") && !bench.has_root_test("e2e", "cni", false));
    }

    #[test]
    fn what_every_package_is_built_by_reaches_everything() {
        assert_eq!(reached(&["Cargo.lock"]), Reach::Everything);
        assert_eq!(reached(&[".cargo/config.toml"]), Reach::Everything);
    }
}
