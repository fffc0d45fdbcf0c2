//! What identifies a build: version, commit, and the versions of its interfaces.

use std::fmt;

/// A build of one of the programs. Displayed as
/// `0.1.0 (commit 1a2b3c4d5e6f, API 1.1, datapath ABI 1)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildFacts {
    /// Version of the program, for example `0.1.0`.
    pub version: &'static str,
    /// The value of `VIADUCT_COMMIT` at build time: the commit of the sources, with `-dirty` if
    /// they were changed. `None` or empty if the build did not know it.
    pub commit: Option<&'static str>,
    /// Version of the map layouts that the agent shares with its eBPF programs.
    pub abi: u32,
}

impl BuildFacts {
    /// Returns the commit; `None` if the build did not know it.
    pub fn commit(self) -> Option<&'static str> {
        self.commit.filter(|commit| !commit.is_empty())
    }

    /// Returns the text in parentheses: commit, and versions of API and datapath ABI.
    pub fn details(self) -> String {
        let commit = self.commit().unwrap_or("unknown");
        format!(
            "commit {commit}, API {}, datapath ABI {}",
            crate::VERSION,
            self.abi
        )
    }
}

impl fmt::Display for BuildFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.version, self.details())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_a_commit_says_that_it_is_unknown() {
        let facts = |commit| BuildFacts {
            version: "0.1.0",
            commit,
            abi: 7,
        };
        let api = crate::VERSION;
        assert_eq!(
            facts(Some("1a2b3c4d5e6f-dirty")).to_string(),
            format!("0.1.0 (commit 1a2b3c4d5e6f-dirty, API {api}, datapath ABI 7)")
        );
        let unknown = format!("0.1.0 (commit unknown, API {api}, datapath ABI 7)");
        assert_eq!(facts(None).to_string(), unknown);
        assert_eq!(facts(Some("")).to_string(), unknown);
    }
}
