//! Sends a CNI command to the agent, and spools a DEL if the agent does not answer. Does not
//! interpret configuration or result.

use std::error::Error as _;
use std::path::Path;
use std::time::Duration;

use api::{Client, ClientError, CniRequest, CniVerb, Reply, Spool};
use cni::{Command, Environment, Error, Header, Plugin};
use serde_json::value::RawValue;

use crate::ipam::IpamResult;

/// Time after which a DEL is spooled: the agent is stuck, and runtimes wait one minute for a DEL
/// (behaviour C6).
const DEL_DEADLINE: Duration = Duration::from_secs(10);

/// HTTP status of an unknown path. The agent uses it for no error of a CNI command.
const HTTP_NOT_FOUND: u16 = 404;

/// Sends a command to the agent and returns the text for standard output. If the agent does not
/// answer a DEL, spools it and returns success; the agent executes it later (behaviour A1).
pub(crate) fn execute(
    plugin: Plugin,
    environment: &Environment,
    header: &Header,
    config: &str,
    ipam: IpamResult,
) -> Result<String, Error> {
    let verb = verb(environment.command)?;
    let request = CniRequest {
        ipam,
        ..request(plugin.name(), environment, config)?
    };
    send(
        verb,
        header.name.as_str(),
        header.socket.as_deref(),
        &request,
    )
}

/// Sends a request to the agent on `socket`, or else on the default one. `network` is the name in
/// the configuration.
pub(crate) fn send(
    verb: CniVerb,
    network: &str,
    socket: Option<&Path>,
    request: &CniRequest,
) -> Result<String, Error> {
    let socket = socket.unwrap_or(Path::new(api::DEFAULT_SOCKET));
    let mut client = Client::new(socket);
    if verb == CniVerb::Del {
        client = client.with_deadline(DEL_DEADLINE);
    }
    let reply = match client.post(verb.path(), request) {
        Ok(reply) => reply,
        Err(error) if verb == CniVerb::Del && may_be_unexecuted(&error) => {
            return spool(socket, network, request, &client_error(verb, &error));
        }
        Err(error) => return Err(client_error(verb, &error)),
    };
    body(socket, verb.path(), reply)
}

/// Sends a network that netavark creates to the agent, and returns the completed one.
pub(crate) fn create_network(socket: Option<&Path>, network: &RawValue) -> Result<String, Error> {
    let socket = socket.unwrap_or(Path::new(api::DEFAULT_SOCKET));
    let path = api::path::NETAVARK_CREATE;
    let reply = Client::new(socket).post(path, &network);
    body(socket, path, reply.map_err(|error| error_of(&error))?)
}

/// Returns the body of a response, or the error in it.
fn body(socket: &Path, path: &str, reply: Reply) -> Result<String, Error> {
    if reply.is_success() {
        return String::from_utf8(reply.body)
            .map_err(|_| Error::internal("the agent's response is not UTF-8"));
    }
    let body = reply.error();
    if reply.status == HTTP_NOT_FOUND && body.code != api::TRY_AGAIN_LATER {
        return Err(Error::try_again_later(format!(
            "the agent on {} is of another release than this plugin ({}) and has no {}",
            socket.display(),
            env!("CARGO_PKG_VERSION"),
            path
        ))
        .with_details(body.details));
    }
    Err(Error::new(body.code, body.message).with_details(body.details))
}

/// Returns the request of a plugin with the parameters in `environment`.
pub(crate) fn request(
    plugin: &str,
    environment: &Environment,
    config: &str,
) -> Result<CniRequest, Error> {
    let config = RawValue::from_string(config.trim().to_owned());
    Ok(CniRequest {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        plugin: plugin.to_owned(),
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

/// Returns whether the agent may not have executed the request.
fn may_be_unexecuted(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { .. }
        | ClientError::Timeout { .. }
        | ClientError::Broken { .. } => true,
        ClientError::Response { .. } | ClientError::Body(_) | ClientError::Refused(_) => false,
    }
}

/// Spools a DEL for the agent. If that fails, the DEL fails, so that the runtime repeats it.
fn spool(
    socket: &Path,
    network: &str,
    request: &CniRequest,
    absent: &Error,
) -> Result<String, Error> {
    let spooled = Spool::for_socket(socket).put(network, request);
    spooled.map_err(|error| {
        Error::try_again_later(format!("{absent}, and the DEL cannot be spooled: {error}"))
            .with_details(absent.details.clone())
    })?;
    Ok(String::new())
}

/// Returns whether the agent finds the interface in the namespace; `false` if it does not answer.
pub(crate) fn has_interface(header: &Header, netns: &str, ifname: &str) -> bool {
    let socket = header.socket.as_deref();
    let client = Client::new(socket.unwrap_or(Path::new(api::DEFAULT_SOCKET)));
    let reply = client.post(api::path::INSIDE, &api::InterfaceQuery { netns, ifname });
    let presence = reply.and_then(|reply| reply.decode::<api::InterfacePresence>());
    presence.is_ok_and(|presence| presence.exists)
}

/// Returns the W3C trace context of the runtime from `TRACEPARENT`, which libcni sets, so that the
/// agent's log lines can be found by it; empty if it is missing or malformed.
fn traceparent() -> String {
    let text = std::env::var("TRACEPARENT").unwrap_or_default();
    let is_valid = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    if text.len() <= 64 && text.bytes().all(is_valid) {
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
        Command::Version => Err(Error::environment("VERSION is not sent to the agent")),
    }
}

/// Returns the CNI error of a client error. It is code 11 for an agent that is down, so that the
/// runtime tries again (behaviour A1). The words "not found" and "no such file or directory" must
/// not appear: containerd takes them for "already removed" (behaviour C3).
///
/// STATUS gets code 50, because an ADD would fail (behaviour S13); attached pods work without an
/// agent.
fn client_error(verb: CniVerb, error: &ClientError) -> Error {
    let error = error_of(error);
    let code = if verb == CniVerb::Status {
        50
    } else {
        error.code
    };
    Error { code, ..error }
}

fn error_of(error: &ClientError) -> Error {
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    match error {
        ClientError::Unreachable { .. } => Error::try_again_later(error.to_string()).with_details(
            "start the agent (systemctl start viaductd), or set \"socket\" in the network configuration to where it listens",
        ),
        ClientError::Timeout { .. } => Error::try_again_later(error.to_string()).with_details(
            "the agent may still execute the request; its log (journalctl -u viaductd) and viaductctl status show why it waits",
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
    fn an_unreachable_agent_is_code_11_and_never_reads_as_already_removed() {
        let absent = ClientError::Unreachable {
            socket: "/run/viaduct/viaduct.sock".into(),
            source: io::Error::from_raw_os_error(2),
        };
        assert_eq!(client_error(CniVerb::Status, &absent).code, 50);
        let error = client_error(CniVerb::Add, &absent);
        assert_eq!(error.code, 11);
        assert!(error.msg.contains("/run/viaduct/viaduct.sock"), "{error:?}");
        assert!(
            error.details.contains("systemctl start viaductd"),
            "{error:?}"
        );
        let text = format!("{error:?}").to_lowercase();
        assert!(
            !text.contains("no such file") && !text.contains("not found"),
            "{text}"
        );
    }
}
