//! Executes foreign IPAM plugins, in the environment of the runtime (behaviour S14).
//!
//! An ADD sends two requests to the agent: the first makes the link, over which plugins such as
//! DHCP get their addresses; the second has the plugin's result. After a failure the link is
//! removed first and the address released afterwards, so that no address is allocated again while a
//! pod has it. This module does not choose addresses.

use cni::{Command, Environment, Error, Header};
use invoke::{Invoker, Timeouts};
use serde_json::value::RawValue;

/// Result of an IPAM plugin's ADD; `None` in all other requests.
pub(crate) type IpamResult = Option<Box<RawValue>>;

/// Executes a command for the interface by `own`, and for its addresses by the IPAM plugin of the
/// configuration.
pub(crate) fn execute_with_ipam(
    environment: &Environment,
    header: &Header,
    config: &str,
    command: Command,
    own: impl Fn(Command, IpamResult) -> Result<String, Error>,
) -> Result<String, Error> {
    let Some(kind) = &header.ipam_plugin else {
        return own(command, None);
    };
    let invoker = Invoker {
        path: std::env::split_paths(&environment.path).collect(),
        cache: invoke::DEFAULT_CACHE.into(),
        timeouts: Timeouts::default(),
    };
    let execute = |command| invoker.delegate(kind, command, config);
    match command {
        Command::Add => add(execute, own),
        Command::Del => {
            let result = own(Command::Del, None)?;
            execute(Command::Del)?;
            Ok(result)
        }
        Command::Gc => {
            let collected = own(Command::Gc, None);
            execute(Command::Gc)?;
            collected
        }
        Command::Check | Command::Status => {
            execute(command)?;
            own(command, None)
        }
        Command::Version => own(command, None),
    }
}

fn add(
    execute: impl Fn(Command) -> Result<String, Error>,
    own: impl Fn(Command, IpamResult) -> Result<String, Error>,
) -> Result<String, Error> {
    own(Command::Add, None)?;
    let allocated = execute(Command::Add).and_then(|answer| parse(&answer));
    let added = allocated.and_then(|answer| own(Command::Add, Some(answer)));
    added.inspect_err(|_| {
        // The ADD's error is returned. If the link cannot be removed, its address is not released:
        // the runtime's DEL does both.
        let _undone = own(Command::Del, None).and_then(|_| execute(Command::Del));
    })
}

fn parse(answer: &str) -> Result<Box<RawValue>, Error> {
    RawValue::from_string(answer.trim().to_owned()).map_err(|error| {
        Error::decode(format!(
            "the result of the IPAM plugin is not JSON: {error}"
        ))
    })
}
