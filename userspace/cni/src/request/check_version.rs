//! Commands that a version of the protocol has.

use crate::request::environment::Command;
use crate::{Error, Version};

/// Fails if the configuration's version does not have the command (behaviour S5).
pub fn check_version(command: Command, version: Version) -> Result<(), Error> {
    let (name, since) = match command {
        Command::Check => ("CHECK", Version::V0_4_0),
        Command::Gc => ("GC", Version::V1_1_0),
        Command::Status => ("STATUS", Version::V1_1_0),
        Command::Add | Command::Del | Command::Version => return Ok(()),
    };
    if version >= since {
        return Ok(());
    }
    Err(Error::incompatible_version(format!(
        "config version does not allow {name}: {version} is older than {since}"
    )))
}
