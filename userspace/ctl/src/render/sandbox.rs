//! Privileges of the agent's process.

use api::SandboxView;

/// Renders the layers in force, and the capabilities that are left.
pub(crate) fn sandbox(view: &SandboxView) -> String {
    let layers = match (view.no_new_privs, view.seccomp) {
        (true, true) => "no_new_privs, seccomp",
        (true, false) => "no_new_privs",
        (false, _) => "off",
    };
    format!("{layers}; capabilities: {}", view.capabilities.join(" "))
}
