//! Clients that are processes of their own: they can be in a cgroup, as the processes of a node are.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use serde_json::{Value, json};

use crate::Machine;

const DIAL: &str = include_str!("dial.py");

/// How a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By TCP.
    Tcp,
    /// By UDP, from a socket that is connected.
    Udp,
    /// By UDP, from a socket that is not.
    UnconnectedUdp,
}

impl By {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::UnconnectedUdp];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::UnconnectedUdp => "unconnected udp",
        }
    }
}

/// Whom a client and an [`crate::Echo`] took each other for. What the client sent has come back unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// The client as the server saw it.
    pub seen: SocketAddr,
    /// The server as the client sees it: `getpeername`, or whoever sent the answer.
    pub peer: SocketAddr,
    /// The client's own port.
    pub port: u16,
}

/// Dials one after the other from one process on `machine`, in `cgroup` if one is given.
pub fn dial(
    machine: &Machine,
    cgroup: Option<&Path>,
    targets: &[(By, SocketAddr)],
) -> Result<Vec<Result<Met>>> {
    let list = targets
        .iter()
        .map(|(by, to)| json!([by.name(), to.ip(), to.port()]))
        .collect::<Value>()
        .to_string();
    let cgroup = cgroup.map(|path| path.display().to_string());
    let mut words = vec!["python3", "-c", DIAL, &list];
    words.extend(cgroup.as_deref());
    let told: Vec<Value> = serde_json::from_str(&machine.call_words(&words)?)?;
    Ok(told.iter().map(met).collect())
}

fn met(told: &Value) -> Result<Met> {
    if let Some(error) = told["error"].as_str() {
        return Err(anyhow!(error.to_owned()));
    }
    let address = |key: &str| -> Result<SocketAddr> {
        let text = told[key].as_str().unwrap_or_default();
        text.parse()
            .with_context(|| format!("{key} is {text:?}, which is no address"))
    };
    let port = told["port"].as_u64().context("the client has no port")?;
    Ok(Met {
        seen: address("seen")?,
        peer: address("peer")?,
        port: u16::try_from(port)?,
    })
}
