//! Tests of the API through its client and a Unix socket, on a fake kernel in memory.

mod cni;
mod document;
mod drops;
mod flows;
mod netavark;
mod overload;
mod policies;
mod refused_adds;
#[cfg(feature = "otlp")]
mod traces;
mod tuning;
mod why;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use abi::{Address, Flow, FlowFlags, Port, Tuple};
use api::{
    AttachmentView, Client, ClientError, CniRequest, CniVerb, CounterView, ErrorBody,
    HairpinModeSetting, HostportView, Lease, NetworkView, PodCidrs, PortView, Spool, Status, path,
};
use clap::Parser;
use engine::{Background, Engine, Settings};
use kernel::fake::Fake;
use kernel::{DropReport, RuleReader};
use serde_json::{Value, json};
use steps::FlowTable;
use store::Store;
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::app::App;
use crate::cni::foreign_files::FileAccess;
use crate::cni::refused_adds::RefusedAdds;
use crate::cni::spool::SpoolReplay;
use crate::config::live::LiveConfig;
use crate::config::{Config, Options};
use crate::http::answers::AnswerMemory;
use crate::http::body::RequestMemory;
use crate::http::flows::FlowSource;
use crate::http::{connections, routes};
use crate::process::start::Features;
use crate::process::uninstall::InstalledFiles;
use crate::telemetry::drop_events::DropEvents;
use crate::telemetry::traces::Traces;

/// An agent on a fake kernel, configured by the command line `flags`.
struct Agent {
    fake: Fake,
    client: Client,
    reports: FakeReports,
    directory: TempDir,
}

/// Reports of dropped packets that a test sends; empty until the agent listens.
type FakeReports = Arc<Mutex<Option<mpsc::Sender<Vec<DropReport>>>>>;

impl Agent {
    fn start(flags: &[&str]) -> Self {
        Self::reading(flows::source(|| Ok(two_flows())), flags)
    }

    /// Starts an agent that reads its flows from `flows`.
    fn reading(flows: FlowSource, flags: &[&str]) -> Self {
        let options = Options::parse_from([&["viaductd"], flags].concat());
        let config = Config::load(options).unwrap();
        let directory = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .unwrap();
        let socket = directory.path().join("v.sock");
        let records = directory.path().join("records.redb");
        let (fake, reports) = (Fake::new(), FakeReports::default());
        let sources = (flows, Arc::clone(&reports));
        serve(&config, socket.clone(), records, fake.clone(), sources);
        Self {
            fake,
            client: Client::new(socket),
            reports,
            directory,
        }
    }

    fn cni(&self, verb: CniVerb, container: &str, config: &Value) -> Result<String, ErrorBody> {
        self.cni_as("viaduct", verb, container, config)
    }

    fn cni_as(
        &self,
        plugin: &str,
        verb: CniVerb,
        container: &str,
        config: &Value,
    ) -> Result<String, ErrorBody> {
        let request = request(plugin, container, config);
        let reply = self.client.post(verb.path(), &request).unwrap();
        if reply.is_success() {
            Ok(String::from_utf8(reply.body).unwrap())
        } else {
            Err(reply.error())
        }
    }

    fn add(&self, container: &str) -> Result<String, ErrorBody> {
        self.fake.add_netns(&format!("/run/netns/{container}"));
        self.cni(CniVerb::Add, container, &config())
    }

    fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> T {
        self.client.get(path).unwrap().decode().unwrap()
    }
}

fn request(plugin: &str, container: &str, config: &Value) -> CniRequest {
    CniRequest {
        version: String::new(),
        plugin: plugin.to_owned(),
        traceparent: String::new(),
        container_id: container.to_owned(),
        netns: format!("/run/netns/{container}"),
        ifname: "eth0".to_owned(),
        args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web".to_owned(),
        path: "/opt/cni/bin".to_owned(),
        config: serde_json::value::to_raw_value(config).unwrap(),
        ipam: None,
    }
}

/// Serves the API on a thread until the test process exits.
fn serve(
    config: &Config,
    socket: PathBuf,
    records: PathBuf,
    fake: Fake,
    (flows, reports): (FlowSource, FakeReports),
) {
    let settings = Settings {
        default_network: config.default_network(),
        uplinks: config.uplinks.clone(),
        non_masquerade: config.non_masquerade.clone(),
        egress: std::collections::BTreeSet::new(),
        flow_entries: abi::maps::FLOWS_CAPACITY,
        bypass: planner::BypassMode::Auto,
        forwarding: planner::ForwardingMode::Auto,
        shaper: planner::ShaperMode::Auto,
        xdp_prefilter: planner::XdpPrefilterMode::Off,
        peers: planner::PeerOptions::default(),
        boot_id: "this boot".to_owned(),
    };
    // Tests change the fake kernel between two requests.
    let (handle, _) = engine::spawn_with(Background::Never, move || {
        let store = Store::open(&records)?;
        anyhow::Ok(Engine::start(fake, store, settings, 1_700_000_000)?)
    })
    .unwrap();
    let listen = move |_| {
        let (sender, received) = mpsc::channel(1);
        *reports.lock().unwrap() = Some(sender);
        Ok(received)
    };
    let drop_events = DropEvents::new(handle.clone(), config.drop_event_interval, listen);
    let (traces, _) = Traces::start(config.otlp_endpoint.as_ref()).unwrap();
    let datapath_log = crate::telemetry::datapath_log::DatapathLogReader::new(handle.clone());
    let app = Arc::new(App {
        datapath_log,
        config: LiveConfig::new(config.clone()),
        request_memory: RequestMemory::default(),
        answers: AnswerMemory::default(),
        file_access: FileAccess::default(),
        started: Instant::now(),
        flows,
        node: why::node_source(),
        rules: RuleReader::new(&config.bpffs),
        offload_counts: Arc::default(),
        features: Features::default(),
        refused_adds: RefusedAdds::default(),
        replay: SpoolReplay::of(Spool::for_socket(&socket)),
        installed_files: InstalledFiles::of(config, None),
        installation: crate::process::installation::Installation::of(config),
        events: Arc::default(),
        metrics: crate::telemetry::metrics::Metrics::of_engine(&handle, &traces),
        traces,
        rate_sampler: crate::telemetry::rates::RateSampler::default(),
        losses: crate::telemetry::losses::Losses::default(),
        drop_events,
        handle,
        lifecycle: crate::process::lifecycle::Lifecycle::default(),
    });
    let runtime = crate::runtime().unwrap();
    let listener = runtime.block_on(async { tokio::net::UnixListener::bind(socket).unwrap() });
    thread::spawn(move || {
        let (_stop, stopped) = tokio::sync::watch::channel(false);
        let router = routes::router(app, stopped.clone());
        runtime.block_on(connections::serve(listener, router, stopped));
    });
}

/// Returns a flow table with a flow of the first pod and a flow of the node itself.
fn two_flows() -> FlowTable {
    let mut table = FlowTable {
        now: 150,
        ..FlowTable::default()
    };
    for (pod, flags, port) in [(1, 0, 443), (0, FlowFlags::NODE, 53)] {
        let tuple = |host| Tuple {
            source: Address::v4([10, 0, 0, host]),
            destination: Address::v4([192, 0, 2, 7]),
            source_port: Port::new(40_000),
            destination_port: Port::new(port),
            protocol: abi::protocol::TCP,
            reserved: [0; 3],
        };
        let (from, to) = (tuple(2), tuple(9));
        let flow = |translated, flags| Flow {
            translated,
            flags: flags | FlowFlags::SNAT,
            created: 100,
            pod,
            generation: pod,
            ..Flow::default()
        };
        let original = flow(to, flags | FlowFlags::ORIGINAL);
        table.entries.insert(from, original);
        table
            .entries
            .insert(to.reverse(), flow(from.reverse(), flags));
    }
    table
}

fn config() -> Value {
    json!({
        "cniVersion": "1.1.0",
        "name": "pods",
        "type": "viaduct",
        "runtimeConfig": {
            "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }],
        },
    })
}

fn put<T>(agent: &Agent, path: &str, body: &T) -> Result<T, ErrorBody>
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    let reply = agent.client.put(path, body).unwrap();
    if reply.is_success() {
        Ok(reply.decode().unwrap())
    } else {
        Err(reply.error())
    }
}

fn pod_cidrs(texts: &[&str]) -> PodCidrs {
    PodCidrs {
        pod_cidrs: texts.iter().map(ToString::to_string).collect(),
    }
}

/// behaviours K11, K12, K14.
#[test]
fn pod_cidrs_may_come_while_the_agent_runs() {
    let agent = Agent::start(&[]);
    let error = agent.add("c1").unwrap_err();
    assert!(error.message.contains("lack of PodCIDR"), "{error}");

    let bad = put(
        &agent,
        path::POD_CIDRS,
        &pod_cidrs(&["10.1.0.0/24", "fd00::/64,x"]),
    );
    assert_eq!(bad.unwrap_err().code, 7);
    assert_eq!(
        put(&agent, path::POD_CIDRS, &pod_cidrs(&[]))
            .unwrap_err()
            .code,
        7
    );
    assert_eq!(agent.get::<PodCidrs>(path::POD_CIDRS), pod_cidrs(&[]));

    let taken = put(
        &agent,
        path::POD_CIDRS,
        &pod_cidrs(&["fd00:1::/64,10.1.2.3/24"]),
    );
    assert_eq!(taken.unwrap(), pod_cidrs(&["10.1.2.0/24", "fd00:1::/64"]));
    agent.cni(CniVerb::Add, "c1", &config()).unwrap();

    let later = put(&agent, path::POD_CIDRS, &pod_cidrs(&["10.9.0.0/24"])).unwrap_err();
    assert!(
        later
            .message
            .starts_with("Ignoring subsequent pod CIDR update"),
        "{later}"
    );
    assert_eq!(later.code, 100);
    let status: Vec<NetworkView> = agent.get(path::NETWORKS);
    assert_eq!(status[0].pools[0].subnet, "10.1.2.0/24");
}

#[test]
fn the_hairpin_mode_may_change_while_the_agent_runs() {
    let agent = Agent::start(&FLAGS);
    agent.add("c1").unwrap();
    let mode = |mode: &str| HairpinModeSetting {
        mode: mode.to_owned(),
    };
    assert_eq!(
        agent.get::<HairpinModeSetting>(path::HAIRPIN_MODE),
        mode("hairpin-veth")
    );
    let set = put(&agent, path::HAIRPIN_MODE, &mode("promiscuous-bridge"));
    assert_eq!(set.unwrap(), mode("promiscuous-bridge"));
    assert_eq!(
        put(&agent, path::HAIRPIN_MODE, &mode("on"))
            .unwrap_err()
            .code,
        7
    );
    assert_eq!(
        agent.get::<HairpinModeSetting>(path::HAIRPIN_MODE),
        mode("promiscuous-bridge")
    );
}

const FLAGS: [&str; 2] = ["--pod-cidr", "10.1.2.3/24,fd00:1::/64"];

#[test]
fn an_attachment_is_made_shown_checked_and_removed() {
    let agent = Agent::start(&FLAGS);
    let result = agent.add("c1").unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["cniVersion"], "1.1.0");
    assert_eq!(result["interfaces"][0]["name"], "cbr0");
    assert!(result["interfaces"][0]["mac"].is_string());
    assert_eq!(result["ips"][0]["address"], "10.1.2.2/24");

    let [shown] = &agent.get::<Vec<AttachmentView>>(path::ATTACHMENTS)[..] else {
        panic!("one attachment");
    };
    assert_eq!(shown.container_id, "c1");
    assert_eq!(shown.pod.as_ref().unwrap().name, "web");
    assert_eq!(shown.state, "attached");
    assert_eq!(agent.get::<Vec<Lease>>(path::LEASES).len(), 2);
    let ports: Vec<HostportView> = agent.get(path::HOSTPORTS);
    assert_eq!(ports[0].attachment, "default/c1/eth0");
    let _sum: CounterView = agent.get(path::COUNTERS);

    let mut with_result = config();
    with_result["prevResult"] = result;
    agent.cni(CniVerb::Check, "c1", &with_result).unwrap();
    assert_eq!(agent.cni(CniVerb::Del, "c1", &config()).unwrap(), "");
    assert_eq!(agent.cni(CniVerb::Del, "c1", &config()).unwrap(), "");
    assert_eq!(
        agent
            .cni(CniVerb::Check, "c1", &with_result)
            .unwrap_err()
            .code,
        101
    );
    assert!(agent.get::<Vec<Lease>>(path::LEASES).is_empty());
}

#[test]
fn status_lists_networks_uplinks_and_degradations() {
    let agent = Agent::start(&FLAGS);
    agent.add("c1").unwrap();
    let status: Status = agent.get(path::STATUS);
    assert_eq!(status.attachments, 1);
    assert_eq!(status.uplinks[0].name, "eth0");
    assert!(status.degraded.is_empty(), "{:?}", status.degraded);
    let networks: Vec<NetworkView> = agent.get(path::NETWORKS);
    assert_eq!(networks, status.networks);
    assert!(networks[0].is_default);
    assert_eq!(networks[0].pools[0].used, 1);
    assert_eq!(networks[0].pools[0].total, 253);
}

/// behaviour K27.
#[test]
fn add_without_a_pod_cidr_fails_in_kubenets_words() {
    let agent = Agent::start(&[]);
    let error = agent.add("c1").unwrap_err();
    assert_eq!(error.code, 11);
    assert_eq!(
        error.message,
        "viaduct does not have netConf. This is most likely due to lack of PodCIDR"
    );
    let status = agent.cni(CniVerb::Status, "", &config()).unwrap_err();
    assert_eq!(status.code, 50);
    let status: Status = agent.get(path::STATUS);
    assert!(status.degraded.iter().any(|d| d.reason == "no-pod-cidr"));
}

#[test]
fn unsupported_configuration_keys_are_refused_by_name() {
    let agent = Agent::start(&FLAGS);
    agent.fake.add_netns("/run/netns/c1");
    let own = json!({
        "cniVersion": "1.0.0",
        "name": "own",
        "type": "viaduct",
        "bridge": "br1",
        "masqAll": true,
        "ipam": { "type": "host-local", "subnet": "10.9.0.0/24" },
    });
    let error = agent.cni(CniVerb::Add, "c1", &own).unwrap_err();
    assert_eq!(error.code, 2);
    assert!(error.message.contains("masqAll"), "{error}");
}

/// behaviours R2, F8: the VLAN interface comes after the pod's, whose index the addresses refer to.
#[test]
fn the_vlan_interface_is_the_fourth_of_the_result() {
    let agent = Agent::start(&FLAGS);
    agent.fake.add_netns("/run/netns/c1");
    let own = json!({
        "cniVersion": "1.1.0", "name": "own", "type": "viaduct", "bridge": "br1", "vlan": 7, "isGateway": true,
        "ipam": {
            "type": "host-local", "subnet": "10.9.0.0/24",
            "routes": [{ "dst": "10.10.0.0/16", "priority": 9, "mtu": 1400 }],
        },
    });
    let answer = agent.cni(CniVerb::Add, "c1", &own).unwrap();
    let result: Value = serde_json::from_str(&answer).unwrap();
    let names = [0, 2, 3].map(|place| &result["interfaces"][place]["name"]);
    assert_eq!(names, ["br1", "eth0", "br1.7"]);
    let macs = [0, 3].map(|place| &result["interfaces"][place]["mac"]);
    assert_eq!(macs[0], macs[1]);
    assert_eq!(result["ips"][0]["interface"], 2);
    let route = json!({ "dst": "10.10.0.0/16", "mtu": 1400, "priority": 9 });
    assert_eq!(result["routes"][0], route);
    let links = agent.fake.snapshot().links;
    let [bridge, end] = ["br1", "br1.7"].map(|name| &links[&name.parse().unwrap()]);
    let is_local = bridge.addresses.iter().all(|own| own.prefix_len == 64);
    assert!(bridge.switching.filters_vlans && is_local);
    assert_eq!(end.addresses[0].to_string(), "10.9.0.1/24");
}

#[test]
fn every_refusal_is_json_with_a_code() {
    let agent = Agent::start(&FLAGS);
    let wrong_path = agent.client.get("/v1/nothing").unwrap();
    let wrong_method = agent.client.get(CniVerb::Add.path()).unwrap();
    for reply in [wrong_path, wrong_method] {
        assert!(matches!(
            reply.decode::<Value>(),
            Err(ClientError::Refused(ErrorBody { code: 4, .. }))
        ));
    }
    let no_request = agent.client.post(CniVerb::Add.path(), &json!([1])).unwrap();
    assert_eq!(no_request.error().code, 6);
    let missing = agent.cni(CniVerb::Add, "gone", &config()).unwrap_err();
    assert_eq!(missing.code, 4);
    assert!(missing.message.contains("/run/netns/gone"), "{missing}");
}

/// behaviour A2: maximum size of a request.
#[test]
fn a_request_above_the_size_limit_is_refused() {
    let agent = Agent::start(&FLAGS);
    let huge = json!({ "name": "x".repeat(api::MAX_REQUEST) });
    match agent.client.post(CniVerb::Add.path(), &huge) {
        Ok(reply) => assert_eq!(reply.error().code, 5),
        Err(error) => assert!(matches!(error, ClientError::Broken { .. }), "{error:?}"),
    }
    agent.add("c1").unwrap();
}

/// behaviours K6 and K7, without a restart.
#[test]
fn non_masquerade_cidrs_can_change_while_the_agent_runs() {
    let agent = Agent::start(&[&FLAGS[..], &["--non-masquerade-cidr", "10.0.0.0/8"]].concat());
    let put = |list: &[&str]| agent.client.put(path::NON_MASQUERADE_CIDRS, &list).unwrap();
    let get = || agent.get::<Vec<String>>(path::NON_MASQUERADE_CIDRS);
    assert_eq!(get(), ["10.0.0.0/8"]);
    assert!(put(&["192.0.2.9/24", "::/0"]).is_success());
    assert_eq!(get(), ["192.0.2.0/24", "::/0"]);
    let of = |text: &str| {
        let entries = agent.fake.snapshot().entries;
        let key = steps::EntryKey::Prefix(text.parse().unwrap());
        entries.get(&key).map(ToString::to_string)
    };
    assert_eq!(of("192.0.2.0/24").as_deref(), Some("not masqueraded"));
    assert_eq!(
        of("fd00:1::/64").as_deref(),
        Some("pods, not masqueraded, complete")
    );
    assert_eq!(of("10.0.0.0/8"), None);
    let refused = put(&["192.0.2.0/24", "nonsense"]);
    assert!(refused.error().message.contains("nonsense"));
    assert_eq!(get(), ["192.0.2.0/24", "::/0"]);
    assert!(put(&[]).is_success());
    assert!(get().is_empty() && of("::/0").is_none());
}
