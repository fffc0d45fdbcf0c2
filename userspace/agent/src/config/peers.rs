//! Parser of peers: a JSON list becomes a validated one, completely or not at all.

use anyhow::{Context as _, Result};
use api::PeerSetting;
use model::Peers;

/// Parses the text of a file: a JSON list of [`PeerSetting`].
pub(crate) fn parse(text: &str) -> Result<Peers> {
    let settings: Vec<PeerSetting> = serde_json::from_str(text).context("invalid JSON")?;
    validate(&settings)
}

/// Validates a list. Host bits of prefixes are ignored. Errors name the peer.
pub(crate) fn validate(settings: &[PeerSetting]) -> Result<Peers> {
    let texts = settings
        .iter()
        .map(|it| (&*it.name, &*it.prefixes, &*it.addresses));
    Ok(Peers::parse(texts)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_peers_is_parsed_and_unknown_fields_are_ignored() {
        let text = r#"[
            {"name": "a", "prefixes": ["10.1.0.9/24"], "addresses": ["192.0.2.1", "2001:db8::1"]},
            {"name": "b", "since": 7}
        ]"#;
        assert_eq!(
            parse(text).unwrap().to_string(),
            "a 10.1.0.0/24 192.0.2.1,2001:db8::1\nb  \n"
        );
        assert_eq!(parse("[]").unwrap(), Peers::default());
    }

    #[test]
    fn an_invalid_peer_refuses_the_list_and_is_named() {
        let long = r#"[{"name": "good"}, {"name": "bad", "prefixes": ["10.1.0.0"]}]"#;
        for (text, words) in [
            ("", "invalid JSON"),
            (r#"[{"name": "a""#, "invalid JSON"),
            (long, "peer bad: invalid CIDR address"),
            (r#"[{"name": "a b"}]"#, "a b"),
            (r#"[{"name": "a", "addresses": ["x"]}]"#, "peer a: \"x\""),
            (
                r#"[{"name": "a", "prefixes": ["0.0.0.0/0"]}]"#,
                "peer a: 0.0.0.0/0",
            ),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
