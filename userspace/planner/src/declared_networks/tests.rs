//! Tests of the lists of bridges and subnets.

use super::*;
use crate::testing;

fn patterns(list: &[&str]) -> BTreeSet<NamePattern> {
    list.iter().map(|text| text.parse().unwrap()).collect()
}

fn prefixes(list: &[&str]) -> BTreeSet<Cidr> {
    list.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn a_star_in_a_pattern_stands_for_any_text() {
    for (pattern, name, expected) in [
        ("cni0", "cni0", true),
        ("cni0", "cni01", false),
        ("cni*", "cni", true),
        ("cni*", "cni12", true),
        ("cni*", "xcni1", false),
        ("*-br", "tenant-br", true),
        ("*-br", "tenant-br0", false),
        ("t*-*b", "t1-xb", true),
        ("t*-*b", "t1xb", false),
        ("a*a", "a", false),
        ("a*a", "aa", true),
        ("a*b*b", "ab", false),
        ("*", "anything", true),
        ("**", "", true),
    ] {
        let parsed: NamePattern = pattern.parse().unwrap();
        assert_eq!(parsed.matches(name), expected, "{pattern} {name}");
    }
    for wrong in ["", "a/b", "a b", "a:1", &"x".repeat(33)] {
        let error = wrong.parse::<NamePattern>().unwrap_err();
        assert!(error.to_string().contains("pattern"), "{error}");
    }
}

#[test]
fn a_declared_network_may_use_listed_bridges_and_subnets_only() {
    let network = testing::network_of("tenant", "cni7", &["10.7.0.0/24"]);
    let check = |bridges, subnets| DeclaredNetworks { bridges, subnets }.check(&network);
    let bridge = network.bridge.as_str();
    let own = &[bridge][..];
    assert_eq!(check(None, None), Ok(()));
    assert_eq!(check(Some(patterns(own)), None), Ok(()));
    assert_eq!(
        check(None, Some(prefixes(&["10.0.0.0/8", "fd00::/8"]))),
        Ok(())
    );
    assert_eq!(
        check(Some(patterns(own)), Some(prefixes(&["10.7.0.0/24"]))),
        Ok(())
    );
    let error = check(Some(patterns(&["x*", "y0"])), None)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        format!("bridge {bridge} is not one that declared networks may use: x*, y0")
    );
    for (allowed, words) in [
        (&["192.168.0.0/16"][..], "192.168.0.0/16"),
        // The subnet is not within the prefix as a whole.
        (&["10.7.0.0/25"], "10.7.0.0/25"),
        (&["::/0"], "::/0"),
        (&[], "none"),
    ] {
        let error = check(None, Some(prefixes(allowed)))
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            format!(
                "subnet 10.7.0.0/24 is not within those that declared networks may use: {words}"
            )
        );
    }
}
