//! Asking the agent, and what to say when it does not answer. Refuses to interpret the configuration or the result.

use std::error::Error as _;
use std::path::PathBuf;

use api::{Client, ClientError, CniRequest, CniVerb};
use cni::{Command, Environment, Error, Header};
use serde_json::value::RawValue;

/// Executes a command by the agent and returns what belongs on standard output.
pub(crate) fn ask(
    environment: &Environment,
    header: &Header,
    config: &str,
) -> Result<String, Error> {
    let verb = verb(environment.command)?;
    let config = RawValue::from_string(config.trim().to_owned());
    let request = CniRequest {
        container_id: environment.container_id.clone(),
        netns: environment.netns.clone(),
        ifname: environment.ifname.clone(),
        args: environment.args.clone(),
        path: environment.path.clone(),
        config: config.map_err(|error| Error::decode(error.to_string()))?,
    };
    let socket = header.socket.clone();
    let client = Client::new(socket.unwrap_or_else(|| PathBuf::from(api::DEFAULT_SOCKET)));
    let reply = client
        .post(verb.path(), &request)
        .map_err(|error| no_answer(&error))?;
    if reply.is_success() {
        return String::from_utf8(reply.body)
            .map_err(|_| Error::internal("the agent's answer is not UTF-8"));
    }
    let body = reply.error();
    Err(Error::new(body.code, body.message).with_details(body.details))
}

fn verb(command: Command) -> Result<CniVerb, Error> {
    match command {
        Command::Add => Ok(CniVerb::Add),
        Command::Del => Ok(CniVerb::Del),
        Command::Check => Ok(CniVerb::Check),
        Command::Gc => Ok(CniVerb::Gc),
        Command::Status => Ok(CniVerb::Status),
        Command::Version => Err(Error::environment("VERSION is not for the agent")),
    }
}

/// An agent that is down comes back, so a runtime should try again (BEHAVIOURS A1). The words "not found" and "no such
/// file or directory" must not appear: containerd takes them for "already removed" (BEHAVIOURS C3).
fn no_answer(error: &ClientError) -> Error {
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    match error {
        ClientError::Unreachable { .. } => Error::try_again_later(error.to_string()).with_details(
            "start the agent (systemctl start viaductd), or set \"socket\" in the network configuration to where it listens",
        ),
        ClientError::Timeout { .. } => Error::try_again_later(error.to_string()).with_details(
            "the request may still be executed; the agent's log (journalctl -u viaductd) tells what it waits for",
        ),
        ClientError::Broken { .. } => Error::try_again_later(error.to_string()).with_details(cause),
        ClientError::Response { .. } | ClientError::Body(_) | ClientError::Refused(_) => {
            Error::internal(error.to_string()).with_details(cause)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// BEHAVIOURS A1, C3
    #[test]
    fn an_agent_that_is_down_means_try_again_and_never_already_gone() {
        let error = no_answer(&ClientError::Unreachable {
            socket: "/run/viaduct/viaduct.sock".into(),
            source: io::Error::from_raw_os_error(2),
        });
        assert_eq!(error.code, 11);
        assert!(error.msg.contains("/run/viaduct/viaduct.sock"), "{error:?}");
        assert!(
            error.details.contains("systemctl start viaductd"),
            "{error:?}"
        );
        let said = format!("{error:?}").to_lowercase();
        assert!(
            !said.contains("no such file") && !said.contains("not found"),
            "{said}"
        );
    }
}
