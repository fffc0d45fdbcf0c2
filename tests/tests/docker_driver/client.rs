//! A client that calls the drivers as dockerd does, and containers whose interface it moves.

use std::net::IpAddr;

use anyhow::{Context as _, Result, bail, ensure};
use e2e::Machine;
use serde_json::Value;

/// Networks and pools of Docker.
pub(crate) const STATE: &str = "/run/docker.json";
const DIRECTORY: &str = "/run/docker/plugins";
const SOCKET: &str = "/run/docker/plugins/viaduct.sock";

/// A client of the drivers' socket.
pub(crate) struct Client(Machine);

impl Client {
    /// Flags of an agent that serves the drivers.
    pub(crate) const FLAGS: [&str; 2] = [
        "--docker-socket=/run/docker/plugins/viaduct.sock",
        "--docker-state=/run/docker.json",
    ];

    /// Makes the directory of the socket, as Docker's packages do.
    pub(crate) fn new(node: &Machine) -> Result<Self> {
        node.call(&format!("mkdir -p {DIRECTORY}"))?;
        Ok(Self(node.clone()))
    }

    /// Calls a method, and returns status and body.
    pub(crate) fn raw(&self, method: &str, body: &str) -> Result<(u16, String)> {
        let node = &self.0;
        node.run(|| std::fs::write("/run/request.json", body))?;
        let text = node.call(&format!(
            "curl --silent --max-time 60 --unix-socket {SOCKET} --request POST --data-binary @/run/request.json \
             --write-out \\n%{{http_code}} http://plugin/{method}"
        ))?;
        let (body, status) = text.rsplit_once('\n').context("no status")?;
        Ok((status.trim().parse()?, body.to_owned()))
    }

    /// Calls a method, and returns its answer. An error in the answer is one.
    pub(crate) fn call(&self, method: &str, request: &Value) -> Result<Value> {
        let (status, body) = self.raw(method, &request.to_string())?;
        ensure!(status == 200, "{method}: {status} {body}");
        let answer: Value = serde_json::from_str(&body)?;
        match answer["Err"].as_str().or(answer["Error"].as_str()) {
            Some(error) => bail!("{method}: {error}"),
            None => Ok(answer),
        }
    }

    /// Calls a method that fails, and returns its error.
    pub(crate) fn refused(&self, method: &str, request: &Value) -> Result<String> {
        match self.call(method, request) {
            Ok(answer) => bail!("{method} answered {answer}"),
            Err(error) => Ok(format!("{error:#}")),
        }
    }
}

/// A container whose interface was moved into it.
pub(crate) struct Container {
    pub(crate) machine: Machine,
    pub(crate) address: IpAddr,
    pub(crate) mac: String,
}

impl Container {
    /// Moves the interface that a Join has returned into `machine`, and configures it.
    pub(crate) fn moved(
        node: &Machine,
        machine: Machine,
        address: &str,
        created: &Value,
        joined: &Value,
    ) -> Result<Self> {
        let text =
            |value: &Value| Ok::<_, anyhow::Error>(value.as_str().context("a text")?.to_owned());
        let name = text(&joined["InterfaceName"]["SrcName"])?;
        let inside = format!("{}0", text(&joined["InterfaceName"]["DstPrefix"])?);
        let mac = text(&created["Interface"]["MacAddress"])?;
        node.call(&format!("ip link set {name} netns {}", machine.path()))?;
        machine.call(&format!("ip link set {name} name {inside} address {mac}"))?;
        machine.call(&format!("ip address add {address} dev {inside}"))?;
        machine.call("ip link set lo up")?;
        machine.call(&format!("ip link set {inside} up"))?;
        let gateway = text(&joined["Gateway"])?;
        if !gateway.is_empty() {
            machine.call(&format!("ip route add default via {gateway}"))?;
        }
        let (own, _) = address.split_once('/').context("a prefix length")?;
        Ok(Self {
            machine,
            address: own.parse()?,
            mac,
        })
    }
}
