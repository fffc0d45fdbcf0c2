//! etcd, the API server and the controllers, on a machine beside the nodes.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::api::{AUTHORITY, Api};
use super::node::node_name;
use crate::cluster::network::{Network, addresses};
use crate::company::newest;
use crate::kube::{self, launch, read, write};
use crate::manifests::object;
use crate::{Machine, Process, until};

/// Folder of keys, certificates, tokens and data.
const FOLDER: &str = "/run/kubernetes";
/// The machine's number on the switch.
const NUMBER: u8 = 250;
const PORT: u16 = 6443;
/// The address of the API server's Service, for pods: the first one of services.
const SERVICE: &str = "10.96.0.1";
const ETCD: &str = "http://127.0.0.1:2379";
/// Addresses of services, and of all pods, of which each node gets a part.
const SERVICES: &str = "10.96.0.0/16,fd00:96::/112";
pub(super) const PODS: &str = "10.82.0.0/16,fd00:82::/48";
/// Tokens of users who may do everything.
const ADMINISTRATOR: &str = "administrator";
const CONTROLLERS: &str = "controllers";
/// The token of all kube-proxies. That of a kubelet is the name of its Node.
pub(super) const PROXY: &str = "proxy";

/// Who registers Nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// Kubelets, which send heartbeats.
    OfKubelets,
    /// The test. The controller that finds Nodes without heartbeats does not run.
    OfTheTest,
}

/// A control plane. Dropping it kills its programs.
#[derive(Debug)]
pub struct ControlPlane {
    /// A client with all rights.
    pub api: Api,
    machine: Machine,
    server: Option<Process>,
    _controllers: [Process; 2],
    _etcd: Process,
}

impl ControlPlane {
    /// Starts all programs on a machine of the network, and waits until the server is ready.
    pub fn start(network: &Network, nodes: Nodes) -> Result<Self> {
        let machine = network.join("control", NUMBER)?;
        make_keys(&machine)?;
        write(&machine, &format!("{FOLDER}/tokens"), &tokens(network))?;
        let etcd = start_etcd(&machine)?;
        let api = Api::new(&machine, Self::address(), ADMINISTRATOR);
        let server = start_server(&machine, &api)?;
        let controllers = [
            start_controllers(&machine, nodes)?,
            start_scheduler(&machine)?,
        ];
        let plane = Self {
            api,
            machine,
            server: Some(server),
            _controllers: controllers,
            _etcd: etcd,
        };
        plane.await_object("/api/v1/namespaces/default/serviceaccounts/default")?;
        Ok(plane)
    }

    /// Returns where the API server listens.
    pub fn address() -> SocketAddr {
        SocketAddr::new(addresses(NUMBER)[0], PORT)
    }

    /// Kills the API server.
    pub fn kill_server(&mut self) -> Result<()> {
        let server = self.server.take().context("the API server runs")?;
        server.end(Signal::SIGKILL).map(drop)
    }

    /// Starts the API server again, and waits until it is ready.
    pub fn restart_server(&mut self) -> Result<()> {
        self.server = Some(start_server(&self.machine, &self.api)?);
        Ok(())
    }

    /// Removes all earlier versions of all objects from etcd: a watch from one of them has expired,
    /// once the API server has restarted.
    pub fn compact(&self) -> Result<()> {
        let call = |path: &str, body: &str| -> Result<Value> {
            let url = format!("{ETCD}/v3/kv/{path}");
            let words = ["curl", "--silent", "--fail-with-body", "--data", body, &url];
            Ok(serde_json::from_str(&self.machine.call_words(&words)?)?)
        };
        let found = call("range", r#"{"key":"Lw=="}"#)?;
        let revision = found["header"]["revision"]
            .as_str()
            .context("etcd answers with its revision")?;
        let body = json!({ "revision": revision, "physical": true });
        call("compaction", &body.to_string()).map(drop)
    }

    /// Creates the service account of `deploy/kubernetes` with its rights, and returns a token.
    pub fn add_account(&self) -> Result<String> {
        let accounts = "/api/v1/namespaces/kube-system/serviceaccounts";
        self.await_object(&format!("{accounts}/default"))?;
        let roles = "/apis/rbac.authorization.k8s.io/v1";
        for (file, kind, path) in [
            (
                "service-account.yaml",
                "ServiceAccount",
                accounts.to_owned(),
            ),
            (
                "cluster-role.yaml",
                "ClusterRole",
                format!("{roles}/clusterroles"),
            ),
            (
                "cluster-role.yaml",
                "ClusterRoleBinding",
                format!("{roles}/clusterrolebindings"),
            ),
        ] {
            self.api.create(&path, &object(file, kind)?)?;
        }
        self.token()
    }

    /// Returns a new token of the service account.
    pub fn token(&self) -> Result<String> {
        let path = "/api/v1/namespaces/kube-system/serviceaccounts/viaduct/token";
        let request = json!({
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {},
        });
        let answer = self.api.create(path, &request)?;
        let token = answer["status"]["token"].as_str();
        Ok(token.context("the answer has a token")?.to_owned())
    }

    /// Gives a node the certificate of the authority that has signed the server's.
    pub fn introduce(&self, node: &Machine) -> Result<()> {
        let text = read(&self.machine, AUTHORITY).context("the authority has a certificate")?;
        node.call(&format!("mkdir -p {FOLDER}"))?;
        write(node, AUTHORITY, &text)
    }

    /// Waits until the API server has an object, and returns it.
    pub fn await_object(&self, path: &str) -> Result<Value> {
        until(&format!("there is {path}"), || Ok(self.api.get(path).ok()))
    }
}

/// Returns the users of the API server: token, name, ID and group in each line.
fn tokens(network: &Network) -> String {
    let kubelets = network.hosts.iter().map(|host| {
        let name = node_name(host);
        format!("{name},system:node:{name},{name},system:nodes")
    });
    let mut lines = vec![
        format!("{ADMINISTRATOR},administrator,1,system:masters"),
        format!("{CONTROLLERS},controllers,2,system:masters"),
        format!("{PROXY},system:kube-proxy,3"),
    ];
    lines.extend(kubelets);
    lines.join("\n")
}

/// Writes a certificate authority, the server's certificate, and the key of service accounts.
fn make_keys(machine: &Machine) -> Result<()> {
    machine.call(&format!("mkdir -p {FOLDER}"))?;
    let request = "openssl req -x509 -nodes -days 2 -newkey ec -pkeyopt ec_paramgen_curve:P-256";
    machine.call(&format!(
        "{request} -keyout {FOLDER}/ca.key -out {AUTHORITY} -subj /CN=tests"
    ))?;
    machine.call(&format!(
        "{request} -CA {AUTHORITY} -CAkey {FOLDER}/ca.key -keyout {FOLDER}/server.key \
         -out {FOLDER}/server.crt -subj /CN=kubernetes -addext subjectAltName=IP:{},IP:{SERVICE} \
         -addext basicConstraints=critical,CA:FALSE",
        ControlPlane::address().ip()
    ))?;
    machine
        .call(&format!("openssl genrsa -out {FOLDER}/accounts.key 2048"))
        .map(drop)
}

fn start_etcd(machine: &Machine) -> Result<Process> {
    let (_, folder) = newest("etcd", "etcd").with_context(|| missing("etcd"))?;
    let peers = "http://127.0.0.1:2380";
    let words = [
        folder.join("etcd").display().to_string(),
        format!("--data-dir={FOLDER}/etcd"),
        format!("--listen-client-urls={ETCD}"),
        format!("--advertise-client-urls={ETCD}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=default={peers}"),
    ];
    let process = launch(machine, &words)?;
    let health = ["curl", "--silent", &format!("{ETCD}/health")];
    until("etcd is healthy", || {
        alive("etcd", &process)?;
        let answer = machine.output(&health)?;
        Ok(String::from_utf8_lossy(&answer.stdout)
            .contains("true")
            .then_some(()))
    })?;
    Ok(process)
}

fn start_server(machine: &Machine, api: &Api) -> Result<Process> {
    let address = ControlPlane::address();
    let words = [
        program_of("kube-apiserver")?.display().to_string(),
        format!("--etcd-servers={ETCD}"),
        format!("--bind-address={}", address.ip()),
        format!("--advertise-address={}", address.ip()),
        format!("--secure-port={}", address.port()),
        format!("--tls-cert-file={FOLDER}/server.crt"),
        format!("--tls-private-key-file={FOLDER}/server.key"),
        format!("--token-auth-file={FOLDER}/tokens"),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={FOLDER}/accounts.key"),
        format!("--service-account-signing-key-file={FOLDER}/accounts.key"),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--feature-gates=IPv6DualStack=true".to_owned(),
    ];
    let process = launch(machine, &words)?;
    until("the API server is ready", || {
        alive("the API server", &process)?;
        let answer = api.answer("/readyz").ok();
        Ok(answer.filter(|(status, _)| *status == 200))
    })?;
    Ok(process)
}

fn start_controllers(machine: &Machine, nodes: Nodes) -> Result<Process> {
    let controllers = match nodes {
        Nodes::OfKubelets => "*",
        Nodes::OfTheTest => "*,-nodelifecycle",
    };
    let path = client_of_controllers(machine)?;
    let words = [
        program_of("kube-controller-manager")?.display().to_string(),
        format!("--kubeconfig={path}"),
        format!("--controllers={controllers}"),
        "--allocate-node-cidrs=true".to_owned(),
        format!("--cluster-cidr={PODS}"),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--node-cidr-mask-size-ipv4=24".to_owned(),
        "--node-cidr-mask-size-ipv6=64".to_owned(),
        format!("--service-account-private-key-file={FOLDER}/accounts.key"),
        format!("--root-ca-file={AUTHORITY}"),
        "--leader-elect=false".to_owned(),
        "--port=0".to_owned(),
        format!("--cert-dir={FOLDER}/controllers"),
        // Else a folder of the machine.
        format!("--flex-volume-plugin-dir={FOLDER}/plugins"),
        "--feature-gates=IPv6DualStack=true".to_owned(),
    ];
    launch(machine, &words)
}

/// Starts the program that chooses the Nodes of Pods.
fn start_scheduler(machine: &Machine) -> Result<Process> {
    let path = client_of_controllers(machine)?;
    let words = [
        program_of("kube-scheduler")?.display().to_string(),
        format!("--kubeconfig={path}"),
        "--leader-elect=false".to_owned(),
        "--port=0".to_owned(),
        format!("--cert-dir={FOLDER}/scheduler"),
    ];
    launch(machine, &words)
}

/// Writes the kubeconfig of the controllers, and returns its path.
fn client_of_controllers(machine: &Machine) -> Result<String> {
    let path = format!("{FOLDER}/controllers.config");
    write(
        machine,
        &path,
        &kubeconfig(&json!({ "token": CONTROLLERS })),
    )?;
    Ok(path)
}

/// Returns a kubeconfig of this user, for machines that have the authority's certificate.
pub(super) fn kubeconfig(user: &Value) -> String {
    let server = format!("https://{}", ControlPlane::address());
    let cluster = json!({ "server": server, "certificate-authority": AUTHORITY });
    kube::kubeconfig(&cluster, user)
}

fn alive(name: &str, process: &Process) -> Result<()> {
    let ended = process.ended()?;
    ensure!(
        ended.is_none(),
        "{name} exited ({ended:?}): {}",
        process.output()
    );
    Ok(())
}

/// Returns the path of a program of Kubernetes.
pub(super) fn program_of(program: &str) -> Result<PathBuf> {
    let found = newest("kubernetes", program);
    let (_, folder) = found.with_context(|| missing(program))?;
    Ok(folder.join(program))
}

fn missing(program: &str) -> String {
    format!("there is no {program} below target/tools: `cargo xtask test cluster`")
}
