//! Which test binaries run in guests: all, those of families, or those of names.

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::Args;

/// Test binaries about one property of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Family {
    /// Source NAT and hostports, as complete as netfilter's
    Nat,
    /// Hostile pods, clients and requests
    Hostile,
}

impl Family {
    /// Every family, in the order of the page.
    pub(crate) const ALL: [Self; 2] = [Self::Nat, Self::Hostile];

    /// Returns the name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::Hostile => "hostile",
        }
    }

    /// Returns what its binaries show.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Nat => "Source NAT and hostports",
            Self::Hostile => "Hostile pods, clients and requests",
        }
    }

    /// Whether a binary belongs to the family.
    pub(crate) fn has(self, binary: &str) -> bool {
        self.patterns().iter().any(|it| matches(it, binary))
    }

    fn patterns(self) -> &'static [&'static str] {
        match self {
            Self::Nat => &["nat_*", "address_handover", "hostport_from_any_socket"],
            Self::Hostile => &[
                "hostile_*",
                "admission",
                "closed_networks",
                "fair_shares",
                "isolation",
                "privileges",
                "read_only_socket",
                "sender_checks",
                "unknown_addresses",
                "vlan_tags",
                "xdp_prefilter",
            ],
        }
    }
}

/// Whether a binary has the name, or begins as a name with `*` at its end does.
fn matches(pattern: &str, binary: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => binary.starts_with(beginning),
        None => binary == pattern,
    }
}

/// The names and families on the command line.
#[derive(Clone, Copy)]
pub(super) struct Selection<'a> {
    only: &'a [String],
    families: &'a [Family],
}

impl<'a> Selection<'a> {
    pub(super) fn of(args: &'a Args) -> Self {
        Self {
            only: &args.only,
            families: &args.family,
        }
    }

    /// Whether all binaries run.
    pub(super) fn is_everything(self) -> bool {
        self.only.is_empty() && self.families.is_empty()
    }

    /// Whether a binary runs.
    pub(super) fn has(self, binary: &str) -> bool {
        self.is_everything()
            || self.only.iter().any(|it| matches(it, binary))
            || self.families.iter().any(|it| it.has(binary))
    }

    /// Refuses names and families that select none of `binaries`.
    pub(super) fn check(self, binaries: &[String]) -> Result<()> {
        let patterns = self.families.iter().flat_map(|it| it.patterns().iter());
        let words = patterns
            .copied()
            .chain(self.only.iter().map(String::as_str));
        for word in words {
            if !binaries.iter().any(|binary| matches(word, binary)) {
                bail!("no test binary is named {word}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{binaries, metadata};

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn binaries_are_selected_by_name_beginning_and_family() {
        let (only, families) = (owned(&["why", "hostport_*"]), [Family::Nat]);
        let selection = Selection {
            only: &only,
            families: &families,
        };
        for name in ["why", "hostport_moves", "nat_mtu", "address_handover"] {
            assert!(selection.has(name), "{name}");
        }
        for name in ["why_not", "hostports", "isolation"] {
            assert!(!selection.has(name), "{name}");
        }
    }

    #[test]
    fn a_name_without_a_binary_is_refused() {
        let only = owned(&["nat_*", "nat_ports", "natports"]);
        let selection = Selection {
            only: &only,
            families: &[],
        };
        let error = selection.check(&owned(&["nat_ports"])).unwrap_err();
        assert_eq!(error.to_string(), "no test binary is named natports");
    }

    #[test]
    fn every_pattern_of_a_family_has_a_binary() -> Result<()> {
        let binaries = binaries::e2e_names(&metadata::load()?);
        let selection = Selection {
            only: &[],
            families: &Family::ALL,
        };
        selection.check(&binaries)
    }
}
