//! Checks of the CNI installation: order, plugins and capabilities of the configurations, and the
//! version of the plugin.

use std::path::{Path, PathBuf};

use api::Status;
use cni::{Installation, InstallationFault};
use model::{DegradedReason, NodeCheck};

use super::report::{Check, Section};

/// Checks the configurations of a directory, and the plugins in `path`.
pub(super) fn section(directory: &Path, path: &[PathBuf], status: Option<&Status>) -> Section {
    let mut checks = match invoke::installation(directory, path) {
        Ok(found) => configurations(directory, &found, status),
        Err(error) => {
            let text = format!("{}: {error}", directory.display());
            vec![Check::warn(NodeCheck::Conflist, text).because(DegradedReason::ConflistUnusable)]
        }
    };
    checks.push(plugin(path));
    Section {
        name: "CNI installation",
        checks,
    }
}

/// Returns the faults of the configurations. Another order is a fault only where the default
/// network is in use, which the file says.
pub(super) fn configurations(
    directory: &Path,
    found: &Installation,
    status: Option<&Status>,
) -> Vec<Check> {
    let directory = directory.display();
    let fault = |fault: &InstallationFault| {
        let text = format!("{directory}: {fault}");
        let check = NodeCheck::Conflist;
        match fault {
            // Lists of bridge and the others are served too, so this need not be a fault.
            InstallationFault::NotConfigured => Check::warn(check, text)
                .because(DegradedReason::ConflistUnusable)
                .with_advice(
                    "Copy Viaduct's configuration to this directory, unless runtimes read another one.",
                ),
            InstallationFault::Shadowed { .. } => {
                Check::fail(check, text).because(DegradedReason::ConflistShadowed)
            }
            InstallationFault::PluginMissing { .. } => {
                Check::fail(check, text).because(DegradedReason::PluginMissing)
            }
            InstallationFault::Invalid { .. } => {
                Check::fail(check, text).because(DegradedReason::ConflistUnusable)
            }
        }
    };
    let mut checks: Vec<Check> = found.faults.iter().map(fault).collect();
    if found.faults.is_empty() {
        let text = format!("{directory}: runtimes find Viaduct's configuration");
        checks.push(Check::ok(NodeCheck::Conflist, text));
    }
    checks.extend(capabilities(&directory.to_string(), found));
    let has_ranges = |status: &Status| {
        let mut networks = status.networks.iter();
        networks.any(|network| network.is_default && !network.pools.is_empty())
    };
    if found.uses_default_network && status.is_some_and(|status| !has_ranges(status)) {
        let text = format!(
            "{directory}: a configuration uses the default network, which has no address range"
        );
        checks.push(Check::fail(NodeCheck::Conflist, text).because(DegradedReason::NoPodCidr));
    }
    checks
}

fn capabilities(directory: &str, found: &Installation) -> Vec<Check> {
    if found.undeclared.is_empty() {
        let text = format!("{directory}: runtimes pass published ports and bandwidth limits");
        let declared = Check::ok(NodeCheck::Capabilities, text);
        return found
            .is_configured
            .then_some(declared)
            .into_iter()
            .collect();
    }
    let undeclared = found.undeclared.iter().map(|(file, capabilities)| {
        let text = format!(
            "{directory}: {file} does not declare {}: runtimes do not pass it",
            capabilities.join(" and ")
        );
        Check::warn(NodeCheck::Capabilities, text)
    });
    undeclared.collect()
}

/// Compares the version of the plugin with that of this program.
pub(super) fn plugin(path: &[PathBuf]) -> Check {
    let Some(program) = invoke::find_plugin("viaduct", path) else {
        let text = "the plugin viaduct is in no directory of plugins";
        return Check::warn(NodeCheck::Plugin, text).because(DegradedReason::PluginMissing);
    };
    let shown = program.display();
    let about = match invoke::plugin_about(&program) {
        Ok(about) => about,
        Err(error) => {
            let text = format!("{shown} cannot be executed: {error}");
            return Check::fail(NodeCheck::Plugin, text);
        }
    };
    let Some(version) = release(&about) else {
        let text = format!("{shown} is no plugin of Viaduct");
        return Check::fail(NodeCheck::Plugin, text);
    };
    let own = env!("CARGO_PKG_VERSION");
    let text = format!("{shown} is of version {version}");
    if version == own {
        Check::ok(NodeCheck::Plugin, text)
    } else {
        Check::warn(
            NodeCheck::Version,
            format!("{text}, and viaductctl of version {own}"),
        )
    }
}

/// Returns the version in `CNI viaduct plugin v1.2.3`.
pub(super) fn release(about: &str) -> Option<&str> {
    let mut words = about.split_whitespace();
    words.find(|word| *word == "viaduct")?;
    words.find(|word| *word == "plugin")?;
    words.next()?.strip_prefix('v')
}
