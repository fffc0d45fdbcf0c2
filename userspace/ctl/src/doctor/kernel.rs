//! Checks of the kernel that need neither an agent nor root: version, build and modules.

use api::FeatureView;
use model::NodeCheck;

use super::files::Files;
use super::report::{Check, Outcome, Section};

/// Oldest version that is tested.
const TESTED: (u32, u32) = (5, 15);

/// Options of the kernel's build without which the datapath cannot be attached.
const REQUIRED: [&str; 8] = [
    "BPF_SYSCALL",
    "NET_CLS_ACT",
    "NET_CLS_BPF",
    "NET_SCH_INGRESS",
    "BRIDGE",
    "VETH",
    "CGROUPS",
    "CGROUP_BPF",
];

/// Checks the running kernel; `features` are those that the agent has probed.
pub(super) fn section(files: Files<'_>, features: &[FeatureView]) -> Section {
    let release = files.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let config = config(files, &release);
    let mut checks = vec![version(&release), build(files, config.as_deref())];
    checks.extend(modules(files, &release, config.as_deref()));
    checks.extend(jit(files));
    checks.extend(features.iter().map(feature));
    Section {
        name: "kernel",
        checks,
    }
}

fn version(release: &str) -> Check {
    let mut numbers = release
        .split(|symbol: char| !symbol.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= TESTED {
        Check::ok(NodeCheck::KernelVersion, format!("Linux {release}"))
    } else {
        let text = format!("Linux {release} is older than the tested versions");
        Check::warn(NodeCheck::KernelVersion, text)
    }
}

/// Returns the configuration that the kernel was built with, where the distribution installs it.
fn config(files: Files<'_>, release: &str) -> Option<String> {
    let places = [
        format!("boot/config-{release}"),
        format!("lib/modules/{release}/config"),
    ];
    places.iter().find_map(|place| files.read(place))
}

/// Checks the options of the build. Without its configuration, the sysctl that comes with `bpf` is
/// checked only.
fn build(files: Files<'_>, config: Option<&str>) -> Check {
    if !files.exists("proc/sys/kernel/unprivileged_bpf_disabled") {
        let text = "the kernel has no system call bpf (CONFIG_BPF_SYSCALL): the agent cannot start";
        return Check::fail(NodeCheck::KernelConfig, text);
    }
    let Some(config) = config else {
        let text = "the kernel has the system call bpf; its configuration is not installed";
        return Check::ok(NodeCheck::KernelConfig, text);
    };
    let is_set = |option: &str| {
        let value = |line: &str| {
            let (name, value) = line.strip_prefix("CONFIG_")?.split_once('=')?;
            (name == option).then(|| value.to_owned())
        };
        let value = config.lines().find_map(value);
        value.is_some_and(|value| ["y", "m"].contains(&value.as_str()))
    };
    let missing: Vec<String> = REQUIRED
        .into_iter()
        .filter(|option| !is_set(option))
        .map(|option| format!("CONFIG_{option}"))
        .collect();
    if missing.is_empty() {
        let text = "the kernel is built with all options that the datapath needs";
        Check::ok(NodeCheck::KernelConfig, text)
    } else {
        let text = format!("the kernel is built without {}", missing.join(", "));
        Check::fail(NodeCheck::KernelConfig, text)
    }
}

/// Checks the directory of modules, where the kernel has needed modules that are not loaded yet.
fn modules(files: Files<'_>, release: &str, config: Option<&str>) -> Option<Check> {
    let is_module = |option: &str| {
        let line = format!("CONFIG_{option}=m");
        config.is_some_and(|config| config.lines().any(|it| it == line))
    };
    let needed = [("BRIDGE", "bridge"), ("VETH", "veth")];
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|(option, module)| {
            is_module(option) && !files.exists(&format!("sys/module/{module}"))
        })
        .map(|(_, module)| module)
        .collect();
    if missing.is_empty() {
        return None;
    }
    let directory = format!("/lib/modules/{release}");
    let names = missing.join(", ");
    Some(if files.exists(&directory) {
        Check::ok(
            NodeCheck::KernelModules,
            format!("{directory} has the modules {names}"),
        )
    } else {
        let text = format!("{directory} does not exist: the modules {names} cannot be loaded");
        Check::fail(NodeCheck::KernelModules, text)
    })
}

fn jit(files: Files<'_>) -> Option<Check> {
    Some(
        match files.read("proc/sys/net/core/bpf_jit_enable")?.as_str() {
            "0" => {
                let text = "net.core.bpf_jit_enable is 0: the kernel interprets eBPF programs, which takes several times as long";
                Check::warn(NodeCheck::BpfJit, text)
            }
            _ => Check::ok(NodeCheck::BpfJit, "eBPF programs are compiled"),
        },
    )
}

fn feature(feature: &FeatureView) -> Check {
    let FeatureView {
        name,
        available,
        chosen,
        reason,
    } = feature;
    let text = match (available, reason.as_str()) {
        (true, _) => format!("available: {chosen}"),
        (false, "") => format!("missing: {chosen}"),
        (false, reason) => format!("missing ({reason}): {chosen}"),
    };
    Check {
        name: name.clone(),
        reason: None,
        outcome: Outcome::Info,
        message: format!("Kernel feature {text}"),
        advice: String::new(),
    }
}
