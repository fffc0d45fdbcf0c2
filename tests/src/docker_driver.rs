//! Docker's network driver and IPAM driver, called as dockerd calls them, and containers whose
//! interface is moved as dockerd moves it.

pub mod options;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use self::options::Attached;
use crate::residue::await_no_residue;
use crate::{Agent, Machine, Residue, Sandbox};

/// ID of the network of a [`Scene`].
pub const NETWORK: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// Its bridge, unless an option names another.
pub const BRIDGE: &str = "vd-0123456789ab";
/// IDs of endpoints.
pub const ENDPOINTS: [&str; 2] = [
    "aaaaaaaaaaaa0000000000000000000000000000000000000000000000000000",
    "bbbbbbbbbbbb0000000000000000000000000000000000000000000000000000",
];
/// The pool of the network.
pub const POOL: &str = "10.7.0.0/24";
/// A port of the node.
pub const PUBLISHED: u16 = 8080;
/// The port of a container that bindings publish.
pub const PORT: u16 = 80;

/// Networks and pools of Docker.
const STATE: &str = "/run/docker.json";
const DIRECTORY: &str = "/run/docker/plugins";
const SOCKET: &str = "/run/docker/plugins/viaduct.sock";

/// A client of the drivers' socket.
#[derive(Debug)]
pub struct Client(Machine);

impl Client {
    /// Flags of an agent that serves the drivers.
    pub const FLAGS: [&str; 2] = [
        "--docker-socket=/run/docker/plugins/viaduct.sock",
        "--docker-state=/run/docker.json",
    ];

    /// Makes the directory of the socket, as Docker's packages do.
    pub fn new(node: &Machine) -> Result<Self> {
        node.call(&format!("mkdir -p {DIRECTORY}"))?;
        Ok(Self(node.clone()))
    }

    /// Calls a method, and returns status and body.
    pub fn raw(&self, method: &str, body: &str) -> Result<(u16, String)> {
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
    pub fn call(&self, method: &str, request: &Value) -> Result<Value> {
        let (status, body) = self.raw(method, &request.to_string())?;
        ensure!(status == 200, "{method}: {status} {body}");
        let answer: Value = serde_json::from_str(&body)?;
        match answer["Err"].as_str().or(answer["Error"].as_str()) {
            Some(error) => bail!("{method}: {error}"),
            None => Ok(answer),
        }
    }

    /// Calls a method that fails, and returns its error.
    pub fn refused(&self, method: &str, request: &Value) -> Result<String> {
        match self.call(method, request) {
            Ok(answer) => bail!("{method} answered {answer}"),
            Err(error) => Ok(format!("{error:#}")),
        }
    }
}

/// A container whose interface was moved into it.
#[derive(Debug)]
pub struct Container {
    /// Its namespace.
    pub machine: Machine,
    /// Its IPv4 address.
    pub address: IpAddr,
    /// Its MAC address.
    pub mac: String,
}

impl Container {
    /// Moves the interface that a Join has returned into `machine`, and configures it.
    pub fn moved(
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

/// A node with an agent that serves Docker's drivers.
#[derive(Debug)]
pub struct Scene {
    /// The node, and the world that it is linked to.
    pub sandbox: Sandbox,
    /// The agent.
    pub agent: Agent,
    /// A client of the drivers.
    pub client: Client,
    /// What is on the node without networks.
    pub before: Residue,
}

impl Scene {
    /// Starts an agent on a new node.
    pub fn new() -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let client = Client::new(&sandbox.node)?;
        let agent = Agent::start(&sandbox.node, &Client::FLAGS)?;
        let before = Residue::of(&sandbox.node, &[])?;
        Ok(Self {
            sandbox,
            agent,
            client,
            before,
        })
    }

    /// Calls a method of the drivers.
    pub fn call(&self, method: &str, request: &Value) -> Result<Value> {
        self.client.call(method, request)
    }

    /// Requests the pool and its gateway, and creates the network.
    pub fn create_network(&self, options: &Value) -> Result<()> {
        self.create_network_of(&create(options))
    }

    /// Requests the pool and its gateway, and creates the network by this request.
    pub fn create_network_of(&self, request: &Value) -> Result<()> {
        let pool = self.call(
            "IpamDriver.RequestPool",
            &json!({"AddressSpace": "viaduct-local", "Pool": POOL, "SubPool": "", "Options": null,
                "V6": false}),
        )?;
        ensure!(pool["Pool"] == POOL, "{pool}");
        let gateway = self.address(&json!({"RequestAddressType": "com.docker.network.gateway"}))?;
        ensure!(gateway == "10.7.0.1/24", "{gateway}");
        self.call("NetworkDriver.CreateNetwork", request).map(drop)
    }

    /// Requests an address of the pool, with its prefix length.
    pub fn address(&self, options: &Value) -> Result<String> {
        let request = json!({"PoolID": POOL, "Address": "", "Options": options});
        let answer = self.call("IpamDriver.RequestAddress", &request)?;
        Ok(answer["Address"].as_str().context("no address")?.to_owned())
    }

    /// Creates an endpoint, joins it, and moves its interface into a new namespace as dockerd does.
    pub fn start(&self, name: &str, endpoint: &str) -> Result<Container> {
        let address = self.address(&json!({}))?;
        let request = of(
            endpoint,
            &json!({"Interface": {"Address": address, "AddressIPv6": "",
            "MacAddress": ""}, "Options": {}}),
        );
        let created = self.call("NetworkDriver.CreateEndpoint", &request)?;
        let joined = self.call(
            "NetworkDriver.Join",
            &of(
                endpoint,
                &json!({"SandboxKey": "/var/run/docker/netns/x", "Options": {}}),
            ),
        )?;
        let machine = self.sandbox.machine(name)?;
        Container::moved(&self.sandbox.node, machine, &address, &created, &joined)
    }

    /// Returns a container with the node that it is on.
    pub fn attached<'a>(&'a self, container: &'a Container) -> Attached<'a> {
        Attached {
            sandbox: &self.sandbox,
            agent: &self.agent,
            container,
        }
    }

    /// Publishes ports of an endpoint.
    pub fn publish(&self, endpoint: &str, bindings: &Value) -> Result<()> {
        let options = json!({"com.docker.network.portmap": bindings});
        let request = of(endpoint, &json!({"Options": options}));
        self.call("NetworkDriver.ProgramExternalConnectivity", &request)
            .map(drop)
    }

    /// Returns the published ports of the node.
    pub fn published(&self, endpoint: &str) -> Result<Vec<u16>> {
        let info = self.call("NetworkDriver.EndpointOperInfo", &of(endpoint, &json!({})))?;
        let bindings = info["Value"]["com.docker.network.portmap"].as_array();
        let ports = bindings.into_iter().flatten().map(|it| &it["HostPort"]);
        ports
            .map(|port| Ok(u16::try_from(port.as_u64().context("no port")?)?))
            .collect()
    }

    /// Removes an endpoint as dockerd does.
    pub fn stop(&self, container: &Container, endpoint: &str) -> Result<()> {
        let only = of(endpoint, &json!({}));
        self.call("NetworkDriver.RevokeExternalConnectivity", &only)?;
        self.call("NetworkDriver.Leave", &only)?;
        self.call("NetworkDriver.DeleteEndpoint", &only)?;
        self.release(&container.address.to_string())
    }

    /// Releases an address of the pool.
    pub fn release(&self, address: &str) -> Result<()> {
        let request = json!({"PoolID": POOL, "Address": address});
        self.call("IpamDriver.ReleaseAddress", &request).map(drop)
    }

    /// Deletes the network and its pool.
    pub fn delete_network(&self) -> Result<()> {
        let network = json!({"NetworkID": NETWORK});
        self.call("NetworkDriver.DeleteNetwork", &network)?;
        self.release("10.7.0.1")?;
        let pool = json!({"PoolID": POOL});
        self.call("IpamDriver.ReleasePool", &pool).map(drop)
    }

    /// Deletes the network, and asserts that nothing is left.
    pub fn clean(self) -> Result<()> {
        self.delete_network()?;
        let state = self.sandbox.node.call(&format!("cat {STATE}"))?;
        let state: Value = serde_json::from_str(&state)?;
        ensure!(
            state["networks"] == json!({}) && state["pools"] == json!({}),
            "{state}"
        );
        await_no_residue(&self.before, &self.sandbox.node)
    }
}

/// Returns a request for the network with these options.
pub fn create(options: &Value) -> Value {
    json!({
        "NetworkID": NETWORK,
        "IPv4Data": [{"AddressSpace": "viaduct-local", "Pool": POOL, "Gateway": "10.7.0.1/24",
            "AuxAddresses": {}}],
        "IPv6Data": [],
        "Options": {"com.docker.network.enable_ipv6": false,
            "com.docker.network.generic": options},
    })
}

/// Returns a request for an endpoint with additional fields.
pub fn of(endpoint: &str, fields: &Value) -> Value {
    let mut request = json!({"NetworkID": NETWORK, "EndpointID": endpoint});
    for (name, value) in fields.as_object().into_iter().flatten() {
        request[name] = value.clone();
    }
    request
}

/// Returns a binding of [`PORT`] to one of these ports of the node.
pub fn tcp(host_port: u16, host_port_end: u16) -> Value {
    json!({"Proto": 6, "IP": "", "Port": PORT, "HostIP": "", "HostPort": host_port,
        "HostPortEnd": host_port_end})
}

/// Returns the socket of an address and port.
pub fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address, port)
}
