//! Clients in processes of their own, which can be members of a cgroup, as processes of a node are.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use serde_json::{Value, json};

use crate::Machine;

/// The program of the client process.
const CLIENT: &str = include_str!("client_process.py");

/// Transport and kind of socket of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// A TCP connection.
    Tcp,
    /// A connected UDP socket.
    Udp,
    /// A UDP socket that is not connected, so `sendmsg` carries the destination.
    UnconnectedUdp,
}

impl ClientKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::UnconnectedUdp];

    /// Returns the name in reports and in the arguments of the process.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::UnconnectedUdp => "unconnected udp",
        }
    }
}

/// Addresses that the client and an [`crate::Echo`] saw of each other, after an echo that came back
/// unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenAddresses {
    /// The client's address, as the server saw it.
    pub seen: SocketAddr,
    /// The server's address, as the client sees it: `getpeername`, or the source of the answer.
    pub peer: SocketAddr,
    /// The client's own port.
    pub port: u16,
}

/// Connects to all targets, one after the other, from one process on `machine`, in `cgroup` if one
/// is given. Returns one result for each target.
pub fn connect_from_process(
    machine: &Machine,
    cgroup: Option<&Path>,
    targets: &[(ClientKind, SocketAddr)],
) -> Result<Vec<Result<SeenAddresses>>> {
    let list = targets
        .iter()
        .map(|(by, to)| json!([by.name(), to.ip(), to.port()]))
        .collect::<Value>()
        .to_string();
    let cgroup = cgroup.map(|path| path.display().to_string());
    let mut words = vec!["python3", "-c", CLIENT, &list];
    words.extend(cgroup.as_deref());
    let reports: Vec<Value> = serde_json::from_str(&machine.call_words(&words)?)?;
    Ok(reports.iter().map(parse).collect())
}

/// Parses the report on one target: `{"seen", "peer", "port"}` or `{"error"}`.
fn parse(report: &Value) -> Result<SeenAddresses> {
    if let Some(error) = report["error"].as_str() {
        return Err(anyhow!(error.to_owned()));
    }
    let address = |key: &str| -> Result<SocketAddr> {
        let text = report[key].as_str().unwrap_or_default();
        text.parse()
            .with_context(|| format!("{key} is {text:?}, which is no address"))
    };
    let port = report["port"].as_u64().context("the client has no port")?;
    Ok(SeenAddresses {
        seen: address("seen")?,
        peer: address("peer")?,
        port: u16::try_from(port)?,
    })
}
