//! Privileges of the agent's process.

use api::SandboxView;

/// Renders the layers in force, and the capabilities that are left.
pub(crate) fn sandbox(view: &SandboxView) -> String {
    let layers = if view.no_new_privs {
        "no_new_privs"
    } else {
        "off"
    };
    format!("{layers}; capabilities: {}", view.capabilities.join(" "))
}
