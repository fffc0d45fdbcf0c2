//! Peers of the agent's configuration, as doctor finds them.

use planner::NodePreview;
use steps::Observed;

use super::*;
use crate::doctor::report::Check;

const CONFIGURATION: &str =
    "pod-cidr = [\"10.213.0.0/20\"]\npeers-file = \"/run/viaduct/peers.json\"\n";

/// Returns the checks of a peers file with this text, on a node without links.
fn checks(text: Option<&str>) -> Vec<Check> {
    let root = Root::new();
    root.write("etc/viaduct/viaductd.toml", CONFIGURATION);
    if let Some(text) = text {
        root.write("run/viaduct/peers.json", text);
    }
    let (configured, _) = configuration::read(root.files(), "/etc/viaduct/viaductd.toml");
    let preview = NodePreview::new(&configured.intent, Observed::default());
    network::peers(&configured, &preview)
}

#[test]
fn the_peers_file_of_the_configuration_is_read_as_the_agent_reads_it() {
    for (text, words) in [
        (None, "/run/viaduct/peers.json cannot be read"),
        (Some("["), "invalid JSON"),
        (
            Some(r#"[{"name": "b", "prefixes": ["10.1.0.0"]}]"#),
            "peer b: invalid CIDR address",
        ),
        (
            Some(r#"[{"name": "b", "prefixes": ["0.0.0.0/0"]}]"#),
            "cannot be a prefix of pods",
        ),
    ] {
        let checks = checks(text);
        assert_eq!(checks.len(), 1, "{checks:?}");
        assert_eq!(checks[0].name, "peers");
        assert_eq!(checks[0].outcome, Outcome::Warn);
        assert!(checks[0].message.contains(words), "{checks:?}");
    }
    let checks = checks(Some("[]"));
    assert_eq!(checks[0].outcome, Outcome::Ok, "{checks:?}");
}

#[test]
fn what_prevents_routes_to_a_peer_is_a_fault_with_the_agents_word() {
    let checks = checks(Some(
        r#"[{"name": "b", "prefixes": ["10.213.1.0/24"], "addresses": ["192.0.2.2"]}]"#,
    ));
    let conflict = checks
        .iter()
        .find(|check| check.reason.as_deref() == Some(DegradedReason::PeerConflict.word()));
    let message = conflict.map(|check| check.message.as_str());
    assert_eq!(
        message,
        Some("peer b: 10.213.1.0/24 overlaps this node's own subnet 10.213.0.0/20")
    );
}
