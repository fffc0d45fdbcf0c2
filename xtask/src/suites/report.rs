//! Compares the reports of a suite with the reference's plugins and with Viaduct's.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Tests that Viaduct's plugins do not pass: the suite, texts that the name contains, and what the
/// test requires.
const EXCLUDED: [(&str, &[&str], &str); 7] = [
    (
        "bridge",
        &["ipMasqBackend"],
        "rules of iptables or nftables",
    ),
    ("bridge", &["mac spoof-check"], "rules of nftables"),
    ("firewall", &["iptables rules"], "rules of iptables"),
    ("firewall", &["IptablesAdminChainName"], "rules of iptables"),
    ("bandwidth", &["cmdADD", "with a Veth pair"], QDISCS),
    ("bandwidth", &["does not apply"], QDISCS),
    ("bandwidth", &["multiple host veth interfaces"], QDISCS),
];

const QDISCS: &str = "tbf qdiscs and ifb devices";

/// The state of each test by its name and line: `passed`, `failed`, `skipped`, …
type States = BTreeMap<String, String>;

/// Prints how the tests of a suite ended, and returns the number of those that pass with the
/// reference's plugins, fail with Viaduct's, and are not excluded.
pub(super) fn compare(suite: &str, reference: &Path, ours: &Path) -> Result<usize> {
    let before = states(reference)?;
    let after = states(ours)?;
    let ran: Vec<_> = after.iter().filter(|(_, it)| *it != "skipped").collect();
    let has_passed =
        |states: &States, name: &str| states.get(name).is_some_and(|it| it == "passed");
    let good = ran
        .iter()
        .filter(|(name, _)| has_passed(&after, name))
        .count();
    let neither = ran
        .iter()
        .filter(|(name, _)| !has_passed(&before, name) && !has_passed(&after, name))
        .count();
    println!(
        "{suite}: {} tests, {good} pass with Viaduct's plugins, {neither} with neither",
        ran.len()
    );
    let mut failures = 0;
    for (name, _) in ran {
        if has_passed(&after, name) || !has_passed(&before, name) {
            continue;
        }
        if let Some(required) = excluded(suite, name) {
            println!("  excluded (requires {required}): {name}");
        } else {
            println!("  FAILED: {name}");
            failures += 1;
        }
    }
    Ok(failures)
}

fn excluded(suite: &str, name: &str) -> Option<&'static str> {
    let has = |texts: &[&str]| texts.iter().all(|text| name.contains(text));
    EXCLUDED
        .iter()
        .find(|(of, texts, _)| *of == suite && has(texts))
        .map(|(_, _, required)| *required)
}

fn states(report: &Path) -> Result<States> {
    let text = fs::read_to_string(report).with_context(|| format!("no {}", report.display()))?;
    let suites: Vec<Value> = serde_json::from_str(&text)?;
    let tests = suites
        .iter()
        .filter_map(|suite| suite["SpecReports"].as_array())
        .flatten()
        .filter(|test| test["LeafNodeType"] == "It");
    Ok(tests
        .filter_map(|test| {
            let groups = test["ContainerHierarchyTexts"].as_array();
            let own = &test["LeafNodeText"];
            let parts = groups.into_iter().flatten().chain([own]);
            let words: Vec<&str> = parts.filter_map(Value::as_str).collect();
            let line = &test["LeafNodeLocation"]["LineNumber"];
            let name = format!("{} (line {line})", words.join(" "));
            Some((name, test["State"].as_str()?.to_owned()))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decision 123: also where the version cannot express the result.
    #[test]
    fn tests_of_bridges_are_excluded_in_no_version_for_their_result() {
        for version in ["0.1.0", "0.2.0", "1.1.0"] {
            let name = format!("[{version}] should set the container veth peer state down");
            assert!(excluded("bridge", &name).is_none(), "{name}");
        }
        let vlan = "[0.4.0] (0) configures a bridge with default route and vlanID 100";
        assert!(excluded("bridge", vlan).is_none());
    }

    #[test]
    fn only_tests_about_rules_are_excluded_from_the_firewall_suite() {
        let of = |name| excluded("firewall", name);
        assert!(of("[1.0.0] installs the right iptables rules on the host").is_some());
        assert!(of("[1.0.0] correctly handles a custom IptablesAdminChainName").is_some());
        assert!(of("should allow communication within foo network").is_none());
        assert!(excluded("tuning", "installs the right iptables rules").is_none());
    }
}
