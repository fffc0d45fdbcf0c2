//! What the kernel can do, and what is used where it cannot.

use api::{FeatureView, Status};

use super::{degraded, health, row, table, text};

/// One line for each feature; nothing from an agent that does not tell.
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

/// What is wrong with the node, and what its kernel lacks with the kernel's own words for it.
pub(crate) fn doctor(status: &Status) -> String {
    let mut lines = vec![format!("Health: {}", health(&status.degraded))];
    lines.extend(status.degraded.iter().map(degraded));
    lines.push(String::new());
    for feature in &status.features {
        let mark = if feature.available { "has" } else { "lacks" };
        let mut line = format!("This kernel {mark} {}: {}", feature.name, feature.chosen);
        if !feature.reason.is_empty() {
            line = format!("{line} (it says: {})", feature.reason);
        }
        lines.push(line);
    }
    lines.push(String::new());
    lines.join("\n")
}
