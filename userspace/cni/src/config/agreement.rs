//! Compares the keys of a configuration with the agent's default network.

use crate::Error;

/// Fails if the configuration sets `key` to another value than the default network has.
pub(crate) fn check_matches<T: PartialEq + std::fmt::Display>(
    key: &str,
    configured: Option<T>,
    current: Option<T>,
) -> Result<(), Error> {
    match configured {
        Some(configured) if Some(&configured) != current.as_ref() => {
            let current = current.map_or_else(|| "automatic".to_owned(), |value| value.to_string());
            Err(Error::invalid_config(format!(
                "{key} is {configured} in the configuration and {current} in the agent's default network"
            ))
            .with_details(
                "remove the key, change the agent's setting, or declare a network with its own bridge and ipam",
            ))
        }
        _ => Ok(()),
    }
}
