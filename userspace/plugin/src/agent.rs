//! Asking the agent, and what to say when it does not answer. Refuses to interpret the configuration or the result.

use std::error::Error as _;
use std::path::Path;
use std::time::Duration;

use api::{Client, ClientError, CniRequest, CniVerb, Spool};
use cni::{Command, Environment, Error, Header, Plugin};
use serde_json::value::RawValue;

use crate::ipam::Answer;

/// A DEL that takes longer is written down: the agent is stuck, and runtimes give a DEL a minute (behaviour C6).
const DEL_DEADLINE: Duration = Duration::from_secs(10);

/// How HTTP says that. No CNI command is answered with it otherwise.
const NO_SUCH_PATH: u16 = 404;

/// Executes a command by the agent and returns what belongs on standard output. A DEL that the agent is not there for
/// is written down for it, which is as good (behaviour A1).
pub(crate) fn ask(
    plugin: Plugin,
    environment: &Environment,
    header: &Header,
    config: &str,
    answer: Answer,
) -> Result<String, Error> {
    let verb = verb(environment.command)?;
    let request = CniRequest {
        ipam: answer,
        ..request(plugin, environment, config)?
    };
    let socket = header
        .socket
        .as_deref()
        .unwrap_or(Path::new(api::DEFAULT_SOCKET));
    let mut client = Client::new(socket);
    if verb == CniVerb::Del {
        client = client.with_deadline(DEL_DEADLINE);
    }
    let reply = match client.post(verb.path(), &request) {
        Ok(reply) => reply,
        Err(error) if verb == CniVerb::Del && is_absent(&error) => {
            return spool(socket, header, &request, &no_answer(verb, &error));
        }
        Err(error) => return Err(no_answer(verb, &error)),
    };
    if reply.is_success() {
        return String::from_utf8(reply.body)
            .map_err(|_| Error::internal("the agent's answer is not UTF-8"));
    }
    let body = reply.error();
    if reply.status == NO_SUCH_PATH && body.code != api::TRY_AGAIN_LATER {
        return Err(Error::try_again_later(format!(
            "the agent on {} is of another release than the plugin, {}, and has no {}",
            socket.display(),
            env!("CARGO_PKG_VERSION"),
            verb.path()
        ))
        .with_details(body.details));
    }
    Err(Error::new(body.code, body.message).with_details(body.details))
}

fn request(plugin: Plugin, environment: &Environment, config: &str) -> Result<CniRequest, Error> {
    let config = RawValue::from_string(config.trim().to_owned());
    Ok(CniRequest {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        plugin: plugin.name().to_owned(),
        traceparent: traceparent(),
        container_id: environment.container_id.clone(),
        netns: environment.netns.clone(),
        ifname: environment.ifname.clone(),
        args: environment.args.clone(),
        path: environment.path.clone(),
        config: config.map_err(|error| Error::decode(error.to_string()))?,
        ipam: None,
    })
}

/// Whether the agent has not executed the request, or may not have.
fn is_absent(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { .. }
        | ClientError::Timeout { .. }
        | ClientError::Broken { .. } => true,
        ClientError::Response { .. } | ClientError::Body(_) | ClientError::Refused(_) => false,
    }
}

/// Where that fails too, the DEL fails: to say otherwise would be to forget it.
fn spool(
    socket: &Path,
    header: &Header,
    request: &CniRequest,
    absent: &Error,
) -> Result<String, Error> {
    let spooled = Spool::for_socket(socket).put(header.name.as_str(), request);
    spooled.map_err(|error| {
        Error::try_again_later(format!(
            "{absent}, and the DEL cannot be kept for it: {error}"
        ))
        .with_details(absent.details.clone())
    })?;
    Ok(String::new())
}

/// Whether the agent sees the interface in the namespace.
pub(crate) fn has_interface(header: &Header, netns: &str, ifname: &str) -> bool {
    let socket = header.socket.as_deref();
    let client = Client::new(socket.unwrap_or(Path::new(api::DEFAULT_SOCKET)));
    let asked = client.post(api::path::INSIDE, &api::InterfaceQuery { netns, ifname });
    let found = asked.and_then(|reply| reply.decode::<api::InterfacePresence>());
    found.is_ok_and(|found| found.exists)
}

/// The runtime's span (libcni hands it on), so that the agent's log can be found by it; nothing that is not one.
fn traceparent() -> String {
    let text = std::env::var("TRACEPARENT").unwrap_or_default();
    let is_one = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    if text.len() <= 64 && text.bytes().all(is_one) {
        text
    } else {
        String::new()
    }
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

/// An agent that is down comes back, so a runtime should try again (behaviour A1). The words "not found" and "no such
/// file or directory" must not appear: containerd takes them for "already removed" (behaviour C3).
///
/// To STATUS the answer is that an ADD would fail (S13): what is attached goes on working without an agent.
fn no_answer(verb: CniVerb, error: &ClientError) -> Error {
    let told = told(error);
    let code = if verb == CniVerb::Status {
        50
    } else {
        told.code
    };
    Error { code, ..told }
}

fn told(error: &ClientError) -> Error {
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

    /// behaviours A1, C3
    #[test]
    fn an_agent_that_is_down_means_try_again_and_never_already_gone() {
        let absent = ClientError::Unreachable {
            socket: "/run/viaduct/viaduct.sock".into(),
            source: io::Error::from_raw_os_error(2),
        };
        assert_eq!(no_answer(CniVerb::Status, &absent).code, 50);
        let error = no_answer(CniVerb::Add, &absent);
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
