//! Addresses by an IPAM plugin of somebody else's: executed here, in the runtime's own environment, around what the agent
//! does (behaviour S14).
//!
//! An ADD asks the agent twice: for the link, over which some plugins get their addresses (DHCP), and then with the answer.
//! Whatever fails takes both sides back, the link first, so that no address is given again while a pod has it. Decides
//! nothing about addresses.

use cni::{Command, Environment, Error, Header};
use invoke::{Invoker, Patience};
use serde_json::value::RawValue;

/// What an IPAM plugin has answered to an ADD.
pub(crate) type Answer = Option<Box<RawValue>>;

/// Executes the command for what is ours by `own`, and for the addresses by the plugin that the configuration names.
pub(crate) fn around(
    environment: &Environment,
    header: &Header,
    config: &str,
    command: Command,
    own: impl Fn(Command, Answer) -> Result<String, Error>,
) -> Result<String, Error> {
    let Some(kind) = &header.ipam_plugin else {
        return own(command, None);
    };
    let invoker = Invoker {
        path: std::env::split_paths(&environment.path).collect(),
        cache: invoke::DEFAULT_CACHE.into(),
        patience: Patience::default(),
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
    own: impl Fn(Command, Answer) -> Result<String, Error>,
) -> Result<String, Error> {
    own(Command::Add, None)?;
    let answered = execute(Command::Add).and_then(|answer| parsed(&answer));
    let added = answered.and_then(|answer| own(Command::Add, Some(answer)));
    added.inspect_err(|_| {
        // The first failure is what counts. Where the link cannot be taken back, its address is not given back either:
        // the runtime's DEL does both.
        let _undone = own(Command::Del, None).and_then(|_| execute(Command::Del));
    })
}

fn parsed(answer: &str) -> Result<Box<RawValue>, Error> {
    RawValue::from_string(answer.trim().to_owned())
        .map_err(|error| Error::decode(format!("the answer of the IPAM plugin: {error}")))
}
