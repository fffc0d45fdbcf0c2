//! The throw-away pods: network namespaces of this process, attached and detached by the requests
//! that the CNI plugin sends.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context as _, Result, bail};
use api::{AttachmentView, Client, CniRequest, CniVerb, Status, path};
use kernel::Namespace;
use serde_json::json;
use serde_json::value::to_raw_value;

use super::plan::{PORT, PodFacts};
use super::server;
use crate::cni::ID_PREFIX;
use crate::{advised, decode, get};

/// Interface of the pods.
pub(super) const IFNAME: &str = "eth0";
/// First host port that the test tries to publish, and the number of them.
const HOST_PORTS: (u16, u16) = (20_000, 10_000);
/// Default network of an agent that reports none.
const NETWORK: &str = "viaduct";

/// Two attached pods. Dropping it detaches them.
pub(super) struct Pods<'a> {
    client: &'a Client,
    attached: Vec<Pod>,
    /// Host port of the second pod.
    pub(super) host_port: u16,
    _lock: UnixListener,
}

/// A pod of the test.
struct Pod {
    namespace: Namespace,
    request: CniRequest,
    facts: PodFacts,
}

impl<'a> Pods<'a> {
    /// Removes what a killed test has left, and attaches two pods, the second of which is
    /// published.
    pub(super) fn attach(client: &'a Client) -> Result<Self> {
        let lock = lock()?;
        let status: Status = decode(&get(client, path::STATUS)?)?;
        let default = status.networks.iter().find(|network| network.is_default);
        let network = default.map_or(NETWORK, |network| &network.name);
        let host_port = free_port()?;
        remove_stale(client)?;
        let mut pods = Self {
            client,
            attached: Vec::new(),
            host_port,
            _lock: lock,
        };
        pods.add(network, "a", None)?;
        pods.add(network, "b", Some(host_port))?;
        for pod in &pods.attached {
            server::start(&pod.namespace, &pod.facts.addresses)
                .with_context(|| format!("cannot start the servers of pod {}", pod.facts.id))?;
        }
        Ok(pods)
    }

    fn add(&mut self, network: &str, name: &str, host_port: Option<u16>) -> Result<()> {
        let namespace = Namespace::create()
            .context("cannot create a network namespace: run viaductctl as root")?;
        let id = format!("{}{}-{name}", prefix(), std::process::id());
        let request = request(&id, network, &namespace.path(), host_port)?;
        // Before the request: an ADD whose answer is lost may have been executed.
        self.attached.push(Pod {
            namespace,
            request,
            facts: PodFacts::default(),
        });
        let Some(pod) = self.attached.last_mut() else {
            bail!("no pod");
        };
        let reply = self
            .client
            .post(CniVerb::Add.path(), &pod.request)
            .map_err(advised)?;
        if !reply.is_success() {
            return Err(advised(api::ClientError::Refused(reply.error())))
                .with_context(|| format!("the agent attaches no pod to network {network}"));
        }
        pod.facts = facts(&attachment(self.client, &id)?);
        Ok(())
    }

    /// Returns what is known about both pods.
    pub(super) fn facts(&self) -> [PodFacts; 2] {
        let mut facts = self.attached.iter().map(|pod| pod.facts.clone());
        [(); 2].map(|()| facts.next().unwrap_or_default())
    }

    /// Returns the namespace of the first or second pod.
    pub(super) fn namespace(&self, index: usize) -> Option<&Namespace> {
        Some(&self.attached.get(index)?.namespace)
    }

    /// Detaches the pods, and returns what could not be detached. What has been detached is not
    /// detached again.
    pub(super) fn detach(&mut self) -> Vec<String> {
        let mut failures = Vec::new();
        while let Some(pod) = self.attached.pop() {
            if let Err(error) = del(self.client, &pod.request) {
                failures.push(format!("pod {}: {error:#}", pod.request.container_id));
            }
        }
        failures
    }
}

impl Drop for Pods<'_> {
    fn drop(&mut self) {
        // On the way of another error; the next test tries again.
        let _failures = self.detach();
    }
}

/// Returns the attachment of a pod.
pub(super) fn attachment(client: &Client, id: &str) -> Result<AttachmentView> {
    let path = path::ATTACHMENT.replace("{id}", id);
    let views: Vec<AttachmentView> = decode(&get(client, &path)?)?;
    let found = views.into_iter().next();
    found.with_context(|| format!("the agent has no attachment of {id}"))
}

fn facts(view: &AttachmentView) -> PodFacts {
    let addresses = view.addresses.iter().filter_map(|it| {
        let (address, _) = it.address.split_once('/')?;
        address.parse::<IpAddr>().ok()
    });
    PodFacts {
        id: view.container_id.clone(),
        addresses: addresses.collect(),
        mtu: view.mtu,
    }
}

fn prefix() -> String {
    format!("{ID_PREFIX}test-")
}

fn request(id: &str, network: &str, netns: &str, host_port: Option<u16>) -> Result<CniRequest> {
    let mappings: Vec<_> = host_port
        .into_iter()
        .flat_map(|port| {
            ["tcp", "udp"].map(
                |protocol| json!({ "hostPort": port, "containerPort": PORT, "protocol": protocol }),
            )
        })
        .collect();
    let config = json!({
        "cniVersion": "1.1.0",
        "name": network,
        "type": "viaduct",
        "runtimeConfig": { "portMappings": mappings },
    });
    let mut args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=viaductctl;K8S_POD_NAME=".to_owned();
    write!(args, "test-{}", id.rsplit('-').next().unwrap_or_default())?;
    Ok(CniRequest {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        plugin: String::new(),
        traceparent: String::new(),
        container_id: id.to_owned(),
        netns: netns.to_owned(),
        ifname: IFNAME.to_owned(),
        args,
        // The agent executes no plugin, and requires the variable as the protocol does.
        path: invoke::DEFAULT_PATH.to_owned(),
        config: to_raw_value(&config)?,
        ipam: None,
    })
}

fn del(client: &Client, request: &CniRequest) -> Result<()> {
    let reply = client.post(CniVerb::Del.path(), request).map_err(advised)?;
    if reply.is_success() {
        Ok(())
    } else {
        Err(advised(api::ClientError::Refused(reply.error())))
    }
}

/// Detaches pods of earlier tests. None of them runs: this one has the lock.
fn remove_stale(client: &Client) -> Result<()> {
    let views: Vec<AttachmentView> = decode(&get(client, path::ATTACHMENTS)?)?;
    let stale = views
        .iter()
        .filter(|view| view.container_id.starts_with(&prefix()));
    for view in stale {
        let request = request(&view.container_id, &view.network, &view.netns, None)?;
        del(client, &request)
            .with_context(|| format!("cannot remove {} of an earlier test", view.container_id))?;
    }
    Ok(())
}

/// Locks the test. The lock is an abstract socket, which ends with the process.
fn lock() -> Result<UnixListener> {
    let address = SocketAddr::from_abstract_name("viaductctl/test")?;
    match UnixListener::bind_addr(&address) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            bail!("another viaductctl test runs on this node")
        }
        locked => locked.context("cannot lock the test"),
    }
}

/// Returns a host port that no socket of the node and no other pod has.
fn free_port() -> Result<u16> {
    let (first, count) = HOST_PORTS;
    let begin = u16::try_from(std::process::id() % u32::from(count)).unwrap_or(0);
    let mut ports = (0..count).map(|step| first + (begin + step) % count);
    let is_free = |port: &u16| {
        ["0.0.0.0", "::"].iter().all(|any| {
            let any: IpAddr = any.parse().expect("a literal address");
            let taken = |error: &std::io::Error| error.kind() != ErrorKind::Unsupported;
            let tcp = TcpListener::bind((any, *port)).map(drop);
            let udp = UdpSocket::bind((any, *port)).map(drop);
            ![tcp, udp]
                .iter()
                .any(|bound| bound.as_ref().is_err_and(taken))
        })
    };
    ports
        .find(is_free)
        .context("no host port from 20000 on is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_add_of_a_test_pod_publishes_its_port_for_tcp_and_udp() {
        let request = request("viaductctl-test-9-b", "net", "/proc/9/fd/4", Some(20_009)).unwrap();
        let config: serde_json::Value = serde_json::from_str(request.config.get()).unwrap();
        assert_eq!(config["name"], "net");
        let ports = config["runtimeConfig"]["portMappings"].as_array().unwrap();
        assert_eq!(ports.len(), 2);
        assert!(ports.iter().all(|it| it["hostPort"] == 20_009));
        assert!(request.args.ends_with("K8S_POD_NAME=test-b"));
    }
}
