//! What the node does to packets of pods is reported: the reason while it lasts, CNI STATUS where
//! an ADD would not give a working pod, and `viaductctl doctor` also without an agent.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use e2e::{
    Agent, Call, Config, Echo, Machine, Mapping, Pod, Sandbox, UPLINK, Verb, program, skipped,
    udp_source, until,
};
use serde_json::{Value, json};

/// An address behind the world, reachable by the default route only.
const FAR: &str = "203.0.113.5";

fn reasons(agent: &Agent) -> Result<Vec<String>> {
    let status = agent.get("/v1/status")?;
    let degraded = status["degraded"].as_array().context("a list")?;
    let word = |one: &Value| one["reason"].as_str().unwrap_or_default().to_owned();
    Ok(degraded.iter().map(word).collect())
}

/// Waits until exactly these reasons are reported.
fn become_reasons(agent: &Agent, expected: &[&str]) -> Result<()> {
    let what = format!("the agent reports {expected:?}");
    until(&what, || Ok((reasons(agent)? == expected).then_some(()))).map_err(|error| {
        let status = agent.get("/v1/status").unwrap_or_default();
        error.context(status["degraded"].to_string())
    })
}

/// Waits for a reconciliation that began after this call. One takes less than a second.
fn reconcile(agent: &Agent, node: &Machine) -> Result<()> {
    let now: u64 = node.call("date +%s")?.trim().parse()?;
    until("the next reconciliation", || {
        let status = agent.get("/v1/status")?;
        let finished = status["last_reconcile"]["finished_at"].as_u64();
        Ok(finished.is_some_and(|at| at > now + 1).then_some(()))
    })
}

/// The code of CNI STATUS for the default network; `None` for success.
fn status_code(node: &Machine) -> Result<Option<u64>> {
    let status = Call::new(Verb::Status, "", "", &Config::new("1.1.0"));
    let answer = status.run(node)?;
    Ok(answer
        .success()
        .is_err()
        .then(|| answer.error())
        .transpose()?
        .map(|error| error.code))
}

/// Whether a datagram of the pod is answered.
fn reaches(pod: &Pod, server: &str) -> Result<bool> {
    let server = SocketAddr::new(server.parse()?, 7000);
    Ok(udp_source(&pod.machine, 0, server).is_ok())
}

fn attached(sandbox: &Sandbox) -> Result<Pod> {
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    Ok(pod)
}

/// Packets cross the stack, as beside rules of other software.
fn through_the_stack(sandbox: &Sandbox) -> Result<Agent> {
    Agent::start(&sandbox.node, &["--bypass-netfilter=never"])
}

/// podman's bridge has the subnet of its sample configuration; a route of a VPN is in ours.
#[test]
fn a_subnet_that_another_bridge_or_route_has_is_reported_while_it_is_there() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    node.call("ip link add cni-podman0 type bridge")?;
    node.call("ip address add 10.244.1.1/24 dev cni-podman0")?;
    node.call("ip link set cni-podman0 up")?;
    let agent = through_the_stack(&sandbox)?;
    become_reasons(&agent, &["subnet-overlap"])?;
    // The route of the other bridge came first.
    assert_eq!(status_code(node)?, Some(50));
    let pod = attached(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    assert!(
        !reaches(&pod, "192.0.2.2")?,
        "answers leave by the other bridge"
    );
    assert_eq!(status_code(node)?, Some(50));
    node.call("ip link delete cni-podman0")?;
    become_reasons(&agent, &[])?;
    assert_eq!(status_code(node)?, None);
    assert!(reaches(&pod, "192.0.2.2")?);

    node.call(&format!("ip route add 10.244.1.128/25 dev {UPLINK}"))?;
    become_reasons(&agent, &["subnet-overlap"])?;
    assert_eq!(status_code(node)?, None, "half of the addresses work");
    let shown = agent.ctl("status")?;
    assert!(shown.contains("10.244.1.128/25 of up0"), "{shown}");
    assert!(shown.contains("Give the network another subnet"), "{shown}");
    node.call(&format!("ip route del 10.244.1.128/25 dev {UPLINK}"))?;
    become_reasons(&agent, &[])?;
    let events = agent.ctl("events")?;
    assert!(events.contains("subnet-overlap"), "{events}");
    Ok(())
}

/// A node with a second uplink and a default route for each, chosen by the source address, as on
/// cloud machines with two interfaces. Clients in the world have the address [`FAR`].
fn with_two_uplinks() -> Result<Sandbox> {
    let sandbox = Sandbox::new()?;
    let (node, world) = (&sandbox.node, &sandbox.world);
    sandbox.connect("up1", "eth1")?;
    sandbox.configure_link(node, "up1", &["198.51.100.1".parse()?])?;
    sandbox.configure_link(world, "eth1", &["198.51.100.2".parse()?])?;
    world.call(&format!("ip address add {FAR}/32 dev lo"))?;
    world.call(&format!(
        "ip route replace 198.51.100.0/24 dev eth1 src {FAR}"
    ))?;
    for (machine, link) in [
        (world, "eth0"),
        (world, "eth1"),
        (node, UPLINK),
        (node, "up1"),
    ] {
        machine.sysctl(&format!("ipv4/conf/{link}/rp_filter"), "0")?;
    }
    for machine in [node, world] {
        machine.sysctl("ipv4/conf/all/rp_filter", "0")?;
    }
    node.call("ip route add default via 198.51.100.2 dev up1 table 100")?;
    node.call("ip rule add from 198.51.100.1 lookup 100")?;
    Ok(sandbox)
}

/// Attaches a pod that publishes port 8080.
fn publishing(sandbox: &Sandbox) -> Result<Pod> {
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(
        Config::new("1.0.0").publish(&[Mapping::tcp(8080, 7000), Mapping::udp(8080, 7000)]),
    )?;
    Ok(pod)
}

/// Whether the world reaches the published port by the second uplink.
fn is_published(sandbox: &Sandbox) -> Result<bool> {
    Ok(udp_source(&sandbox.world, 0, "198.51.100.1:8080".parse()?).is_ok())
}

/// The node itself is reachable by both uplinks; behind the translation, the kernel validates the
/// client's address with the pod's address in place of the node's, which has no rule.
#[test]
fn a_reverse_path_filter_is_reported_exactly_where_it_drops_packets_of_pods() -> Result<()> {
    let sandbox = with_two_uplinks()?;
    let node = &sandbox.node;
    let agent = through_the_stack(&sandbox)?;
    let pod = publishing(&sandbox)?;
    let _echo = Echo::start(&pod.machine, 7000)?;
    assert!(is_published(&sandbox)?);
    // Strict where routes are symmetric: nothing is dropped.
    node.sysctl(&format!("ipv4/conf/{UPLINK}/rp_filter"), "1")?;
    node.sysctl("ipv4/conf/cbr0/rp_filter", "1")?;
    reconcile(&agent, node)?;
    assert_eq!(reasons(&agent)?, [""; 0]);
    assert!(is_published(&sandbox)?);
    node.sysctl("ipv4/conf/up1/rp_filter", "1")?;
    become_reasons(&agent, &["rp-filter"])?;
    assert!(!is_published(&sandbox)?, "the requests are dropped");
    assert_eq!(status_code(node)?, None, "pods without ports work");
    node.sysctl("ipv4/conf/up1/rp_filter", "2")?;
    become_reasons(&agent, &[])?;
    assert!(is_published(&sandbox)?, "a loose filter passes them");
    // The larger of both values applies.
    node.sysctl("ipv4/conf/up1/rp_filter", "0")?;
    node.sysctl("ipv4/conf/all/rp_filter", "1")?;
    become_reasons(&agent, &["rp-filter"])?;
    node.sysctl("ipv4/conf/all/rp_filter", "0")?;
    become_reasons(&agent, &[])
}

/// Packets that bypass the stack meet no filter.
#[test]
fn a_reverse_path_filter_that_the_fast_path_bypasses_is_not_reported() -> Result<()> {
    let sandbox = with_two_uplinks()?;
    sandbox.node.sysctl("ipv4/conf/up1/rp_filter", "1")?;
    let agent = Agent::start(&sandbox.node, &["--bypass-netfilter=always"])?;
    let pod = publishing(&sandbox)?;
    let _echo = Echo::start(&pod.machine, 7000)?;
    assert!(is_published(&sandbox)?);
    reconcile(&agent, &sandbox.node)?;
    assert_eq!(reasons(&agent)?, [""; 0]);
    Ok(())
}

/// Answers to pods take another table than packets of the node, as with a VRF or a VPN.
#[test]
fn a_rule_that_leads_answers_of_pods_elsewhere_is_reported() -> Result<()> {
    let sandbox = with_two_uplinks()?;
    let node = &sandbox.node;
    let agent = through_the_stack(&sandbox)?;
    let pod = attached(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    assert!(reaches(&pod, "192.0.2.2")?);
    node.call(&format!("ip rule add iif {UPLINK} lookup 100"))?;
    become_reasons(&agent, &["subnet-overlap"])?;
    assert!(!reaches(&pod, "192.0.2.2")?);
    assert_eq!(status_code(node)?, Some(50));
    node.call(&format!("ip rule del iif {UPLINK} lookup 100"))?;
    become_reasons(&agent, &[])
}

#[test]
fn forwarding_that_is_turned_off_is_turned_on_again_or_reported() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    let agent = through_the_stack(&sandbox)?;
    let pod = attached(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let reads = |key: &str| node.call(&format!("cat /proc/sys/net/{key}"));
    for key in [
        "ipv4/ip_forward",
        "ipv4/conf/cbr0/forwarding",
        "ipv6/conf/all/forwarding",
    ] {
        node.sysctl(key, "0")?;
        until(&format!("{key} is on again"), || {
            Ok((reads(key)?.trim() == "1").then_some(()))
        })?;
        until("the pod reaches the world again", || {
            Ok(reaches(&pod, "192.0.2.2")?.then_some(()))
        })?;
    }
    // A link of other software is the operator's.
    node.sysctl(&format!("ipv4/conf/{UPLINK}/forwarding"), "0")?;
    until("the uplink is reported", || {
        Ok(reasons(&agent)?
            .contains(&"forwarding-off".to_owned())
            .then_some(()))
    })?;
    assert_eq!(status_code(node)?, Some(50));
    node.sysctl(&format!("ipv4/conf/{UPLINK}/forwarding"), "1")?;
    until("the uplink is well", || {
        Ok((!reasons(&agent)?.contains(&"forwarding-off".to_owned())).then_some(()))
    })
}

#[test]
fn a_sysctl_that_other_software_keeps_changing_is_reported() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    until("the opponent is noticed", || {
        node.sysctl("ipv4/ip_forward", "0")?;
        let found = reasons(&agent)?;
        Ok(found.contains(&"sysctl-contested".to_owned()).then_some(()))
    })
}

#[test]
fn ipsec_policies_that_block_or_skip_the_masquerade_are_reported() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    let agent = Agent::start(node, &[])?;
    let pod = attached(&sandbox)?;
    let _echo = Echo::start(&sandbox.world, 7000)?;
    let block = "src 10.244.1.0/24 dst 0.0.0.0/0 dir fwd";
    if node
        .call(&format!("ip xfrm policy add {block} action block"))
        .is_err()
    {
        skipped("this kernel has no IPsec");
        return Ok(());
    }
    become_reasons(&agent, &["ipsec-policy"])?;
    until("the policy drops packets of the pod", || {
        Ok((!reaches(&pod, "192.0.2.2")?).then_some(()))
    })?;
    assert_eq!(status_code(node)?, Some(50));
    node.call(&format!("ip xfrm policy delete {block}"))?;
    become_reasons(&agent, &[])?;
    let tunnel = "src 0.0.0.0/0 dst 10.99.0.0/16 dir out";
    node.call(&format!(
        "ip xfrm policy add {tunnel} tmpl src 192.0.2.1 dst 192.0.2.2 proto esp mode tunnel"
    ))?;
    become_reasons(&agent, &["ipsec-policy"])?;
    let shown = agent.ctl("status")?;
    assert!(shown.contains("encrypts, without masquerading"), "{shown}");
    node.call(&format!("ip xfrm policy delete {tunnel}"))?;
    become_reasons(&agent, &[])
}

#[test]
fn an_mtu_above_that_of_the_default_route_is_reported_and_does_not_prevent_adds() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    let agent = Agent::start(node, &["--mtu=1500"])?;
    become_reasons(&agent, &[])?;
    node.call(&format!("ip link set {UPLINK} mtu 1400"))?;
    become_reasons(&agent, &["mtu-mismatch"])?;
    assert_eq!(status_code(node)?, None);
    node.call(&format!("ip link set {UPLINK} mtu 1500"))?;
    become_reasons(&agent, &[])
}

/// A process outside of the agent's cgroup, such as all others beside a container with a cgroup
/// namespace of its own.
#[test]
fn a_process_outside_of_the_cgroup_is_refused_at_once_and_the_cgroup_is_reported() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    if agent.cgroup().is_none() {
        skipped("no cgroup2 is mounted");
        return Ok(());
    }
    let mut pod = sandbox.pod("pod")?;
    let config = Config::new("1.0.0").publish(&[Mapping::tcp(8080, 80)]);
    pod.add_with(config)?;
    for address in ["127.0.0.1", "192.0.2.1", "[::1]"] {
        let answer = sandbox.node.output(&[
            "curl",
            "--silent",
            "--show-error",
            "--max-time",
            "20",
            &format!("http://{address}:8080/"),
        ])?;
        // curl: could not connect. A time-out is 28.
        assert_eq!(answer.status.code(), Some(7), "{address}: {answer:?}");
    }
    let process = e2e::Process::start(&sandbox.node, &["sleep", "1000"])?;
    become_reasons(&agent, &["cgroup-uncovered"])?;
    let shown = agent.ctl("status")?;
    assert!(shown.contains("(not sleep)"), "{shown}");
    assert_eq!(status_code(&sandbox.node)?, None);
    drop(process);
    become_reasons(&agent, &[])
}

#[test]
fn a_cgroup_that_is_none_is_an_error_at_the_start() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let viaductd = program("bin/viaductd").display().to_string();
    let output = sandbox.node.output(&[&viaductd, "--cgroup=/tmp"])?;
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("open cgroup /tmp"), "{text}");
    assert!(
        text.contains("no directory of a cgroup2 file system"),
        "{text}"
    );
    Ok(())
}

/// As a drop-in under Nomad or nerdctl.
#[test]
fn an_agent_that_serves_only_networks_with_their_own_ipam_is_well_without_a_pod_cidr() -> Result<()>
{
    let sandbox = Sandbox::new()?;
    let agent = Agent::start_with(&sandbox.node, Vec::new())?;
    assert_eq!(reasons(&agent)?, [""; 0]);
    let own = Config::new("1.0.0")
        .with("name", json!("own"))
        .with("bridge", json!("own0"))
        .with("isGateway", json!(true))
        .with(
            "ipam",
            json!({ "type": "host-local", "subnet": "10.77.0.0/24" }),
        );
    let mut pod = sandbox.pod("pod")?;
    pod.add_with(own)?;
    reconcile(&agent, &sandbox.node)?;
    assert_eq!(reasons(&agent)?, [""; 0]);
    assert_eq!(
        status_code(&sandbox.node)?,
        Some(50),
        "of the default network"
    );
    assert_eq!(reasons(&agent)?, ["no-pod-cidr"]);
    Ok(())
}

fn doctor(node: &Machine, arguments: &str) -> Result<(Option<i32>, String, String)> {
    let ctl = program("bin/viaductctl").display().to_string();
    let mut words = vec![ctl.as_str(), "doctor"];
    words.extend(arguments.split_whitespace());
    let output = node.output(&words)?;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes);
    Ok((
        output.status.code(),
        text(output.stdout)?,
        text(output.stderr)?,
    ))
}

/// A runtime's directories, with our plugin and a configuration for the default network.
fn install(directory: &Path) -> Result<String> {
    let (configurations, plugins) = (directory.join("net.d"), directory.join("bin"));
    std::fs::create_dir_all(&configurations)?;
    std::fs::create_dir_all(&plugins)?;
    std::os::unix::fs::symlink(program("cni/viaduct"), plugins.join("viaduct"))?;
    conflist(
        &configurations.join("10-viaduct.conflist"),
        "pods",
        "viaduct",
    )?;
    Ok(format!(
        "--configurations {} --path {}",
        configurations.display(),
        plugins.display()
    ))
}

fn conflist(file: &Path, name: &str, plugin: &str) -> Result<()> {
    let list = json!({ "cniVersion": "1.0.0", "name": name, "plugins": [{ "type": plugin }] });
    Ok(std::fs::write(file, list.to_string())?)
}

#[test]
fn doctor_prints_its_report_to_standard_output_and_works_without_an_agent() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let directory = tempfile::tempdir()?;
    let arguments = install(directory.path())?;
    let (code, text, errors) = doctor(node, &arguments)?;
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{text}");
    assert!(text.starts_with("Health: good\n"), "{text}");
    for words in [
        "Kernel feature",
        "viaduct is of version",
        "runtimes find Viaduct's",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    agent.kill()?;
    conflist(
        &directory.path().join("net.d/00-podman.conflist"),
        "podman",
        "bridge",
    )?;
    let (code, text, errors) = doctor(node, &arguments)?;
    assert_eq!((code, errors.as_str()), (Some(1), ""));
    for words in [
        "agent-unreachable",
        "systemctl start viaductd",
        "00-podman.conflist comes before 10-viaduct.conflist",
        "net.ipv4.ip_forward is 1",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (code, text, _) = doctor(node, &format!("{arguments} --json"))?;
    assert_eq!(code, Some(1));
    let report: Value = serde_json::from_str(&text)?;
    ensure!(report["healthy"] == false, "{report}");
    Ok(())
}

#[test]
fn the_order_of_conflists_and_a_missing_plugin_are_reported_by_the_agent() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let directory = tempfile::tempdir()?;
    install(directory.path())?;
    let flags = [
        format!("--cni-conf-dir={}/net.d", directory.path().display()),
        format!("--cni-bin-dir={}/bin", directory.path().display()),
    ];
    let agent = Agent::start(&sandbox.node, &flags.each_ref().map(String::as_str))?;
    become_reasons(&agent, &[])?;
    let other = directory.path().join("net.d/05-other.conflist");
    conflist(&other, "other", "bridge")?;
    become_reasons(&agent, &["conflist-shadowed"])?;
    std::fs::remove_file(&other)?;
    std::fs::remove_file(directory.path().join("bin/viaduct"))?;
    become_reasons(&agent, &["plugin-missing"])?;
    std::fs::remove_file(directory.path().join("net.d/10-viaduct.conflist"))?;
    become_reasons(&agent, &["conflist-unusable"])?;
    let metrics = sandbox
        .node
        .call("curl --silent --unix-socket /run/viaduct/viaduct.sock http://viaduct/metrics")?;
    assert!(
        metrics.contains("reason=\"conflist-unusable\""),
        "{metrics}"
    );
    Ok(())
}
