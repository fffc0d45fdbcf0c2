//! netavark's plugin interface, by which podman 5 sets up networks of the driver `viaduct`.
//!
//! The agent translates network and container options, so that a newer agent can support options
//! that this plugin does not have. The plugin reads names and the agent's socket only.

use std::path::Path;

use api::CniVerb;
use cni::{Command, Environment, Error};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::{BUILD, agent, netns, read_input};

/// Version of the interface.
const API_VERSION: &str = "1.0.0";

/// A command of the interface: the first argument of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Completes and validates a new network.
    Create,
    /// Prints versions.
    Info,
    /// Attaches a container.
    Setup,
    /// Detaches a container.
    Teardown,
}

impl Call {
    /// Parses the first argument; `None` for any other word.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word {
            "create" => Some(Self::Create),
            "info" => Some(Self::Info),
            "setup" => Some(Self::Setup),
            "teardown" => Some(Self::Teardown),
            _ => None,
        }
    }
}

/// Executes a call with the input on standard input, and returns the text for standard output.
/// `netns` is the path of the container's network namespace, the second argument.
pub(crate) fn execute(call: Call, netns: &str) -> Result<String, Error> {
    if call == Call::Info {
        return Ok(info());
    }
    let mut text = String::new();
    read_input(&mut text)?;
    let input: Value =
        serde_json::from_str(&text).map_err(|error| Error::decode(format!("input: {error}")))?;
    let (command, verb) = match call {
        Call::Setup => (Command::Add, CniVerb::Add),
        Call::Teardown => (Command::Del, CniVerb::Del),
        Call::Create | Call::Info => return create(&input, text),
    };
    if call == Call::Setup {
        netns::refuse_host(netns)?;
    }
    let member = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let environment = Environment {
        command,
        container_id: member(&input, "container_id"),
        netns: netns.to_owned(),
        ifname: member(&input["network_options"], "interface_name"),
        args: String::new(),
        path: String::new(),
    };
    let network = &input["network"];
    let request = agent::request(api::NETAVARK, &environment, &text)?;
    agent::send(verb, &member(network, "name"), socket(network), &request)
}

fn create(network: &Value, text: String) -> Result<String, Error> {
    let raw = RawValue::from_string(text).map_err(|error| Error::decode(error.to_string()))?;
    agent::create_network(socket(network), &raw)
}

/// Returns the option `socket` of a network: the agent's socket, if not the default.
fn socket(network: &Value) -> Option<&Path> {
    network["options"]["socket"].as_str().map(Path::new)
}

fn info() -> String {
    json!({ "version": BUILD.version, "api_version": API_VERSION, "build": BUILD.details() })
        .to_string()
}

/// Returns the JSON of an error, which netavark prints for its user.
pub(crate) fn error_text(error: &Error) -> String {
    let text = match (error.msg.as_str(), error.details.as_str()) {
        (message, "") => message.to_owned(),
        (message, details) => format!("{message} ({details})"),
    };
    json!({ "error": text }).to_string()
}
