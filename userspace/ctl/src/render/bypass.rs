//! The lines of the status about the bypass of bridge and netfilter.

use api::{BypassView, OffloadView};

use super::line;

/// Whether packets bypass them, how many flows do beside rules, and which rules prevent it.
pub(super) fn bypass(text: &mut String, view: &BypassView) {
    let active = if view.active { "active" } else { "not active" };
    line(text, "Bypass", format!("{active} ({})", view.mode));
    if view.offload.active {
        let OffloadView {
            offloaded,
            translated,
            unreplied,
            ..
        } = view.offload;
        line(
            text,
            "",
            format!(
                "offload beside rules: {offloaded} flow directions bypass them, {translated} of \
                 them translated by netfilter, {unreplied} without a reply"
            ),
        );
        for (reason, count) in &view.offload.on_stack {
            line(
                text,
                "",
                format!("on the stack, {reason}: {count} flow directions"),
            );
        }
    }
    for rule in &view.offload.rules {
        line(text, "", format!("no offload, {rule}"));
    }
    let others = view.offload.unreplied_rules.iter();
    for rule in others.filter(|rule| !view.offload.rules.contains(rule)) {
        line(
            text,
            "",
            format!("no offload of flows without a reply, {rule}"),
        );
    }
    for rules in &view.rules {
        line(text, "", format!("foreign rules, {rules}"));
    }
}

/// A node beside rules, of which one needs each new packet.
#[cfg(test)]
pub(super) fn example() -> BypassView {
    BypassView {
        mode: "auto".to_owned(),
        active: false,
        offload: OffloadView {
            active: true,
            offloaded: 12,
            translated: 4,
            unreplied: 2,
            on_stack: [("not established".to_owned(), 3)].into(),
            rules: vec![],
            unreplied_rules: vec![
                "nftables: table inet filter, chain forward, rule 2: limit needs every packet"
                    .to_owned(),
            ],
        },
        rules: vec!["nftables: chain forward of table inet filter".to_owned()],
    }
}
