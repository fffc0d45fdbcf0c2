//! Which processes of the node a cgroup contains.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// File of every cgroup but the root of the hierarchy.
const NOT_IN_ROOT: &str = "cgroup.type";
/// Age in clock ticks (1/100 s) from which a process counts: commands come and go.
const LEAST_AGE: u64 = 300;
/// Processes whose names are returned.
const NAMED: usize = 3;

/// Returns whether the directory is the root of the cgroup2 hierarchy, not only that of a cgroup
/// namespace.
pub(crate) fn is_root(cgroup: &Path) -> bool {
    !cgroup.join(NOT_IN_ROOT).exists()
}

/// Returns the names of processes that use the network namespace of the calling thread and are not
/// in `cgroup`, some of them. Without this process, kernel threads and those that just started.
/// Empty for a cgroup that is not below `root`, the mounted hierarchy.
pub(crate) fn outside(cgroup: &Path, root: &Path) -> io::Result<BTreeSet<String>> {
    let Ok(below) = cgroup.strip_prefix(root) else {
        return Ok(BTreeSet::new());
    };
    let netns = fs::read_link("/proc/thread-self/ns/net")?;
    let uptime = uptime()?;
    let mut names = BTreeSet::new();
    for entry in fs::read_dir("/proc")?.filter_map(Result::ok) {
        let process = entry.path();
        let is_other = is_process(&process) && !is_self(&process);
        if is_other && is_outside(&process, below, &netns, uptime).unwrap_or(false) {
            names.extend(name(&process));
        }
        if names.len() == NAMED {
            break;
        }
    }
    Ok(names)
}

fn is_process(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_self(process: &Path) -> bool {
    let own = std::process::id().to_string();
    process.file_name().is_some_and(|name| name == own.as_str())
}

/// `None` if the process has ended meanwhile, or is a kernel thread, which has no program.
fn is_outside(process: &Path, below: &Path, netns: &Path, uptime: u64) -> Option<bool> {
    if fs::read_link(process.join("ns/net")).ok()? != netns {
        return Some(false);
    }
    fs::read_link(process.join("exe")).ok()?;
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    let memberships = fs::read_to_string(process.join("cgroup")).ok()?;
    let own = memberships
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))?;
    let age = uptime.saturating_sub(started(&stat)?);
    Some(age >= LEAST_AGE && !Path::new(own).starts_with(below))
}

/// Returns the start of a process in clock ticks since the boot: field 22 of `proc_pid_stat(5)`,
/// counted behind the name, which may contain blanks.
fn started(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// Returns the time since the boot in clock ticks.
fn uptime() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/uptime")?;
    let seconds = text
        .split('.')
        .next()
        .and_then(|text| text.parse::<u64>().ok());
    let seconds = seconds.ok_or_else(|| io::Error::other("/proc/uptime has no number"))?;
    Ok(seconds.saturating_mul(100))
}

/// Returns the name of a process, without control characters.
fn name(process: &Path) -> Option<String> {
    let name = fs::read_to_string(process.join("comm")).ok()?;
    let printable = name
        .trim_end()
        .chars()
        .filter(|symbol| !symbol.is_control());
    Some(printable.collect())
}

/// Returns the cgroup as a path below the mounted hierarchy, without links.
pub(crate) fn resolved(cgroup: &Path) -> PathBuf {
    cgroup.canonicalize().unwrap_or_else(|_| cgroup.to_owned())
}

#[cfg(test)]
mod tests {
    use super::started;

    #[test]
    fn the_start_of_a_process_is_read_behind_its_name() {
        let fields = "S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 8 9";
        assert_eq!(started(&format!("12 (a ) b) {fields}")), Some(4711));
        assert_eq!(started("12 (a) S"), None);
    }
}
