//! `--web-page`: the page for browsers, in a headless Chromium.

use std::fs;
use std::io::{ErrorKind, copy};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use e2e::browser::{Browser, CHROMIUM};
use e2e::{
    Agent, Config, Echo, Machine, Mapping, NODE, Pod, Sandbox, Verb, WORLD, addresses, program,
    skipped, tcp_echo, tcp_source, until,
};
use serde_json::{Value, json};

const SOCKET: &str = "/run/viaduct/viaduct-ro.sock";
/// Port that is forwarded to the read-only socket, as by `ssh -L`.
const PORT: u16 = 9465;
/// Sends a packet with an address that is not the pod's.
const FORGED: &str = "ping -c 1 -W 1 -I 10.99.99.99 192.0.2.2";

/// A node with pods that communicate until the value is dropped.
struct Scene {
    sandbox: Sandbox,
    _agent: Agent,
    stop: Arc<AtomicBool>,
    traffic: Option<thread::JoinHandle<Result<()>>>,
    _servers: Vec<Echo>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(traffic) = self.traffic.take() {
            let _ended = traffic.join();
        }
    }
}

fn attach(sandbox: &Sandbox, name: &str, config: &Config) -> Result<Pod> {
    let mut pod = sandbox.pod(name)?;
    let names = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}");
    let call = pod.prepare(Verb::Add, config).set("CNI_ARGS", &names);
    pod.addresses = addresses(&call.run(&sandbox.node)?.result()?)?;
    Ok(pod)
}

impl Scene {
    fn start() -> Result<Self> {
        let sandbox = Sandbox::new()?;
        let flags = [
            format!("--read-only-socket={SOCKET}"),
            "--web-page".to_owned(),
        ];
        let agent = Agent::start(&sandbox.node, &flags.each_ref().map(String::as_str))?;
        let limits = json!({ "bandwidth": {
            "ingressRate": 50_000_000, "ingressBurst": 400_000,
            "egressRate": 20_000_000, "egressBurst": 400_000,
        } });
        let published = Config::new("1.1.0").publish(&[Mapping::tcp(8080, 80)]);
        let web = attach(&sandbox, "web-0", &published)?;
        let limited = Config::new("1.1.0").with("runtimeConfig", limits);
        let client = attach(&sandbox, "checkout-7d9c5b", &limited)?;
        client
            .machine
            .call("ip address add 10.99.99.99/32 dev lo")?;
        let servers = vec![
            Echo::start(&web.machine, 80)?,
            Echo::start(&sandbox.world, 443)?,
        ];
        let stop = Arc::new(AtomicBool::new(false));
        let (over, world) = (Arc::clone(&stop), sandbox.world.clone());
        let traffic = thread::spawn(move || communicate(&over, &world, &client.machine));
        Ok(Self {
            sandbox,
            _agent: agent,
            stop,
            traffic: Some(traffic),
            _servers: servers,
        })
    }
}

/// Exchanges bytes on connections through both kinds of flows, and sends packets that are dropped.
fn communicate(over: &AtomicBool, world: &Machine, client: &Machine) -> Result<()> {
    let out = tcp_source(client, 0, SocketAddr::new(WORLD[0], 443))?.1;
    let into = tcp_source(world, 0, SocketAddr::new(NODE[0], 8080))?.1;
    while !over.load(Ordering::Relaxed) {
        for _ in 0..500 {
            tcp_echo(&out)?;
            tcp_echo(&into)?;
        }
        let _none = client.output(&FORGED.split(' ').collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Forwards connections on the loopback of the world to the read-only socket until the test ends.
fn forward(sandbox: &Sandbox) -> Result<()> {
    let listener = (sandbox.world).run(|| TcpListener::bind(("127.0.0.1", PORT)))?;
    let node = sandbox.node.clone();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let Ok(agent) = node.mounts().run(|| UnixStream::connect(SOCKET)) else {
                return;
            };
            thread::spawn(move || relay(stream, agent));
        }
    });
    Ok(())
}

fn relay(client: TcpStream, agent: UnixStream) -> std::io::Result<()> {
    let (mut from_client, mut to_agent) = (client.try_clone()?, agent.try_clone()?);
    let there = thread::spawn(move || {
        let copied = copy(&mut from_client, &mut to_agent);
        to_agent.shutdown(Shutdown::Write).and(copied)
    });
    let (mut from_agent, mut to_client) = (agent, client);
    let copied = copy(&mut from_agent, &mut to_client);
    to_client.shutdown(Shutdown::Both)?;
    copied?;
    there.join().map_err(|_| ErrorKind::Other)??;
    Ok(())
}

/// Waits until the page has rows in each table, and a conversation with traffic.
fn await_content(browser: &mut Browser) -> Result<()> {
    let filled = "['talk', 'pods', 'ports', 'drops'].every((id) => \
         document.querySelectorAll(`#${id} tbody td:not(.none)`).length > 0)";
    until("each table of the page has rows", || {
        Ok((browser.evaluate(filled)? == true).then_some(()))
    })?;
    until("the page shows traffic", || {
        let table = browser.evaluate("document.getElementById('talk').textContent")?;
        let text = table.as_str().context("a table")?;
        Ok(["kbit/s", "Mbit/s"]
            .iter()
            .any(|unit| text.contains(unit))
            .then_some(()))
    })
}

/// Returns the address and the errors of all that the page has loaded and logged.
fn check_events(browser: &Browser) -> Result<()> {
    let own = format!("http://127.0.0.1:{PORT}/");
    let mut requests = 0;
    for event in &browser.events {
        let parameters = &event["params"];
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                let url = parameters["request"]["url"].as_str().context("a URL")?;
                ensure!(url.starts_with(&own), "the page requests {url}");
                requests += 1;
            }
            Some("Runtime.exceptionThrown" | "Log.entryAdded") => {
                anyhow::bail!("the page logs {parameters}");
            }
            _ => {}
        }
    }
    ensure!(requests > 8, "{requests} requests");
    Ok(())
}

#[test]
fn the_page_shows_node_pods_conversations_limits_ports_and_drops() -> Result<()> {
    if !Path::new(CHROMIUM).exists() {
        skipped("chromium is not installed");
        return Ok(());
    }
    let scene = Scene::start()?;
    forward(&scene.sandbox)?;
    let mut browser = Browser::start(&scene.sandbox.world)?;
    browser.emulate(1280, "light")?;
    browser.navigate(&format!("http://127.0.0.1:{PORT}/"))?;
    await_content(&mut browser)?;
    let body = browser.evaluate("document.body.innerText")?;
    let text = body.as_str().context("a text")?;
    for expected in [
        "shop/web-0",
        "shop/checkout-7d9c5b",
        "192.0.2.2",
        "tcp 443",
        "tcp 8080",
        "of 20.0 Mbit/s",
        "spoofed-address",
        "viaductd",
    ] {
        ensure!(text.contains(expected), "no {expected} in {text}");
    }
    let mut backgrounds = Vec::new();
    for (width, scheme) in [
        (1280, "light"),
        (1280, "dark"),
        (390, "light"),
        (390, "dark"),
    ] {
        browser.emulate(width, scheme)?;
        await_content(&mut browser)?;
        until("the diagram has the width of the page", || {
            let drawn = browser.evaluate(
                "(() => { const map = document.getElementById('map'); \
                 return Math.abs(map.viewBox.baseVal.width - map.clientWidth) < 2; })()",
            )?;
            Ok((drawn == true).then_some(()))
        })?;
        let fits = browser.evaluate("document.documentElement.scrollWidth <= innerWidth")?;
        ensure!(fits == true, "the page is wider than {width} pixels");
        backgrounds.push(browser.evaluate("getComputedStyle(document.body).backgroundColor")?);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(folder)?;
        let picture = folder.join(format!("web-page-{width}-{scheme}.png"));
        fs::write(picture, browser.screenshot()?)?;
    }
    ensure!(backgrounds[0] != backgrounds[1], "{backgrounds:?}");
    ensure!(backgrounds[1] == backgrounds[3], "{backgrounds:?}");
    check_events(&browser)
}

/// The policy of the page, by what a browser does with a script in the page and a request to
/// another host.
#[test]
fn the_pages_policy_forbids_inline_scripts_and_requests_to_other_hosts() -> Result<()> {
    if !Path::new(CHROMIUM).exists() {
        skipped("chromium is not installed");
        return Ok(());
    }
    let sandbox = Sandbox::new()?;
    let flags = [
        format!("--read-only-socket={SOCKET}"),
        "--web-page".to_owned(),
    ];
    let _agent = Agent::start(&sandbox.node, &flags.each_ref().map(String::as_str))?;
    forward(&sandbox)?;
    let mut browser = Browser::start(&sandbox.world)?;
    browser.navigate(&format!("http://127.0.0.1:{PORT}/"))?;
    until("the page has an answer", || {
        let state = browser.evaluate("document.getElementById('state')?.textContent")?;
        let answered = state.as_str().is_some_and(|it| it != "connecting");
        Ok(answered.then_some(()))
    })?;
    let violation = |action: &str| {
        format!(
            "new Promise((resolve) => {{ addEventListener('securitypolicyviolation', \
             (event) => resolve(event.effectiveDirective), {{ once: true }}); {action} }})"
        )
    };
    let inline = "const it = document.createElement('script'); it.textContent = 'window.ran = 1'; document.head.append(it);";
    assert_eq!(browser.evaluate(&violation(inline))?, "script-src-elem");
    assert_eq!(browser.evaluate("window.ran === undefined")?, true);
    let elsewhere = "fetch('http://192.0.2.2/').catch(() => {});";
    assert_eq!(browser.evaluate(&violation(elsewhere))?, "connect-src");
    let empty = browser.evaluate("document.getElementById('pods').textContent")?;
    ensure!(
        empty
            .as_str()
            .is_some_and(|it| it.contains("No pod is attached")),
        "{empty}"
    );
    Ok(())
}

#[test]
fn the_page_is_served_by_the_flag_only_and_for_local_names_only() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let socket = format!("--read-only-socket={SOCKET}");
    let get = |host: &str, path: &str| -> Result<(String, Value)> {
        let text = sandbox.node.call(&format!(
            "curl --silent --max-time 60 --unix-socket {SOCKET} --header Host:{host} --write-out \\n%{{http_code}} \
             http://viaduct{path}"
        ))?;
        let (body, status) = text.rsplit_once('\n').context("a status")?;
        Ok((
            status.to_owned(),
            serde_json::from_str(body).unwrap_or_default(),
        ))
    };
    {
        let _agent = Agent::start(&sandbox.node, &[&socket])?;
        assert_eq!(get("localhost", "/")?.0, "404");
        assert_eq!(get("example.org", "/v1/status")?.0, "200");
    }
    let _agent = Agent::start(&sandbox.node, &[&socket, "--web-page"])?;
    for path in ["/", "/page.js", "/page.css", "/page.svg", "/v1/status"] {
        assert_eq!(get("localhost:9465", path)?.0, "200", "{path}");
        let (status, body) = get("example.org", path)?;
        assert_eq!(status, "403", "{path}");
        assert_eq!(body["reason"], "foreign-host", "{path}");
    }
    let own = format!(
        "curl --silent --output /dev/null --write-out %{{http_code}} --unix-socket {} http://viaduct/",
        e2e::SOCKET
    );
    assert_eq!(sandbox.node.call(&own)?, "404");
    let agent = program("bin/viaductd").display().to_string();
    let checked = sandbox
        .node
        .output(&[&agent, "--check-config", "--web-page"])?;
    let message = String::from_utf8_lossy(&checked.stderr);
    ensure!(!checked.status.success(), "{checked:?}");
    ensure!(
        message.contains("web-page: needs a read-only socket"),
        "{message}"
    );
    Ok(())
}
