//! Kernel features: whether the kernel supports each, and what the agent uses.

use api::FeatureView;

use super::{row, table, text};

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
