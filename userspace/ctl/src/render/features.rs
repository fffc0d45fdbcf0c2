//! Kernel features: whether the kernel supports each, and what the agent uses.

use api::{FeatureView, Status};

use super::{degraded, health, row, table, text};

/// Renders features, one line each; empty for an agent that does not report features.
pub(super) fn features(features: &[FeatureView]) -> String {
    if features.is_empty() {
        return String::new();
    }
    let rows = features.iter().map(|feature| {
        let known = if feature.available { "yes" } else { "no" };
        row([text(&feature.name), text(known), text(&feature.chosen)])
    });
    format!("\n{}", table(&["FEATURE", "KERNEL", "USED"], rows))
}

/// Renders the diagnosis: degradations, then each kernel feature, with the kernel's error if
/// missing.
pub(crate) fn doctor(status: &Status) -> String {
    let mut lines = vec![format!("Health: {}", health(&status.degraded))];
    lines.extend(status.degraded.iter().map(degraded));
    lines.push(String::new());
    for feature in &status.features {
        let (name, chosen, reason) = (&feature.name, &feature.chosen, &feature.reason);
        lines.push(match (feature.available, reason.as_str()) {
            (true, _) => format!("Kernel feature {name}: available: {chosen}"),
            (false, "") => format!("Kernel feature {name}: missing: {chosen}"),
            (false, reason) => format!("Kernel feature {name}: missing ({reason}): {chosen}"),
        });
    }
    lines.push(String::new());
    lines.join("\n")
}
