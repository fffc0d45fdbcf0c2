//! Renders the versions of `viaductctl` and of the agent.

use std::fmt::Display;

use api::{BuildFacts, Version};

/// Renders the versions of viaductctl and of the agent; of the latter, the error if there is one.
pub(crate) fn version<E: Display>(own: BuildFacts, agent_version: Result<&Version, &E>) -> String {
    let agent = match agent_version {
        Ok(version) => agent(version),
        // The first line only: the advice that follows is for commands that need the agent.
        Err(error) => {
            let error = error.to_string();
            format!("unknown ({})", error.lines().next().unwrap_or_default())
        }
    };
    format!("viaductctl {own}\nviaductd   {agent}\n")
}

/// Returns the versions of the agent and of its interfaces, in one line.
pub(super) fn agent(version: &Version) -> String {
    let api = if version.api.is_empty() {
        String::new()
    } else {
        format!("API {}, ", version.api)
    };
    let commit = if version.commit.is_empty() {
        String::new()
    } else {
        format!(" (commit {})", version.commit)
    };
    format!(
        "{}{commit}, {api}datapath ABI {}",
        version.agent, version.abi
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_shows_client_and_agent() {
        let own = BuildFacts {
            version: "0.2.0",
            commit: None,
            abi: 1,
        };
        let agent = Version {
            agent: "0.1.0".to_owned(),
            abi: 1,
            ..Version::default()
        };
        let text = version::<String>(own, Ok(&agent));
        let expected = format!("viaductctl {own}\nviaductd   0.1.0, datapath ABI 1\n");
        assert_eq!(text, expected);
    }

    #[test]
    fn an_agent_of_unknown_commit_or_without_an_api_version_has_a_shorter_line() {
        let full = Version {
            agent: "0.1.0".to_owned(),
            commit: "1a2b3c4d5e6f".to_owned(),
            abi: 1,
            api: "1.1".to_owned(),
            cni: Vec::new(),
        };
        assert_eq!(
            agent(&full),
            "0.1.0 (commit 1a2b3c4d5e6f), API 1.1, datapath ABI 1"
        );
        let old = Version {
            commit: String::new(),
            api: String::new(),
            ..full
        };
        assert_eq!(agent(&old), "0.1.0, datapath ABI 1");
    }
}
