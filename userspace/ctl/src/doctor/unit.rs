//! The agent's unit, as the files of systemd and its cgroup show it.

use std::fs;
use std::path::Path;

use model::{NodeCheck, printable};

use super::files::Files;
use super::report::Check;

/// Name of the agent's unit.
const UNIT: &str = "viaductd.service";
/// Directory that exists where systemd manages the services.
const SYSTEMD: &str = "run/systemd/system";
/// Directory of the agent's state in the unit (`RuntimeDirectory=`).
const RUNTIME_DIRECTORY: &str = "run/viaduct";
/// Directories of units, by precedence (`systemd.unit(5)`).
const DIRECTORIES: [&str; 5] = [
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];
/// Where the cgroup of the unit is, in each layout of the hierarchies.
const CGROUPS: [&str; 3] = [
    "sys/fs/cgroup/system.slice",
    "sys/fs/cgroup/unified/system.slice",
    "sys/fs/cgroup/systemd/system.slice",
];

/// Checks the unit; `None` where systemd does not manage the services.
pub(super) fn check(files: Files<'_>, serves: bool) -> Option<Check> {
    if !files.exists(SYSTEMD) {
        return None;
    }
    let Some(file) = file(files) else {
        return Some(Check::info(
            NodeCheck::Unit,
            format!("{UNIT} is not installed"),
        ));
    };
    let unit = format!("{UNIT} ({file})");
    if is_masked(files, &file) {
        let advice = "Allow systemd to start it with `systemctl unmask viaductd`.";
        let text = format!("{unit} is masked: it cannot be started");
        return Some(Check::warn(NodeCheck::Unit, text).with_advice(advice));
    }
    let runs = runs(files);
    Some(match (is_enabled(files), runs) {
        (true, true) => Check::ok(NodeCheck::Unit, format!("{unit} is enabled and runs")),
        (true, false) if serves => {
            let text = format!("{unit} is enabled, and the agent was started without it");
            Check::info(NodeCheck::Unit, text)
        }
        (true, false) => {
            let why = match last_failure(files) {
                Some(reason) => format!("it has failed: {reason}"),
                None => "it was stopped, or killed".to_owned(),
            };
            let text = format!("{unit} is enabled, but does not run: {why}");
            Check::warn(NodeCheck::Unit, text)
        }
        (false, runs) => {
            let state = if runs { "runs" } else { "does not run" };
            let text =
                format!("{unit} is not enabled: systemd does not start it at boot; it {state} now");
            let advice = "Enable it with `systemctl enable --now viaductd`.";
            Check::warn(NodeCheck::Unit, text).with_advice(advice)
        }
    })
}

/// Returns the error that ended the unit's last agent. An agent that serves removes it.
fn last_failure(files: Files<'_>) -> Option<String> {
    let reason = files.read(&format!("{RUNTIME_DIRECTORY}/{}", api::LAST_FAILURE))?;
    (!reason.is_empty()).then(|| printable(&reason).into_owned())
}

/// Returns the maximum of open files that the unit sets: `LimitNOFILE=` of its file and drop-ins,
/// of which the last one applies. `None` without one.
pub(super) fn file_limit(files: Files<'_>) -> Option<u64> {
    let unit = files.read(&file(files)?)?;
    let mut texts = vec![unit];
    // systemd sorts drop-ins of all directories by name.
    let mut drop_ins: Vec<(String, String)> = DIRECTORIES
        .into_iter()
        .map(|directory| format!("{directory}/{UNIT}.d"))
        .flat_map(|directory| {
            let names = files.names(&directory).into_iter();
            names.map(move |name| (name.clone(), format!("{directory}/{name}")))
        })
        .filter(|(name, _)| has_extension(name, &["conf"]))
        .collect();
    drop_ins.sort();
    texts.extend(drop_ins.iter().filter_map(|(_, file)| files.read(file)));
    let limit = |line: &str| {
        let value = line.trim().strip_prefix("LimitNOFILE=")?;
        // Soft and hard limit; the agent raises the former to the latter.
        number(value.rsplit(':').next().unwrap_or(value).trim())
    };
    texts
        .iter()
        .flat_map(|text| text.lines())
        .filter_map(limit)
        .next_back()
}

/// Parses a limit of resources.
pub(super) fn number(text: &str) -> Option<u64> {
    match text {
        "infinity" | "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// Returns the path of the unit's file.
fn file(files: Files<'_>) -> Option<String> {
    let paths = DIRECTORIES.map(|directory| format!("/{directory}/{UNIT}"));
    paths.into_iter().find(|path| files.exists(path))
}

fn is_masked(files: Files<'_>, file: &str) -> bool {
    let target = fs::read_link(files.path(file));
    target.is_ok_and(|target| target.ends_with("dev/null"))
}

/// Whether a target or another unit wants or requires it.
fn is_enabled(files: Files<'_>) -> bool {
    let has_link =
        |directory: &str, name: &str| files.exists(&format!("{directory}/{name}/{UNIT}"));
    DIRECTORIES.into_iter().any(|directory| {
        let mut names = files.names(directory).into_iter();
        names.any(|name| has_extension(&name, &["wants", "requires"]) && has_link(directory, &name))
    })
}

/// Whether a process runs in the unit's cgroup.
fn runs(files: Files<'_>) -> bool {
    let processes = |directory: &str| files.read(&format!("{directory}/{UNIT}/cgroup.procs"));
    let mut found = CGROUPS.into_iter().filter_map(processes);
    found.any(|processes| !processes.is_empty())
}

fn has_extension(name: &str, extensions: &[&str]) -> bool {
    let found = Path::new(name).extension().and_then(|found| found.to_str());
    found.is_some_and(|found| extensions.contains(&found))
}
