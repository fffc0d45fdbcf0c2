//! `viaductctl migrate`: running pods of the reference chain move to Viaduct and back, under
//! traffic.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Connection, ConnectionLoad, ENDLESS, Echo, Machine, NODE, Sandbox, Sends, Stream, WORLD,
    program, until,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Ports of the pods: an echo server, and streams.
const ECHO: u16 = 80;
const STREAM: u16 = 5001;
/// Ports of the node for the first pod's ports.
const PUBLISHED: [u16; 2] = [8000, 9000];

/// Pods that the reference plugins have attached, and a runtime's directories.
struct Scene {
    sandbox: Sandbox,
    folder: TempDir,
    pods: Vec<Machine>,
    echoes: Vec<Echo>,
}

impl Scene {
    /// Attaches pods by the reference `bridge`, `host-local` and `portmap`.
    fn new(count: u16) -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let folder = tempfile::tempdir()?;
        let list = json!({
            "cniVersion": "1.0.0", "name": "old",
            "plugins": [
                {
                    "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": folder.path().join("leases"),
                        "ranges": [[{ "subnet": "10.66.0.0/24" }], [{ "subnet": "fd66::/64" }]],
                        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
                    },
                },
                { "type": "portmap", "capabilities": { "portMappings": true } },
            ],
        });
        fs::write(folder.path().join("10-old.conflist"), list.to_string())?;
        let mut scene = Self {
            sandbox,
            folder,
            pods: Vec::new(),
            echoes: Vec::new(),
        };
        for number in 0..count {
            scene.attach(number)?;
        }
        Ok(scene)
    }

    fn attach(&mut self, number: u16) -> Result<()> {
        let pod = self.sandbox.machine(&format!("p{number}"))?;
        let [echo, stream] = PUBLISHED.map(|first| first + number);
        let folder = self.folder.path().display();
        self.node().call(&format!(
            "{} cni add old {} --container-id p{number} --path {} --configurations {folder} --results {} \
             --publish {echo}:{ECHO} --publish {echo}:{ECHO}/udp --publish {stream}:{STREAM}",
            program("bin/viaductctl").display(),
            pod.path(),
            reference()?.display(),
            self.results().display(),
        ))?;
        self.echoes.push(Echo::start(&pod, ECHO)?);
        self.pods.push(pod);
        Ok(())
    }

    fn node(&self) -> &Machine {
        &self.sandbox.node
    }

    fn results(&self) -> PathBuf {
        self.folder.path().join("results")
    }

    /// Executes `viaductctl migrate`; returns whether it succeeded, and its output.
    fn migrate(&self, action: &str) -> Result<(bool, String)> {
        let line = format!(
            "{} migrate {action} --results {} --path {}",
            program("bin/viaductctl").display(),
            self.results().display(),
            reference()?.display()
        );
        let words: Vec<&str> = line.split(' ').collect();
        let output = self.node().output(&words)?;
        let text = [output.stdout, output.stderr].concat();
        Ok((
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        ))
    }

    fn migrate_all(&self, action: &str) -> Result<String> {
        let (success, text) = self.migrate(action)?;
        ensure!(success, "{action}: {text}");
        Ok(text)
    }

    /// The rules of published ports, sorted.
    fn rules(&self) -> Result<Vec<String>> {
        let mut rules = Vec::new();
        for tool in ["iptables", "ip6tables"] {
            let all = self.node().call(&format!("{tool} -t nat -S"))?;
            let own = all.lines().filter(|rule| rule.contains("CNI-DN-"));
            rules.extend(own.map(|rule| format!("{tool} {rule}")));
        }
        rules.sort();
        Ok(rules)
    }

    /// Opens a connection to each pod's published port, to the node's addresses in turns.
    fn connections(&self, from: &Machine) -> Result<Vec<Connection>> {
        (0..self.pods.len())
            .map(|number| {
                let port = PUBLISHED[0] + u16::try_from(number)?;
                Connection::tcp(from, SocketAddr::new(NODE[number % 2], port))
            })
            .collect()
    }

    /// Starts a stream through a pod's second port.
    fn stream(&self, number: u16, sends: Sends) -> Result<Stream> {
        let pod = &self.pods[usize::from(number)];
        let to = SocketAddr::new(NODE[0], PUBLISHED[1] + number);
        Stream::start((&self.sandbox.world, to), (pod, STREAM), sends, ENDLESS)
    }
}

/// Returns the directory of the reference plugins.
fn reference() -> Result<PathBuf> {
    e2e::chain::folder(e2e::chain::PluginSource::Reference)
}

fn adopted(agent: &Agent) -> Result<Vec<String>> {
    let attachments = agent.get("/v1/attachments")?;
    let all = attachments.as_array().context("attachments")?;
    ensure!(all.iter().all(|it| it["adopted"] == Value::Bool(true)));
    let ids = all.iter().filter_map(|it| it["containerID"].as_str());
    Ok(ids.map(str::to_owned).collect())
}

fn exchange(connections: &[Connection], what: &str) -> Result<()> {
    for connection in connections {
        let seen = connection.seen();
        connection
            .exchange()
            .with_context(|| format!("{what}: {seen}"))?;
    }
    Ok(())
}

/// Connections through published ports, some with traffic and some without.
#[derive(Default)]
struct Traffic {
    /// Connections without traffic until the end, with the moment at which they were opened.
    idle: Vec<(&'static str, Vec<Connection>)>,
    loads: Vec<(&'static str, ConnectionLoad)>,
    streams: Vec<Stream>,
}

impl Traffic {
    /// Opens two connections to each pod from the world: an idle one, and one with traffic.
    fn open(&mut self, scene: &Scene, when: &'static str) -> Result<()> {
        let world = &scene.sandbox.world;
        self.idle.push((when, scene.connections(world)?));
        let load = ConnectionLoad::start(scene.connections(world)?);
        self.loads.push((when, load));
        Ok(())
    }

    /// Waits until there was traffic on all connections but the idle ones.
    fn await_progress(&self) -> Result<()> {
        for (when, load) in &self.loads {
            load.await_round().with_context(|| (*when).to_owned())?;
        }
        let mut streams = self.streams.iter();
        streams.try_for_each(|stream| stream.await_progress(1 << 20))
    }

    /// Uses the idle connections, and closes all.
    fn end(self) -> Result<()> {
        for (when, connections) in &self.idle {
            exchange(connections, when)?;
        }
        for (when, load) in self.loads {
            let rounds = load.end().with_context(|| when.to_owned())?;
            ensure!(rounds > 0, "{when}");
        }
        self.streams.into_iter().try_for_each(Stream::stop)
    }
}

#[test]
fn twenty_running_pods_move_to_viaduct_and_back_without_losing_a_connection() -> Result<()> {
    let scene = Scene::new(20)?;
    let world = &scene.sandbox.world;
    let rules = scene.rules()?;
    ensure!(rules.len() >= 20, "{rules:?}");

    let mut traffic = Traffic::default();
    traffic.open(&scene, "before the agent")?;
    let of_node = scene.connections(scene.node())?;
    traffic.idle.push(("of the node", of_node));
    let _server = Echo::start(world, 90)?;
    let outward = Connection::tcp(&scene.pods[0], SocketAddr::new(WORLD[0], 90))?;
    let outward = ConnectionLoad::start(vec![outward]);
    traffic.loads.push(("outward", outward));
    traffic.streams = vec![
        scene.stream(1, Sends::Client)?,
        scene.stream(2, Sends::Server)?,
    ];
    let agent = Agent::start(scene.node(), &[])?;
    traffic.open(&scene, "with the agent")?;

    let plan = scene.migrate_all("--dry-run")?;
    assert_eq!(plan.matches("planned").count(), 20, "{plan}");
    assert_eq!(scene.rules()?, rules);
    ensure!(adopted(&agent)?.is_empty(), "a plan changed the node");

    scene.migrate_all("--apply")?;
    assert_eq!(scene.rules()?, Vec::<String>::new());
    assert_eq!(adopted(&agent)?.len(), 20);
    traffic.await_progress()?;
    // Once more, and nothing changes.
    scene.migrate_all("--apply")?;
    traffic.open(&scene, "by Viaduct")?;
    let udp = Connection::udp(world, SocketAddr::new(NODE[0], PUBLISHED[0]))?;
    traffic
        .loads
        .push(("UDP", ConnectionLoad::start(vec![udp])));
    traffic.await_progress()?;

    let report = scene.migrate_all("--undo")?;
    ensure!(
        report.contains("still use Viaduct's translation"),
        "{report}"
    );
    assert_eq!(scene.rules()?, rules);
    traffic.open(&scene, "after the way back")?;
    traffic.await_progress()?;
    traffic.end()?;

    // The pod with the UDP flow waits for its end.
    until("pods without connections are released", || {
        scene.migrate_all("--undo")?;
        Ok((adopted(&agent)?.iter().all(|id| id == "p0")).then_some(()))
    })?;
    assert_eq!(scene.rules()?, rules);
    exchange(&scene.connections(world)?, "without Viaduct")
}

#[test]
fn a_pod_with_connections_to_published_ports_is_refused_and_keeps_them() -> Result<()> {
    let scene = Scene::new(2)?;
    let agent = Agent::start(scene.node(), &[])?;
    let to = SocketAddr::new(NODE[0], PUBLISHED[0] + 1);
    let connection = Connection::tcp(&scene.pods[0], to)?;
    let rules = scene.rules()?;
    let (success, report) = scene.migrate("--apply")?;
    ensure!(!success, "{report}");
    let refused = report
        .lines()
        .find(|line| line.contains("refused"))
        .with_context(|| report.clone())?;
    ensure!(refused.starts_with("p0 "), "{report}");
    let address: IpAddr = NODE[0];
    ensure!(refused.contains(&format!("{address}:8001")), "{report}");
    assert_eq!(adopted(&agent)?, ["p1"]);
    // The rules of the refused pod stay, and so does the connection.
    let left = scene.rules()?;
    ensure!(!left.is_empty() && left.len() < rules.len(), "{left:?}");
    connection.exchange()?;
    drop(connection);
    until("the pod is migrated without its connection", || {
        let (success, _) = scene.migrate("--apply")?;
        Ok(success.then_some(()))
    })?;
    assert_eq!(scene.rules()?, Vec::<String>::new());
    exchange(&scene.connections(&scene.sandbox.world)?, "by Viaduct")
}
