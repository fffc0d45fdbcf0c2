//! podman with its defaults publishes ports: podman binds them itself, and conmon keeps the
//! sockets.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail, ensure};
use e2e::containers::{Podman, await_page};
use e2e::residue::await_no_residue;
use e2e::{Agent, Machine, NODE, Process, Residue, Sandbox, program, until};
use serde_json::{Value, json};

/// Returns the list of a network as `podman network create` writes it.
fn network(name: &str, bridge: &str, subnets: &[&str]) -> Value {
    let ranges: Vec<Value> = subnets
        .iter()
        .map(|subnet| json!([{ "subnet": subnet }]))
        .collect();
    json!({ "cniVersion": "0.4.0", "name": name, "plugins": [
        { "type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true, "hairpinMode": true,
          "capabilities": { "ips": true, "mac": true },
          "ipam": { "type": "host-local", "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }], "ranges": ranges } },
        { "type": "portmap", "capabilities": { "portMappings": true } },
        { "type": "firewall", "backend": "" },
        { "type": "tuning", "capabilities": { "mac": true } },
    ] })
}

struct Scene {
    sandbox: Sandbox,
    agent: Agent,
    podman: Podman,
    before: Residue,
}

impl Scene {
    fn new() -> Result<Self> {
        let (sandbox, agent) = Sandbox::with_agent()?;
        let before = Residue::of(&sandbox.node, &[])?;
        let list = network("podman", "cni-podman0", &["10.88.0.0/16", "fd00:88::/64"]);
        let cgroup = agent.cgroup().context("there is no cgroup2")?;
        let podman = Podman::new(&sandbox.node, &program("cni"), &list)?.in_cgroup(cgroup)?;
        Ok(Self {
            sandbox,
            agent,
            podman,
            before,
        })
    }

    fn node(&self) -> &Machine {
        &self.sandbox.node
    }

    /// Waits until what holds the port in IPv4 is `holder`: `socket` of the agent, or `runtime`.
    fn is_held_by(&self, port: u16, holder: &str) -> Result<()> {
        until(&format!("port {port} is held by {holder}"), || {
            let answer = self.agent.get("/v1/hostports")?;
            let ports = answer.as_array().context("a list")?;
            let claims = ports
                .iter()
                .filter(|view| view["host_port"] == port)
                .flat_map(|view| view["claims"].as_array().cloned().unwrap_or_default());
            let mut v4 = claims.filter(|claim| claim["socket"] == format!("0.0.0.0:{port}"));
            let held = v4.next().map(|claim| claim["held_by"].clone());
            Ok((held == Some(json!(holder))).then_some(()))
        })
        .with_context(|| self.agent.ctl("ports").unwrap_or_default())
    }

    /// Asserts that a process of the node cannot bind the port.
    fn refuses_others(&self, port: u16) -> Result<()> {
        let bind = format!("exec python3 -c 'import socket; socket.create_server((\"\", {port}))'");
        match self.podman.script(&bind) {
            Err(refused) if refused.to_string().contains("in use") => Ok(()),
            bound => bail!("a bind to port {port}: {bound:?}"),
        }
    }

    fn clean(self) -> Result<()> {
        self.podman.remove_all()?;
        // podman's cleanup process, which starts when the container ends, may execute the DEL.
        self.agent.await_detached()?;
        for bridge in ["cni-podman0", "cni-podman1"] {
            let _ = self.node().call(&format!("ip link delete {bridge}"));
        }
        await_no_residue(&self.before, self.node())
    }
}

/// Asserts that the web server is reachable by the hostport from the world, in these families.
fn serves(sandbox: &Sandbox, port: u16, families: &[usize]) -> Result<()> {
    for family in families {
        await_page(&sandbox.world, SocketAddr::new(NODE[*family], port))?;
    }
    Ok(())
}

const BOTH: [usize; 2] = [0, 1];

#[test]
fn podman_publishes_ports_with_its_default_port_reservation() -> Result<()> {
    let scene = Scene::new()?;
    let (sandbox, podman) = (&scene.sandbox, &scene.podman);
    podman.run(
        "web",
        "--publish 8080:80 --publish 5353:53/udp --publish 9000-9002:80-82",
    )?;
    serves(sandbox, 8080, &BOTH)?;
    for port in [8080, 5353, 9000, 9002] {
        scene.is_held_by(port, "runtime")?;
    }
    let listed = scene.node().call("ss --no-header --numeric -ltup")?;
    let of_conmon = |text: &str| {
        listed
            .lines()
            .any(|line| line.contains(text) && line.contains("conmon"))
    };
    ensure!(
        of_conmon("0.0.0.0:8080") && of_conmon("0.0.0.0:5353"),
        "{listed}"
    );
    scene.refuses_others(8080)?;

    podman.call("restart --time 0 web")?;
    serves(sandbox, 8080, &BOTH)?;
    scene.is_held_by(8080, "runtime")?;
    podman.call("stop --time 0 web")?;
    assert_eq!(scene.agent.ctl("ports")?, "No published ports.\n");
    podman.call("start web")?;
    serves(sandbox, 8080, &BOTH)?;
    scene.is_held_by(8080, "runtime")?;
    scene.clean()
}

#[test]
fn the_agent_takes_a_port_again_when_the_sockets_of_podman_are_gone() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.podman.run("web", "--publish 8080:80")?;
    scene.is_held_by(8080, "runtime")?;
    scene.agent.kill()?;
    serves(&scene.sandbox, 8080, &BOTH)?;
    scene.podman.restart_agent(&mut scene.agent)?;
    scene.is_held_by(8080, "runtime")?;
    let degraded = scene.agent.get("/v1/status")?["degraded"].to_string();
    ensure!(!degraded.contains("8080"), "{degraded}");

    let conmon = scene
        .podman
        .call("inspect --format {{.State.ConmonPid}} web")?;
    scene.node().call(&format!("kill -9 {}", conmon.trim()))?;
    scene.is_held_by(8080, "socket")?;
    serves(&scene.sandbox, 8080, &BOTH)?;
    scene.refuses_others(8080)?;
    scene.clean()
}

/// With a user namespace, podman binds the ports before the ADD. The test does not wait for the
/// DEL: podman 4.3.1 sometimes removes such a container without one, with the reference plugins
/// too.
#[test]
fn podman_may_bind_its_ports_before_the_add() -> Result<()> {
    let scene = Scene::new()?;
    scene
        .podman
        .run("web", "--publish 8080:80 --uidmap 0:100000:65536")?;
    serves(&scene.sandbox, 8080, &BOTH)?;
    scene.is_held_by(8080, "runtime")?;
    Ok(())
}

#[test]
fn podman_starts_twelve_containers_with_ports_in_parallel() -> Result<()> {
    let scene = Scene::new()?;
    // The first run sets up the storage.
    scene.podman.run("first", "")?;
    let image = e2e::containers::IMAGE;
    scene.podman.script(&format!(
        "for i in 01 02 03 04 05 06 07 08 09 10 11 12; do \
         {{podman}} run --detach --cgroups=disabled --name web$i --publish 80$i:80 {image} & pids=\"$pids $!\"; done; \
         for pid in $pids; do wait $pid || exit 1; done"
    ))?;
    for port in 8001..=8012 {
        serves(&scene.sandbox, port, &[0])?;
        scene.is_held_by(port, "runtime")?;
    }
    scene.clean()
}

#[test]
fn a_port_of_another_process_is_refused_to_podman_by_name() -> Result<()> {
    let scene = Scene::new()?;
    let script = "import socket, time; s = socket.create_server(('', 8080)); print('ready', flush=True); time.sleep(600)";
    let intruder = Process::start(scene.node(), &["python3", "-c", script])?;
    until("the program listens", || {
        Ok(intruder.output().contains("ready").then_some(()))
    })?;
    let refused = scene.podman.run("web", "--publish 8080:80").unwrap_err();
    let words = format!(
        "host port 8080/tcp is in use by python3 (pid {}",
        intruder.pid()
    );
    ensure!(refused.to_string().contains(&words), "{refused}");
    assert_eq!(scene.agent.get("/v1/attachments")?, json!([]));
    drop(intruder);
    scene.clean()
}

/// Two networks of one container, each with the same port mappings.
struct TwoNetworks {
    scene: Scene,
}

impl TwoNetworks {
    fn new() -> Result<Self> {
        let scene = Scene::new()?;
        let second = network("second", "cni-podman1", &["10.89.0.0/24"]);
        scene
            .node()
            .run(|| std::fs::write("/run/nets/20.conflist", second.to_string()))?;
        Ok(Self { scene })
    }

    /// Asserts that port 8080 leads to the container by this network in IPv4.
    fn serves_by(&self, network: &str) -> Result<()> {
        serves(&self.scene.sandbox, 8080, &[0])?;
        let ports = self.scene.agent.get("/v1/hostports")?;
        let serving = ports.as_array().context("a list")?.iter().find(|view| {
            let claims = view["claims"].as_array().cloned().unwrap_or_default();
            let v4 =
                |claim: &Value| claim["socket"] == "0.0.0.0:8080" && claim["held_by"] != "standby";
            claims.iter().any(v4)
        });
        ensure!(
            serving.is_some_and(|view| view["network"] == network),
            "{ports}"
        );
        Ok(())
    }
}

/// behaviours F33, F34
#[test]
fn podman_keeps_the_ports_of_a_container_while_one_of_its_networks_is_disconnected() -> Result<()> {
    let two = TwoNetworks::new()?;
    let podman = &two.scene.podman;
    podman.run("web", "--network podman --network second --publish 8080:80")?;
    let listed = two.scene.agent.ctl("ports")?;
    ensure!(listed.contains("0.0.0.0:8080 (standby)"), "{listed}");
    serves(&two.scene.sandbox, 8080, &BOTH)?;
    let other = podman.run("other", "--publish 8080:80").unwrap_err();
    ensure!(other.to_string().contains("8080"), "{other}");
    podman.call("rm --force --time 0 other")?;

    podman.call("network disconnect podman web")?;
    two.serves_by("second")?;
    podman.call("network connect podman web")?;
    two.serves_by("second")?;
    podman.call("network disconnect second web")?;
    two.serves_by("podman")?;
    podman.call("restart --time 0 web")?;
    two.serves_by("podman")?;
    two.scene.clean()
}
