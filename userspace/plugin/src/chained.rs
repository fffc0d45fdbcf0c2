//! Chained plugins (portmap, bandwidth, firewall, tuning): the agent executes their commands.
//!
//! While the agent is down, a plugin with nothing to do answers itself, so that an outage fails
//! only the pods that need the agent.

use cni::{ChainedRequest, Command, Environment, Error, Plugin};

/// Executes a command by `in_agent`.
pub(crate) fn execute(
    plugin: Plugin,
    environment: &Environment,
    config: &str,
    in_agent: impl FnOnce() -> Result<String, Error>,
) -> Result<String, Error> {
    in_agent().or_else(|error| {
        let is_down = error.code == api::TRY_AGAIN_LATER;
        match ChainedRequest::read(plugin, environment, config) {
            Ok(request) if is_down && request.is_without_effect() => unchanged(&request),
            Ok(_) | Err(_) => Err(error),
        }
    })
}

/// Returns the previous result of an ADD, and nothing of a CHECK.
fn unchanged(request: &ChainedRequest) -> Result<String, Error> {
    match &request.prev_result {
        Some(result) if request.command == Command::Add => result.to_json(request.header.version),
        Some(_) | None => Ok(String::new()),
    }
}
