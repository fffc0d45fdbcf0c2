//! The CNI protocol as runtimes use it: results, verbs, and repeated or late calls.

use anyhow::{Context as _, Result};
use e2e::residue::assert_no_residue;
use e2e::{Call, Config, GATEWAYS, Mapping, Residue, Sandbox, Verb};
use serde_json::{Value, json};

const VERSIONS: [&str; 4] = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Asserts the parts of a result that all versions since 0.3.0 share.
fn assert_shape(result: &Value, version: &str, netns: &str) -> Result<()> {
    assert_eq!(result["cniVersion"], version);
    let interfaces = result["interfaces"].as_array().context("interfaces")?;
    let [bridge, host, container] = interfaces.as_slice() else {
        panic!("expected bridge, host's end and container's end, got {interfaces:?}");
    };
    assert_eq!(bridge["name"], "cbr0");
    assert!(
        host["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("veth"))
    );
    for outer in [bridge, host] {
        assert!(
            outer["sandbox"].as_str().unwrap_or_default().is_empty(),
            "{outer}"
        );
    }
    assert_eq!(container["name"], "eth0");
    assert_eq!(container["sandbox"], netns);
    assert_eq!(
        container["mac"].as_str().map(str::len),
        Some(17),
        "{container}"
    );

    let ips = result["ips"].as_array().context("ips")?;
    assert_eq!(ips.len(), 2, "{ips:?}");
    for (ip, gateway) in ips.iter().zip(GATEWAYS) {
        assert_eq!(ip["interface"], 2, "{ip}");
        assert_eq!(ip["gateway"], gateway.to_string(), "IPv4 first: {ip}");
    }
    let routes = result["routes"].as_array().context("routes")?;
    let destinations = routes.iter().map(|route| &route["dst"]).collect::<Vec<_>>();
    assert!(destinations.contains(&&json!("0.0.0.0/0")), "{routes:?}");
    assert!(destinations.contains(&&json!("::/0")), "{routes:?}");
    Ok(())
}

#[test]
fn a_result_has_the_shape_of_the_requested_version() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    for (number, version) in VERSIONS.into_iter().enumerate() {
        let mut pod = sandbox.pod(&format!("pod-{number}"))?;
        pod.add_with(Config::new(version))?;
        let result = pod.result();
        assert_shape(result, version, &pod.machine.path())
            .with_context(|| format!("{version}: {result}"))?;
        let old = version.starts_with('0');
        for (ip, family) in result["ips"]
            .as_array()
            .into_iter()
            .flatten()
            .zip(["4", "6"])
        {
            let expected = if old { json!(family) } else { Value::Null };
            assert_eq!(ip["version"], expected, "{version}: {ip}");
        }
        let container = &result["interfaces"][2];
        assert_eq!(
            container["mtu"].is_u64(),
            version == "1.1.0",
            "{version}: {container}"
        );
        assert_eq!(result.get("dns").is_some(), old, "{version}: {result}");
        pod.del()?;
    }
    Ok(())
}

#[test]
fn the_interface_matches_the_result() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let links = pod.machine.call_json("ip -j link show eth0")?;
    let container = &pod.result()["interfaces"][2];
    assert_eq!(links[0]["address"], container["mac"]);
    assert_eq!(links[0]["mtu"], container["mtu"]);
    let shown = pod
        .machine
        .call("ip -o address show dev eth0 scope global")?;
    for ip in pod.result()["ips"].as_array().into_iter().flatten() {
        let address = ip["address"].as_str().context("an address")?;
        assert!(shown.contains(address), "no {address} in {shown}");
    }
    assert!(!shown.contains("tentative"), "{shown}");
    for (family, gateway) in ["-4", "-6"].into_iter().zip(GATEWAYS) {
        let route = pod
            .machine
            .call(&format!("ip {family} route show default"))?;
        assert!(route.contains(&format!("via {gateway} ")), "{route}");
    }
    Ok(())
}

#[test]
fn version_lists_the_supported_versions() -> Result<()> {
    let sandbox = Sandbox::new()?;
    // VERSION needs neither an agent nor standard input.
    let call = Call::new(Verb::Version, "", "", &Config::new("1.1.0")).stdin("");
    let versions = call.run(&sandbox.node)?.result()?;
    let all = json!([
        "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"
    ]);
    assert_eq!(versions["supportedVersions"], all);
    Ok(())
}

#[test]
fn the_plugin_without_cni_command_prints_its_name_and_succeeds() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let answer = Call::new(Verb::Version, "", "", &Config::new("1.1.0"))
        .without("CNI_COMMAND")
        .stdin("")
        .run(&sandbox.node)?;
    answer.success()?;
    assert!(answer.stderr.contains("CNI"), "{answer:?}");
    Ok(())
}

#[test]
fn check_passes_after_add_and_fails_when_the_link_is_gone() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    pod.check()?.success()?;
    let host = pod.result()["interfaces"][1]["name"]
        .as_str()
        .context("a name")?;
    sandbox.node.call(&format!("ip link delete {host}"))?;
    let error = pod.check()?.error()?;
    assert!(!error.msg.is_empty(), "{error:?}");
    pod.del().map(drop)
}

#[test]
fn check_fails_when_an_address_was_removed() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let address = pod.addresses[0];
    pod.machine
        .call(&format!("ip address del {address}/24 dev eth0"))?;
    let error = pod.check()?.error()?;
    let text = format!("{} {}", error.msg, error.details);
    assert!(text.contains(&address.to_string()), "{error:?}");
    pod.del().map(drop)
}

#[test]
fn a_repeated_or_late_del_succeeds() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let mapping = Mapping::tcp(8080, 80);
    let publish = || Config::new("1.1.0").publish(&[mapping]);
    let before = Residue::of(&sandbox.node, &[])?;
    let assert_clean = |how: &str| -> Result<()> {
        assert_no_residue(&before, &Residue::of(&sandbox.node, &[])?).context(how.to_owned())
    };

    let mut twice = sandbox.pod("twice")?;
    twice.add_with(publish())?;
    twice.del()?;
    twice.del()?;
    assert_clean("DEL twice")?;

    let mut vanished = sandbox.pod("vanished")?;
    vanished.add_with(publish())?;
    vanished.machine.unbind()?;
    vanished.del()?;
    assert_clean("DEL after the namespace's file was removed")?;

    let mut nowhere = sandbox.pod("nowhere")?;
    nowhere.add_with(publish())?;
    let del = nowhere.prepare(Verb::Del, &Config::new("1.1.0"));
    del.set("CNI_NETNS", "").run(&sandbox.node)?.success()?;
    assert_clean("DEL with an empty CNI_NETNS and no port mappings")?;

    let never = sandbox.pod("never")?;
    never.del()?;
    never
        .prepare(Verb::Del, &publish())
        .without("CNI_NETNS")
        .run(&sandbox.node)?
        .success()?;
    assert_clean("DEL without an ADD")
}

#[test]
fn a_second_add_fails_and_keeps_the_first_attachment() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let before = Residue::of(&sandbox.node, &[&pod.machine])?;
    let again = pod.prepare(Verb::Add, pod.config()).run(&sandbox.node)?;
    let error = again.error()?;
    assert!(!error.msg.is_empty(), "{error:?}");
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[&pod.machine])?)?;
    pod.check()?.success()?;
    pod.del().map(drop)
}

#[test]
fn one_container_can_have_two_interfaces() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let before = Residue::of(&sandbox.node, &[])?;
    let mut pod = sandbox.pod("pod")?;
    pod.add()?;
    let second = |verb| {
        pod.prepare(verb, pod.config())
            .set("CNI_IFNAME", "net1")
            .run(&sandbox.node)
    };
    second(Verb::Add)?.result()?;
    let listed = agent.get("/v1/attachments")?;
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
    second(Verb::Del)?.success()?;
    pod.check()?.success()?;
    pod.del()?;
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[])?)
}

#[test]
fn gc_removes_attachments_that_are_not_listed_as_valid() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let (mut kept, mut lost) = (sandbox.pod("kept")?, sandbox.pod("lost")?);
    kept.add()?;
    let before = Residue::of(&sandbox.node, &[&lost.machine])?;
    lost.add()?;
    lost.machine.unbind()?;
    let valid = json!([{ "containerID": kept.id(), "ifname": "eth0" }]);
    let config = Config::new("1.1.0").with("cni.dev/valid-attachments", valid);
    let gc = Call::new(Verb::Gc, "", "", &config).run(&sandbox.node)?;
    gc.success()?;
    assert_eq!(gc.stdout, "");
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[&lost.machine])?)?;
    assert_eq!(agent.get("/v1/attachments")?[0]["containerID"], "kept");
    Ok(())
}

/// behaviour S12
#[test]
fn gc_keeps_a_running_pod_that_is_not_listed_as_valid() -> Result<()> {
    let (sandbox, _agent) = Sandbox::with_agent()?;
    let mut forgotten = sandbox.pod("forgotten")?;
    forgotten.add()?;
    let config = Config::new("1.1.0").with("cni.dev/valid-attachments", json!(null));
    Call::new(Verb::Gc, "", "", &config)
        .run(&sandbox.node)?
        .success()?;
    forgotten.check()?.success()?;
    forgotten.del().map(drop)
}

/// behaviour A1
#[test]
fn a_del_while_the_agent_is_down_is_executed_before_the_next_add() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let mapping = Mapping::tcp(8080, 80);
    let publish = || Config::new("1.1.0").publish(&[mapping]);
    let before = Residue::of(&sandbox.node, &[])?;
    let (mut gone, mut next) = (sandbox.pod("gone")?, sandbox.pod("next")?);
    gone.add_with(publish())?;
    agent.kill()?;
    gone.del()?;
    gone.del()?;
    agent.restart()?;
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    next.add_with(publish())?;
    next.del()?;
    assert_no_residue(&before, &Residue::of(&sandbox.node, &[])?)
}

#[test]
fn status_reports_whether_an_add_would_succeed() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let status = Call::new(Verb::Status, "", "", &Config::new("1.1.0"));
    status.run(&sandbox.node)?.success()?;
    agent.kill()?;
    let error = status.run(&sandbox.node)?.error()?;
    assert!([11, 50, 51].contains(&error.code), "{error:?}");
    Ok(())
}
