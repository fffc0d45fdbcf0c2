//! CNI commands over the API: GC, STATUS codes, spooled DELs, lease files and version skew.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::Degraded;
use kernel::fake::Errno;
use steps::{LinkKind, Step};

use super::*;
use crate::cni::readiness::readiness;

fn plain() -> Value {
    json!({ "cniVersion": "1.1.0", "name": "pods", "type": "viaduct" })
}

fn attached(agent: &Agent) -> Vec<String> {
    let views: Vec<AttachmentView> = agent.get(path::ATTACHMENTS);
    views.into_iter().map(|view| view.container_id).collect()
}

/// Three attachments, of which `c2` is in the runtime's list, and `c2` and `c3` have a live
/// namespace.
fn three() -> (Agent, Value) {
    let agent = Agent::start(&FLAGS);
    for container in ["c1", "c2", "c3"] {
        agent.fake.add_netns(&format!("/run/netns/{container}"));
        agent.cni(CniVerb::Add, container, &plain()).unwrap();
    }
    agent.fake.remove_netns("/run/netns/c1");
    let mut config = plain();
    config["cni.dev/valid-attachments"] = json!([{ "containerID": "c2", "ifname": "eth0" }]);
    (agent, config)
}

/// behaviour S12
#[test]
fn gc_removes_unlisted_attachments_and_live_ones_only_when_forced() {
    let (agent, mut config) = three();
    agent.cni(CniVerb::Gc, "", &plain()).unwrap();
    assert_eq!(attached(&agent), ["c1", "c2", "c3"], "there is no list");
    agent.cni(CniVerb::Gc, "", &config).unwrap();
    assert_eq!(attached(&agent), ["c2", "c3"]);
    config["forceGC"] = json!(true);
    agent.cni(CniVerb::Gc, "", &config).unwrap();
    assert_eq!(attached(&agent), ["c2"]);
}

/// behaviour S12: CRI-O sends null when a network has no pods.
#[test]
fn gc_with_an_empty_list_collects_its_own_network_only() {
    for list in [json!(null), json!([])] {
        let (agent, mut config) = three();
        config["cni.dev/valid-attachments"] = list;
        let mut other = config.clone();
        other["name"] = json!("other");
        other["ipam"] = json!({ "type": "host-local", "subnet": "10.9.0.0/24" });
        agent.cni(CniVerb::Gc, "", &other).unwrap();
        assert_eq!(attached(&agent).len(), 3);
        agent.fake.remove_netns("/run/netns/c2");
        agent.cni(CniVerb::Gc, "", &config).unwrap();
        assert_eq!(attached(&agent), ["c3"]);
    }
}

/// behaviours S11, C15: Multus removes a default route, and removes it from the cached result as
/// well.
#[test]
fn check_compares_the_routes_of_the_cached_result() {
    let agent = Agent::start(&FLAGS);
    let result = agent.add("c1").unwrap();
    let mut config = config();
    config["prevResult"] = serde_json::from_str(&result).unwrap();
    agent.fake.edit_pod("/run/netns/c1", "eth0", |side| {
        side.routes
            .retain(|route| route.destination.prefix_len() > 0);
    });
    let refused = agent.cni(CniVerb::Check, "c1", &config).unwrap_err();
    assert!(refused.message.contains("0.0.0.0/0"), "{refused}");
    config["prevResult"]["routes"] = json!([{ "dst": "10.3.2.1/8" }]);
    agent.cni(CniVerb::Check, "c1", &config).unwrap();
}

fn kept(folder: &std::path::Path) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "kept", "type": "bridge", "bridge": "br7", "isGateway": true,
        "ipam": { "type": "host-local", "subnet": "10.7.0.0/29", "dataDir": folder },
    })
}

/// behaviour R11: a container that ends without a DEL leaves a lease file, which must not reserve
/// its address.
#[test]
fn a_lease_file_without_a_record_reserves_no_address_and_gc_removes_it() {
    let agent = Agent::start(&FLAGS);
    let folder = agent.directory.path().join("leases");
    let config = kept(&folder);
    let add = |container: &str| {
        agent.fake.add_netns(&format!("/run/netns/{container}"));
        let result = agent.cni_as("bridge", CniVerb::Add, container, &config);
        let result: Value = serde_json::from_str(&result?).unwrap();
        Ok::<_, ErrorBody>(result["ips"][0]["address"].as_str().unwrap().to_owned())
    };
    let files = || -> Vec<String> {
        let entries = std::fs::read_dir(folder.join("kept")).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("10."))
            .collect();
        names.sort();
        names
    };
    std::fs::create_dir_all(folder.join("kept")).unwrap();
    // Written by the reference plugin, which had assigned one more address before.
    std::fs::write(folder.join("kept/10.7.0.3"), "old\r\neth0").unwrap();
    std::fs::write(folder.join("kept/last_reserved_ip.0"), "10.7.0.4").unwrap();
    assert_eq!(add("c1").unwrap(), "10.7.0.5/29", "after the last one");
    assert_eq!(add("c2").unwrap(), "10.7.0.6/29");
    assert_eq!(add("c3").unwrap(), "10.7.0.2/29", "10.7.0.1 is the gateway");
    assert_eq!(add("c4").unwrap(), "10.7.0.4/29", "10.7.0.3 is leased");
    assert!(add("c5").is_err(), "none is left");

    // As after a reboot: the record is gone and the file is still there.
    let text = std::fs::read(folder.join("kept/10.7.0.5")).unwrap();
    agent.cni_as("bridge", CniVerb::Del, "c1", &config).unwrap();
    std::fs::write(folder.join("kept/10.7.0.5"), text).unwrap();
    assert_eq!(add("c6").unwrap(), "10.7.0.5/29");
    let owner = std::fs::read_to_string(folder.join("kept/10.7.0.5")).unwrap();
    assert!(owner.starts_with("c6\r\neth0"), "{owner}");

    let mut list = config.clone();
    list["cni.dev/valid-attachments"] = json!([{ "containerID": "c6", "ifname": "eth0" }]);
    agent.fake.remove_netns("/run/netns/c2");
    agent.fake.remove_netns("/run/netns/c3");
    agent.cni_as("bridge", CniVerb::Gc, "", &list).unwrap();
    assert_eq!(attached(&agent), ["c4", "c6"], "c4 is alive");
    assert_eq!(files(), ["10.7.0.4", "10.7.0.5"]);
}

/// behaviour R11: the reference plugin numbers these files by the range sets of the configuration.
/// The result has its IPv4 addresses first.
#[test]
fn the_last_address_of_each_range_set_is_written_under_the_number_of_the_set() {
    let agent = Agent::start(&FLAGS);
    let folder = agent.directory.path().join("leases");
    let mut config = kept(&folder);
    config["ipam"] = json!({
        "type": "host-local", "dataDir": folder,
        "ranges": [[{ "subnet": "fd00:7::/64" }], [{ "subnet": "10.7.0.0/29" }]],
    });
    agent.fake.add_netns("/run/netns/c1");
    let result = agent.cni_as("bridge", CniVerb::Add, "c1", &config).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!(result["ips"][0]["address"], "10.7.0.2/29");
    let last = |set: usize| {
        let file = folder.join(format!("kept/last_reserved_ip.{set}"));
        std::fs::read_to_string(file).unwrap()
    };
    assert_eq!([last(0), last(1)], ["fd00:7::2", "10.7.0.2"]);
}

/// behaviour S13
#[test]
fn status_returns_code_50_where_the_pool_is_exhausted() {
    let agent = Agent::start(&FLAGS);
    let code = |config: &Value| agent.cni(CniVerb::Status, "", config).map_err(|e| e.code);
    assert_eq!(code(&plain()), Ok(String::new()));

    let mut full = plain();
    full["name"] = json!("small");
    full["bridge"] = json!("br1");
    full["ipam"] = json!({ "type": "host-local", "subnet": "10.9.0.0/30" });
    agent.fake.add_netns("/run/netns/c1");
    agent.cni(CniVerb::Add, "c1", &full).unwrap();
    assert_eq!(code(&full), Err(50));
    assert_eq!(code(&plain()), Ok(String::new()), "it is another network");
}

/// behaviour S13: 51 instead of 50 where pods that are attached may have lost connectivity as well.
#[test]
fn status_returns_code_51_where_an_uplink_has_lost_its_programs() {
    let agent = Agent::start(&FLAGS);
    agent.add("c1").unwrap();
    let status = || agent.cni(CniVerb::Status, "", &plain());
    assert_eq!(status().unwrap(), "");

    // A second uplink appears, and its programs cannot be attached.
    agent.fake.add_link("eth1", LinkKind::Ethernet);
    agent.fake.add_address("eth1", "198.51.100.10/24");
    let gateway = Some("198.51.100.1");
    agent.fake.add_route("203.0.113.0/24", gateway, "eth1");
    let broken = Arc::new(AtomicBool::new(true));
    // More attempts than a reconciliation makes.
    for _ in 0..8 {
        let broken = Arc::clone(&broken);
        let fails = move |step: &Step| {
            let on_eth1 = matches!(step, Step::Attach { link, .. } if link.as_str() == "eth1");
            on_eth1 && broken.load(Ordering::Relaxed)
        };
        agent.fake.fail_next(fails, Errno::EPERM);
    }
    let reconcile = |mode: &str| {
        let mode = mode.to_owned();
        put(&agent, path::HAIRPIN_MODE, &HairpinModeSetting { mode })
    };
    reconcile("none").unwrap_err();
    let error = status().unwrap_err();
    assert_eq!(error.code, 51, "{error}");
    assert!(error.message.contains("eth1"), "{error}");
    let reasons: Vec<String> = agent
        .get::<Status>(path::STATUS)
        .degraded
        .into_iter()
        .map(|degraded| degraded.reason)
        .collect();
    assert!(
        reasons.contains(&"programs-missing".to_owned()),
        "{reasons:?}"
    );

    broken.store(false, Ordering::Relaxed);
    reconcile("hairpin-veth").unwrap();
    assert_eq!(status().unwrap(), "", "the programs are attached");
}

/// behaviour S13: the code of each degradation, for an ADD to network `pods`.
#[test]
fn status_code_is_51_for_lost_connectivity_50_for_a_failing_add_and_success_otherwise() {
    let pods: model::NetworkName = "pods".parse().unwrap();
    let other: model::NetworkName = "other".parse().unwrap();
    let code = |degraded: Vec<Degraded>| {
        let status = engine::Status {
            degraded,
            ..engine::Status::default()
        };
        readiness(&status, &pods).err().map(|error| error.code)
    };
    let link = || "eth0".parse().unwrap();
    let ranges = model::RangeSet::of_cidr("10.1.2.0/24".parse().unwrap()).unwrap();
    let range = ranges.ranges()[0];
    let failed = |subject: &str| Degraded::RepairFailed {
        subject: subject.to_owned(),
        why: "EPERM".to_owned(),
    };
    let refused = |network: &model::NetworkName| Degraded::NetworkRefused {
        network: network.clone(),
        why: "it overlaps".to_owned(),
    };
    let exhausted = |network: &model::NetworkName| Degraded::PoolExhausted {
        network: network.clone(),
        range,
    };
    for lost in [Degraded::ProgramsMissing(link()), failed(engine::NODE)] {
        assert_eq!(code(vec![lost.clone()]), Some(51), "{lost}");
        assert_eq!(code(vec![exhausted(&pods), lost.clone()]), Some(51));
        assert_eq!(code(vec![lost, refused(&pods)]), Some(51));
    }
    for fails in [refused(&pods), exhausted(&pods)] {
        assert_eq!(code(vec![fails.clone()]), Some(50), "{fails}");
    }
    let nearly = Degraded::PoolNearlyExhausted {
        network: pods.clone(),
        range,
        left: 1,
    };
    for works in [
        refused(&other),
        exhausted(&other),
        failed("pods/c1/eth0"),
        nearly,
        Degraded::NoPodCidr,
        Degraded::NoUplink,
        Degraded::UplinkMissing(link()),
        Degraded::NoEgressAddress("192.0.2.99".parse().unwrap()),
    ] {
        assert_eq!(code(vec![works.clone()]), None, "{works}");
    }
    assert_eq!(code(Vec::new()), None);
}

/// behaviour A1
#[test]
fn a_spooled_del_is_executed_before_an_add_that_needs_its_port() {
    let agent = Agent::start(&FLAGS);
    agent.add("c1").unwrap();
    let spool = Spool::for_socket(&agent.directory.path().join("v.sock"));
    spool
        .put("pods", &request("viaduct", "c1", &config()))
        .unwrap();
    // First an ADD with the same host port, then one of the same container.
    agent.add("c2").unwrap();
    assert_eq!(attached(&agent), ["c2"]);
    assert!(spool.waiting().unwrap().is_empty());
    agent.cni(CniVerb::Del, "c2", &config()).unwrap();
    agent.cni(CniVerb::Add, "c1", &config()).unwrap();
    assert_eq!(attached(&agent), ["c1"]);
}

/// Sends a request as bytes, and returns head and body of the response.
fn exchange(agent: &Agent, method: &str, path: &str, body: &str) -> (String, Value) {
    let mut stream = UnixStream::connect(agent.directory.path().join("v.sock")).unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: v\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let body = serde_json::from_str(body).unwrap_or_default();
    (head.to_lowercase(), body)
}

#[test]
fn every_response_has_the_api_version_and_another_major_version_is_refused() {
    let agent = Agent::start(&FLAGS);
    let header = format!("{}: {}", api::VERSION_HEADER, api::VERSION);
    let (head, status) = exchange(&agent, "GET", path::STATUS, "");
    assert!(head.contains(&header), "{head}");
    assert_eq!(status["version"]["api"], api::VERSION);
    for (path, code, words) in [
        ("/v2/cni/add", 11, "is for version 2"),
        ("/v0/status", 11, "is for version 0"),
        ("/v1/nothing", 4, "no such path"),
        ("/nothing", 4, "no such path"),
    ] {
        let (head, error) = exchange(&agent, "POST", path, "{}");
        assert!(
            head.starts_with("http/1.1 404") && head.contains(&header),
            "{head}"
        );
        assert_eq!(error["code"], code, "{path}: {error}");
        assert!(
            error["message"].as_str().unwrap().contains(words),
            "{error}"
        );
    }
}

#[test]
fn a_wrong_method_of_a_path_is_answered_with_the_methods_that_it_has() {
    let agent = Agent::start(&FLAGS);
    for (method, path, allowed) in [
        ("DELETE", path::STATUS, "get"),
        ("POST", path::POD_CIDRS, "put"),
        ("GET", "/v1/cni/add", "post"),
    ] {
        let (head, error) = exchange(&agent, method, path, "");
        assert!(head.starts_with("http/1.1 405"), "{head}");
        let allow = head.lines().find(|line| line.starts_with("allow: "));
        assert!(allow.is_some_and(|allow| allow.contains(allowed)), "{head}");
        assert_eq!(error["code"], 4, "{method} {path}: {error}");
    }
}

/// A recorded request of a plugin of the first minor version, and one of the next with unknown
/// fields.
#[test]
fn plugins_of_adjacent_minor_versions_are_served() {
    let recorded = include_str!("../../../api/tests/recorded/1.0/add.request.json");
    let next = recorded.replacen(
        '{',
        r#"{"a new thing": [{"x": null}], "version": "9.9.9", "#,
        1,
    );
    for request in [recorded, &next] {
        let agent = Agent::start(&FLAGS);
        agent.fake.add_netns("/run/netns/c1");
        let (head, result) = exchange(&agent, "POST", CniVerb::Add.path(), request);
        assert!(head.starts_with("http/1.1 200"), "{head} {result}");
        assert_eq!(result["cniVersion"], "1.1.0");
        assert_eq!(attached(&agent), ["c1"]);
    }
}

/// behaviour K36
#[test]
fn requests_are_counted_and_timed_by_operation() {
    let agent = Agent::start(&FLAGS);
    agent.add("c1").unwrap();
    agent.cni(CniVerb::Add, "c1", &config()).unwrap_err();
    let _: Vec<AttachmentView> = agent.get("/v1/attachments/c1");
    agent.client.get("/v1/attachments/unknown").unwrap();
    agent.cni(CniVerb::Del, "c1", &config()).unwrap();
    let text = String::from_utf8(agent.client.get(path::METRICS).unwrap().body).unwrap();
    for (verb, outcome, count) in [
        ("add", "done", 1),
        ("add", "failed", 1),
        ("inspect", "done", 1),
        ("inspect", "failed", 1),
        ("del", "done", 1),
    ] {
        let line =
            format!("viaduct_requests_total{{verb=\"{verb}\",outcome=\"{outcome}\"}} {count}\n");
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    for (verb, count) in [("add", 2), ("inspect", 2), ("del", 1)] {
        for line in [
            format!("viaduct_request_seconds_count{{verb=\"{verb}\"}} {count}\n"),
            format!("viaduct_request_seconds_bucket{{le=\"+Inf\",verb=\"{verb}\"}} {count}\n"),
        ] {
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
}

/// The path comes from the configuration: no file may block the agent or exhaust its memory.
#[test]
fn a_resolv_conf_that_is_no_regular_file_is_refused() {
    let agent = Agent::start(&FLAGS);
    agent.fake.add_netns("/run/netns/c1");
    let mut config = kept(&agent.directory.path().join("leases"));
    let fifo = agent.directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in ["/dev/zero", "/proc/kmsg", "/dev", fifo.to_str().unwrap()] {
        config["ipam"]["resolvConf"] = json!(path);
        let error = agent
            .cni_as("bridge", CniVerb::Add, "c1", &config)
            .unwrap_err();
        assert_eq!(error.code, 5);
        let names_it = error.message.contains("resolvConf") && error.message.contains(path);
        assert!(names_it, "{error}");
        assert!(attached(&agent).is_empty());
    }
}

/// behaviour C14: not every plugin fails if its interface exists already, so ours checks.
#[test]
fn the_api_reports_whether_an_interface_is_in_a_namespace() {
    let agent = Agent::start(&FLAGS);
    agent.add("c1").unwrap();
    let exists = |ifname: &str| {
        let query = api::InterfaceQuery {
            netns: "/run/netns/c1",
            ifname,
        };
        let reply = agent.client.post(path::INSIDE, &query).unwrap();
        reply
            .decode::<api::InterfacePresence>()
            .map(|found| found.exists)
    };
    assert!(exists("eth0").unwrap());
    assert!(!exists("net1").unwrap());
    assert!(exists("not a name").is_err());
}

/// behaviour C14: Multus' `default-route`.
#[test]
fn a_multus_default_route_of_another_network_replaces_ours() {
    let agent = Agent::start(&FLAGS);
    let networks = json!([{ "name": "extra", "default-route": ["10.8.0.1"] }]).to_string();
    let mut config = config();
    config["runtimeConfig"]["io.kubernetes.cri.pod-annotations"] =
        json!({ "k8s.v1.cni.cncf.io/networks": networks });
    agent.fake.add_netns("/run/netns/c1");
    let result = agent.cni(CniVerb::Add, "c1", &config).unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    let routes = result["routes"].to_string();
    assert!(
        !routes.contains("0.0.0.0/0") && routes.contains("::/0"),
        "{routes}"
    );
    config["prevResult"] = result;
    agent.cni(CniVerb::Check, "c1", &config).unwrap();
}
