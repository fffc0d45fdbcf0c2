//! Options and other settings of a network: effects, and refusals by name.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use e2e::{Echo, NODE, UPLINK, WORLD, udp_source, until};
use serde_json::json;

use super::{Container, SERVER, Scene, subnets};

#[test]
fn netavark_reports_refused_options_by_name() -> Result<()> {
    let Some(scene) = Scene::new()? else {
        return Ok(());
    };
    for (changes, words) in [
        (json!({ "options": { "vrf": "red" } }), "option vrf: red"),
        (
            json!({ "options": { "colour": "red" } }),
            "option colour: red",
        ),
        (
            json!({ "options": { "isolate": "strict" } }),
            "option isolate: strict",
        ),
        (
            json!({ "options": { "mode": "unmanaged" } }),
            "option mode: unmanaged",
        ),
        (json!({ "options": { "vlan": "7" } }), "option vlan: 7"),
        (json!({ "options": { "bclim": "5" } }), "option bclim: 5"),
        (
            json!({ "routes": [{ "destination": "10.20.0.0/16", "route_type": "blackhole" }] }),
            "route_type of 10.20.0.0/16: blackhole",
        ),
        (
            json!({ "network_dns_servers": ["192.0.2.53"] }),
            "network_dns_servers",
        ),
        (
            json!({ "ipam_options": { "driver": "dhcp" } }),
            "ipam option driver: dhcp",
        ),
    ] {
        let error = scene.create("apps", &changes).unwrap_err().to_string();
        ensure!(error.contains(words), "{changes}: {error}");
    }
    // A network that podman has stored before this release refused the option.
    let mut network = scene.create("apps", &json!({}))?;
    network["options"] = json!({ "vrf": "red" });
    let web = Container::new(&scene, "web", &network, &json!({}))?;
    let error = scene.setup(&web).unwrap_err().to_string();
    ensure!(error.contains("option vrf: red"), "{error}");
    scene.teardown(&web)?;
    scene.clean(&[])
}

/// `podman network create --route … --opt no_default_route=true --opt mode=managed`.
#[test]
fn containers_of_netavark_get_the_routes_of_their_network_and_no_default_route() -> Result<()> {
    let Some(scene) = Scene::new()? else {
        return Ok(());
    };
    let settings = json!({
        "subnets": subnets(),
        "options": { "no_default_route": "true", "mode": "managed", "metric": "7" },
        "routes": [
            { "destination": "198.18.0.0/16", "gateway": "10.90.0.1" },
            { "destination": "2001:db8:99::/48", "gateway": "fd90::1", "metric": 3 },
        ],
    });
    let network = scene.create("apps", &settings)?;
    let web = Container::new(&scene, "web", &network, &json!({}))?;
    scene.setup(&web)?;
    for (family, route, metric) in [
        ("-4", "198.18.0.0/16 via 10.90.0.1 dev eth0 ", "metric 7 "),
        ("-6", "2001:db8:99::/48 via fd90::1 dev eth0 ", "metric 3 "),
    ] {
        let shown = web.machine.call(&format!("ip {family} route show"))?;
        let mut routes = shown.lines();
        ensure!(
            routes.any(|it| it.starts_with(route) && it.contains(metric)),
            "{shown}"
        );
        ensure!(!shown.contains("default"), "{shown}");
    }
    scene.teardown(&web)?;
    scene.clean(&[&network])
}

#[test]
fn a_network_of_netavark_names_the_socket_of_its_agent() -> Result<()> {
    const OTHER: &str = "/run/other.sock";
    let Some(scene) = Scene::new()? else {
        return Ok(());
    };
    let settings = json!({ "subnets": subnets(), "options": { "socket": OTHER } });
    let refused = scene.create("apps", &settings).unwrap_err().to_string();
    ensure!(refused.contains(OTHER), "{refused}");
    let node = &scene.sandbox.node;
    node.mounts()
        .run(|| std::os::unix::fs::symlink(e2e::SOCKET, OTHER))?;
    let network = scene.create("apps", &settings)?;
    let web = Container::new(&scene, "web", &network, &json!({}))?;
    scene.setup(&web)?;
    let list = scene.agent.ctl("list")?;
    ensure!(list.contains("podman/web"), "{list}");
    scene.teardown(&web)?;
    scene.clean(&[&network])
}

#[test]
fn containers_of_netavark_leave_with_the_outbound_addresses_of_their_network() -> Result<()> {
    const OUTBOUND: [&str; 2] = ["192.0.2.99", "2001:db8:1::99"];
    let Some(scene) = Scene::new()? else {
        return Ok(());
    };
    for (address, length) in OUTBOUND.into_iter().zip(["24", "64 nodad"]) {
        let line = format!("ip address add {address}/{length} dev {UPLINK}");
        scene.sandbox.node.call(&line)?;
    }
    let _world = Echo::start(&scene.sandbox.world, SERVER)?;
    let options = json!({ "outbound_addr4": OUTBOUND[0], "outbound_addr6": OUTBOUND[1] });
    let settings = json!({ "subnets": subnets(), "options": options });
    let network = scene.create("apps", &settings)?;
    let web = Container::new(&scene, "web", &network, &json!({}))?;
    scene.setup(&web)?;
    let mut other = scene.sandbox.pod("other")?;
    other.add()?;
    for family in [0, 1] {
        let server = (WORLD[family], SERVER).into();
        until("new flows have the outbound address", || {
            // The agent learns of the node's new address by an event.
            let seen = udp_source(&web.machine, 0, server).map(|(seen, _)| seen.ip());
            let outbound: IpAddr = OUTBOUND[family].parse()?;
            Ok(seen.is_ok_and(|seen| seen == outbound).then_some(()))
        })?;
    }
    // Only IPv4: the kernel lists the newest IPv6 address of the uplink first.
    let (seen, _) = udp_source(&other.machine, 0, (WORLD[0], SERVER).into())?;
    assert_eq!(seen.ip(), NODE[0], "of another network");
    scene.teardown(&web)?;
    let mut none = scene.create("none", &json!({}))?;
    none["options"] = json!({ "outbound_addr4": "red" });
    let error = scene.create("none", &none).unwrap_err().to_string();
    ensure!(
        error.contains("outbound_addr4: \"red\" is not an IPv4 address"),
        "{error}"
    );
    Ok(())
}
