//! Viaduct's plugins with real container runtimes: podman, `ctr run --cni`, and containerd's CRI as
//! kubelet uses it.

use std::os::unix::fs::symlink;

use anyhow::Result;
use e2e::chain::{PluginSource, folder};
use e2e::containers::{Containerd, IMAGE, Podman, await_pages};
use e2e::residue::await_no_residue;
use e2e::{Machine, Residue, Sandbox, program, until};
use serde_json::{Value, json};

/// Podman's plugin list for its default network, with IPv6 added.
fn podmans_own() -> Value {
    json!({ "cniVersion": "0.4.0", "name": "podman", "plugins": [
        { "type": "bridge", "bridge": "cni-podman0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
          "capabilities": { "ips": true, "mac": true },
          "ipam": { "type": "host-local", "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
                    "ranges": [[{ "subnet": "10.88.0.0/16", "gateway": "10.88.0.1" }], [{ "subnet": "fd00:88::/64" }]] } },
        { "type": "portmap", "capabilities": { "portMappings": true } },
        { "type": "firewall", "backend": "" },
        { "type": "tuning", "capabilities": { "mac": true } },
    ] })
}

fn kubernetes() -> Value {
    json!({ "cniVersion": "1.0.0", "name": "k8s", "plugins": [
        { "type": "viaduct", "capabilities": {
            "portMappings": true, "bandwidth": true, "io.kubernetes.cri.pod-annotations": true } },
    ] })
}

/// Deletes the network's bridge, which stays because other software may use it, and checks that
/// nothing else is left.
fn clean(node: &Machine, before: &Residue, bridge: &str) -> Result<()> {
    let _ = node.call(&format!("ip link delete {bridge}"));
    await_no_residue(before, node)
}

#[test]
fn podmans_default_network_works_with_viaduct_plugins() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let before = Residue::of(node, &[])?;
    let podman = Podman::new(node, &program("cni"), &podmans_own())?;
    podman.run("web", "--publish 8080:80 --mac-address 02:00:00:00:00:77")?;
    podman.run("other", "--ip 10.88.0.99")?;
    await_pages(&sandbox, 8080)?;
    let shown = podman.call("exec web /bin/ip address show eth0")?;
    for word in ["10.88.0.2/16", "fd00:88::2/64", "02:00:00:00:00:77"] {
        assert!(shown.contains(word), "no {word} in {shown}");
    }
    let page = podman.call("exec other /bin/wget -q -O - http://10.88.0.2/")?;
    assert_eq!(page, "ok");
    let itself = podman.call("exec web /bin/wget -q -O - http://192.0.2.1:8080/")?;
    assert_eq!(itself, "ok", "the pod reaches itself by its hostport");
    assert!(
        podman
            .call("exec other /bin/ip address show eth0")?
            .contains("10.88.0.99/16")
    );

    podman.call("restart --time 0 web")?;
    await_pages(&sandbox, 8080)?;
    podman.call("rm --force --time 0 --all")?;
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    clean(node, &before, "cni-podman0")
}

/// behaviour R18
#[test]
fn podman_works_with_the_reference_bridge_and_viaduct_portmap() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let before = Residue::of(node, &[])?;
    let mixed = std::path::Path::new("/run/mixed");
    let reference = folder(PluginSource::Reference)?;
    node.run(|| {
        std::fs::create_dir(mixed)?;
        for name in ["bridge", "host-local", "firewall"] {
            symlink(reference.join(name), mixed.join(name))?;
        }
        std::io::Result::Ok(())
    })?;
    for name in ["portmap", "tuning"] {
        node.install_program(&program("cni").join(name), &mixed.join(name))?;
    }
    let podman = Podman::new(node, mixed, &podmans_own())?;
    podman.run("web", "--publish 8080:80")?;
    await_pages(&sandbox, 8080)?;
    let shown = agent.get("/v1/attachments")?;
    assert_eq!(shown[0]["network"], "podman", "{shown}");
    podman.call("rm --force --time 0 --all")?;
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    // The reference plugins always leave their iptables chains.
    for flush in [
        "iptables -t nat -F",
        "iptables -t nat -X",
        "iptables -F",
        "iptables -X",
    ] {
        node.call(flush)?;
        node.call(&flush.replace("iptables", "ip6tables"))?;
    }
    let _ = node.call("ip link delete cni-podman0");
    let after = Residue::of(node, &[])?;
    for kind in ["attachments", "leases", "hostports"] {
        assert_eq!(after.count(kind), before.count(kind), "{kind}");
    }
    Ok(())
}

/// behaviours C1, C2, C3, C4
#[test]
fn kubelets_pods_by_containerd_have_addresses_and_ports_in_both_families() -> Result<()> {
    let (sandbox, mut agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let before = Residue::of(node, &[])?;
    let podman = Podman::new(node, &program("cni"), &kubernetes())?;
    let containerd = Containerd::start(&podman, &program("cni"))?;
    let web = containerd.run_pod("web", &[(8080, 80)])?;
    await_pages(&sandbox, 8080)?;
    let listed = agent.get("/v1/attachments")?;
    assert_eq!(
        listed[0]["pod"],
        json!({ "namespace": "default", "name": "web" })
    );
    let status = containerd.pod_status(&web)?;
    for address in ["10.244.1.2", "fd00:10:244:1::2"] {
        assert!(status.contains(address), "no {address} in {status:?}");
    }

    let taken = containerd
        .run_pod("late", &[(8080, 80)])
        .unwrap_err()
        .to_string();
    assert!(
        taken.contains("8080") && taken.contains("default/web"),
        "{taken}"
    );
    assert_eq!(
        agent.get("/v1/attachments")?.as_array().map(Vec::len),
        Some(1)
    );

    // Without an agent, kubelet's teardown succeeds, and a new pod has to wait.
    agent.kill()?;
    await_pages(&sandbox, 8080)?;
    let waits = containerd.run_pod("waits", &[]).unwrap_err().to_string();
    assert!(waits.contains("no agent listens"), "{waits}");
    containerd.remove_pod(&web)?;
    agent.restart()?;
    assert_eq!(agent.get("/v1/attachments")?, json!([]));
    let again = containerd.run_pod("again", &[(8080, 80)])?;
    await_pages(&sandbox, 8080)?;
    containerd.remove_pod(&again)?;
    // containerd's streaming server is a listener of its own.
    drop(containerd);
    // runc's first process is in the node's network namespace and outside of the agent's cgroup:
    // an agent that has seen it keeps its netfilter table until it looks again.
    await_no_residue(&before, node)
}

#[test]
fn ctr_runs_containers_on_a_viaduct_network() -> Result<()> {
    let (sandbox, agent) = Sandbox::with_agent()?;
    let node = &sandbox.node;
    let podman = Podman::new(node, &program("cni"), &kubernetes())?;
    let containerd = Containerd::start(&podman, &program("cni"))?;
    // ctr uses the default paths of CNI.
    for line in [
        "mount -t tmpfs tmpfs /opt",
        "mkdir -p /opt/cni/bin",
        "mount -t tmpfs tmpfs /etc/cni",
        "mkdir -p /etc/cni/net.d",
        "cp /run/nets/10.conflist /etc/cni/net.d/",
    ] {
        node.call(line)?;
    }
    for name in ["viaduct", "loopback"] {
        let plugin = program("cni").join(name);
        node.call(&format!("cp {} /opt/cni/bin/", plugin.display()))?;
    }
    containerd.ctr(&format!(
        "run --detach --cni --cgroup= --snapshotter native {IMAGE} web"
    ))?;
    let listed = agent.get("/v1/attachments")?;
    assert_eq!(
        listed[0]["addresses"][0]["address"], "10.244.1.2/24",
        "{listed}"
    );
    let page = node.call("curl --silent --max-time 5 http://10.244.1.2/")?;
    assert_eq!(page, "ok");
    containerd.ctr("task kill --signal 9 web")?;
    until("the task ends", || {
        Ok(containerd.ctr("task ls")?.contains("STOPPED").then_some(()))
    })?;
    containerd.ctr("task delete web")?;
    containerd.ctr("container delete web")?;
    Ok(())
}
