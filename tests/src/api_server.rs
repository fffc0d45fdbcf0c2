//! A Kubernetes API server for tests: lists and watches Nodes, Pods, Namespaces and network
//! policies, patches Nodes, and fails in the ways that a real one does not on demand.
//!
//! Requests and their answers are those that kube's client and kubectl exchange with a real server:
//! pages of lists, `resourceVersion`, streamed lists with their final bookmark, status objects.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use serde_json::{Value, json};

use crate::http_server::Connection;
use crate::{Machine, bound};

mod requests;
mod world;

use world::{Kind, World};

/// What the server does wrong.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "faults are independent of each other, and a test sets one or two by name"
)]
pub struct Faults {
    /// Answers each request with this HTTP status.
    pub status: Option<u16>,
    /// Seconds of `Retry-After` in such an answer.
    pub retry_after: Option<u32>,
    /// Accepts no requests: closes each connection.
    pub is_gone: bool,
    /// Sends half of this many next watch events, and closes their connections.
    pub half_events: u32,
    /// Refuses patches, as without the right.
    pub forbids_patches: bool,
    /// Refuses to list and watch this resource, as without the right.
    pub forbids: Option<&'static str>,
    /// The only bearer token that is accepted.
    pub token: Option<String>,
    /// Knows no streamed lists, as Kubernetes 1.33 without the feature gate.
    pub has_no_streams: bool,
    /// Is of this minor version.
    pub minor: Option<u32>,
    /// Answers a watch from a compacted version with HTTP status 410, not with an event.
    pub expires_by_status: bool,
}

/// The server. It stops to answer when it is dropped.
#[derive(Debug)]
pub struct ApiServer {
    world: Arc<World>,
}

impl ApiServer {
    /// Returns a server without objects, which listens nowhere yet.
    #[expect(
        clippy::new_without_default,
        reason = "a server is started, not a value"
    )]
    pub fn new() -> Self {
        Self {
            world: Arc::new(World::new()),
        }
    }

    /// Listens at an address of `machine`.
    pub fn listen(&self, machine: &Machine, address: SocketAddr) -> Result<()> {
        let listener = bound(machine, address, TcpListener::bind)?;
        let world = Arc::clone(&self.world);
        thread::spawn(move || accept(&listener, &world));
        Ok(())
    }

    /// Changes what the server does wrong.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        self.world.change_faults(change);
    }

    /// Closes all connections.
    pub fn disconnect(&self) {
        self.world.disconnect();
    }

    /// Goes away, or returns.
    pub fn set_gone(&self, is_gone: bool) {
        self.faults(|faults| faults.is_gone = is_gone);
        self.disconnect();
    }

    /// Creates or replaces a Node. Its creation time is that of the first call.
    pub fn put_node(&self, node: Value) {
        self.world.put(Kind::Nodes, node);
    }

    /// Deletes a Node.
    pub fn delete_node(&self, name: &str) {
        self.world.delete(Kind::Nodes, name);
    }

    /// Returns a Node.
    pub fn node(&self, name: &str) -> Option<Value> {
        self.world.get(Kind::Nodes, name)
    }

    /// Creates or replaces a Pod.
    pub fn put_pod(&self, pod: Value) {
        self.world.put(Kind::Pods, pod);
    }

    /// Deletes a Pod, `namespace/name`.
    pub fn delete_pod(&self, pod: &str) {
        self.world.delete(Kind::Pods, pod);
    }

    /// Creates or replaces a Namespace.
    pub fn put_namespace(&self, namespace: Value) {
        self.world.put(Kind::Namespaces, namespace);
    }

    /// Creates or replaces a network policy.
    pub fn put_policy(&self, policy: Value) {
        self.world.put(Kind::NetworkPolicies, policy);
    }

    /// Deletes a network policy, `namespace/name`.
    pub fn delete_policy(&self, policy: &str) {
        self.world.delete(Kind::NetworkPolicies, policy);
    }

    /// Forgets all changes so far: a watch from one of their versions has expired.
    pub fn compact(&self) {
        self.world.compact();
    }

    /// Returns the requests so far as verb and resource, for example `list nodes`.
    pub fn requests(&self) -> BTreeSet<String> {
        self.world.requests()
    }

    /// Returns how many requests of this verb and resource were answered.
    pub fn count(&self, request: &str) -> usize {
        self.world.count(request)
    }

    /// Returns the query of the latest request of this verb and resource.
    pub fn last_query(&self, request: &str) -> String {
        self.world.last_query(request)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.set_gone(true);
    }
}

fn accept(listener: &TcpListener, world: &Arc<World>) {
    for stream in listener.incoming().map_while(Result::ok) {
        if world.connected(&stream) {
            let world = Arc::clone(world);
            thread::spawn(move || serve(stream, &world));
        }
    }
}

/// Serves a connection until it ends. Its errors are those of the client.
fn serve(stream: TcpStream, world: &World) {
    let mut connection = Connection::new(stream);
    while let Ok(Some(request)) = connection.request() {
        if requests::answer(&mut connection, &request, world).is_err() {
            return;
        }
    }
}

/// Returns a Node as the API has it, with the size of a real one.
pub fn node(name: &str, pod_cidrs: &[String], internal_ips: &[String]) -> Value {
    let address = |kind: &str, address: &str| json!({ "type": kind, "address": address });
    let mut addresses: Vec<Value> = internal_ips
        .iter()
        .map(|one| address("InternalIP", one))
        .collect();
    addresses.push(address("Hostname", name));
    addresses.push(address("ExternalIP", "203.0.113.200"));
    let images = (0..50).map(|number| {
        let image = format!("registry.example.org/team-{number}/service-{number}");
        json!({ "names": [format!("{image}@sha256:{number:064x}"), format!("{image}:v1.{number}")],
            "sizeBytes": 31_457_280 + number })
    });
    let images: Vec<Value> = images.collect();
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "spec": { "podCIDR": pod_cidrs.first(), "podCIDRs": pod_cidrs },
        "status": {
            "addresses": addresses,
            "conditions": [{ "type": "Ready", "status": "True" }],
            "images": images,
        },
    })
}
