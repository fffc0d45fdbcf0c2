//! How bandwidth limits are enforced.

use api::ShaperView;

/// Renders the mechanism in use, and why it is not a better one.
pub(super) fn shaper(view: &ShaperView) -> String {
    let mut why = view.mode.clone();
    if !view.paces {
        why += ", no socket pacing";
    }
    if !view.heeds_departure {
        why += ", no link with fq qdisc";
    }
    format!("{} ({why})", view.chosen)
}
